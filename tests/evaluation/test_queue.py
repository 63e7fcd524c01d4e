"""One task after the other: what is there is not asked again, and one failure costs no other."""

import math

import pytest
from scored_results import STAMP, scored

from attnres.evaluation.queue import Asking, ask_all
from attnres.evaluation.scored import read_scored
from attnres.evaluation.task import Task, named

TASKS = [named("a"), named("bad"), named("c", n_shots=2)]


class Model:
    """Answers every task alike, but for one that it cannot be asked."""

    def __init__(self):
        self.asked: list[str] = []

    def ask(self, task, limit, runs_code):
        self.asked.append(task.name)
        if task.name == "bad":
            raise ValueError("no data\nfor bad")
        return scored(task.name, {"acc": [1.0, 0.0]}, limit=limit, n_shots=task.n_shots)


class Heard:
    """Remembers what it was told."""

    def __init__(self):
        self.lines: list[tuple] = []

    def begun(self, task, place, n_tasks):
        pass

    def scored(self, found, place, n_tasks, is_new):
        self.lines.append((found.task, place, n_tasks, is_new))

    def failed(self, task, reason):
        self.lines.append((task.name, reason))


def ask(folder, model, tasks=TASKS, stamp=STAMP, limit=None):
    loads = []

    def load():
        loads.append(1)
        return model

    heard = Heard()
    asking = Asking(load=load, stamp=stamp, folder=folder, limit=limit)
    return ask_all(asking, tasks, heard), heard, len(loads)


def test_a_task_that_fails_is_named_and_the_others_are_asked(tmp_path):
    model = Model()
    asked, heard, n_loads = ask(tmp_path / "results", model)
    assert asked.failed == {"bad": "no data for bad"}
    assert [each.task for each in asked.scored] == ["a", "c"]
    assert heard.lines == [("a", 1, 3, True), ("bad", "no data for bad"), ("c", 3, 3, True)]
    assert n_loads == 1
    assert read_scored(tmp_path / "results", "a") == asked.scored[0]


def test_what_is_there_is_not_asked_again_nor_the_model_loaded(tmp_path):
    tasks = [TASKS[0], TASKS[2]]
    first, _, _ = ask(tmp_path, Model(), tasks)
    again, heard, n_loads = ask(tmp_path, Model(), tasks)
    assert again.scored == first.scored
    assert [line[-1] for line in heard.lines] == [False, False]
    assert n_loads == 0


@pytest.mark.parametrize(
    "changes", [{"stamp": {**STAMP, "files": "new"}}, {"limit": 1}, {"tasks": [named("a", 5)]}]
)
def test_another_model_limit_or_number_of_examples_is_asked_anew(tmp_path, changes):
    ask(tmp_path, Model(), [named("a")])
    model = Model()
    ask(tmp_path, model, **({"tasks": [named("a")]} | changes))
    assert model.asked == ["a"]


def test_a_damaged_result_is_named(tmp_path):
    (tmp_path / "a.json").write_text('{"settings": ')
    with pytest.raises(ValueError, match=r"a\.json is no result of a task"):
        ask(tmp_path, Model())


def test_errors_of_means_are_those_of_independent_questions():
    found = scored("a", {"acc": [1.0, 0.0, 0.0, 1.0], "one": [2.0] * 4})
    assert found.mean("acc") == 0.5
    assert found.standard_error("acc") == pytest.approx(math.sqrt(1 / 3 / 4))
    assert found.standard_error("one") == 0.0
    assert math.isnan(scored("a", {"acc": [1.0]}).standard_error("acc"))


def test_settings_tell_specs_apart(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("task: own")
    before = named(str(file)).settings(None)
    file.write_text("task: own\nnum_fewshot: 3")
    assert named(str(file)).settings(None) != before
    made = {"task": "made"}
    assert Task(name="m", spec=made, version="1").settings(None) != Task(
        name="m", spec=made, version="2"
    ).settings(None)
    with pytest.raises(ValueError, match="as that of a file, got 'a/b'"):
        named("a/b")
