"""Any words after any command: exit status 0, 1 or 2, one line of error, and no traceback."""

import re
import shlex

import pytest
from call_command import call_command
from drawn import little_memory
from hypothesis import given, settings
from hypothesis import strategies as st

from attnres.cli import COMMANDS, main

LONG = re.compile(r"--[a-z][\w.-]+")
VALUES = (
    st.integers(-3, 20).map(str)
    | st.sampled_from(
        ["", "0", "1e999", "nan", "-1", "9" * 30, "9" * 5000, "true", "None", "standard", "cpu",
         "attn_res:n_blocks=2", "attn_res:n_blocks=9999999999", "missing", ".", "..", "/", "a/../b",
         "words.txt", "words.txt:f", "attnres.ops.reference:rms_norm", ":", "demo", "kimi_k3",
         "\x1b[31m", "\udcff", "a\nb", "~", "-", "--", "[]", "{}", "%s", "x" * 300]
    )
    | st.text(max_size=6)
)  # fmt: skip
NEVER = "a job of its own, which the words may ask for"


@pytest.fixture(scope="module")
def options():
    """The long options that the help of each command names."""
    return {name: sorted(set(LONG.findall(help_of(name)))) for name in COMMANDS}


def help_of(name):
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([name, *(["demo"] if name == "train" else []), "--help"])
    return printed.getvalue()


@pytest.fixture(autouse=True)
def no_work(tmp_path, monkeypatch):
    """In a folder with little in it; what would train, fetch or serve for long says so instead."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("some words\n" * 50)
    monkeypatch.setattr("warnings.showwarning", print)

    def never(*arguments, **settings):
        raise ValueError(NEVER)

    for place in (
        "attnres.cli.training._train_apart",
        "attnres.cli.training._train_with_progress",
        "attnres.train.debian.fetch_texts",
        "attnres.inference.serving.serve",
        "attnres.experiment.folder.load_any",
        "attnres.evaluation.suites.chosen_tasks",
        "attnres.conformance.isolated._run",
        "attnres.cli.costs.method_costs",
        "attnres.analysis.bootstrap.estimate",
    ):
        monkeypatch.setattr(place, never)


@pytest.mark.parametrize("name", sorted(COMMANDS))
@settings(max_examples=25)
@given(data=st.data())
def test_any_words(name, data, options, capsys):
    likely = st.sampled_from(options[name] or ["--x"])
    words = data.draw(st.lists(likely | VALUES, max_size=5))
    check(name, words, capsys)


@pytest.mark.parametrize(
    "line",
    [
        "layout --layers 99999999999",
        "layout --layers 999999999999999999999999999999 --n-blocks 2",
        "cost --layers 99999999999",
        f"cost --layers 4 --dim {'9' * 320}",
        "cost --layers 4 --shards 0",
        "cost --layers 4 --stages 0",
        "cost --layers 4 --chunk -1",
        "cost words.txt",
        "pipeline-plan --layers 99999999999 -P 2",
        "pipeline-plan --layers 4 -P 99999999999",
        "pipeline-plan --layers 4 -P 2 --microbatches 99999999999",
        f"pipeline-plan --layers 4 -P 2 --tokens {'9' * 400}",
        "pipeline-plan --layers 4 -P 2 --link-gb-per-s 0",
        "pipeline-plan --layers 4 -P 2 --sublayer-ms nan",
        "pipeline-plan --layers 4 -P 2 --json .",
        "pipeline-plan --layers 4 -P 2 --figure x.pdf",
        "conform --answers words.txt",
        "conform --export words.txt",
        "fit words.txt",
        "fit .",
        "report words.txt",
        "explore words.txt",
        "explore . --tokens 0",
        "convert words.txt -o new",
        "convert . -o .",
        "generate . x",
        "train demo --seed -1",
        "train demo --optim.lr nan",
        "train demo --model.n-layers 99999999999",
        "train demo --model.others x",
        "train demo --name \x1b[31m/x",
        "report '\x1b[31m'",  # a name that is said as it was given
    ],
)
def test_words_that_ask_for_what_cannot_be(line, capsys):
    name, *words = shlex.split(line)
    check(name, words, capsys, statuses=(2,))


def check(name, words, capsys, statuses=(0, 1, 2)):
    with little_memory():
        status, _, err = call_command(name, words, capsys)
    assert status in statuses, (words, status)
    assert "Traceback" not in err
    if status == 2:
        last = err.splitlines()[-1]
        assert last.startswith("attnres: error: "), err
        assert last.isprintable(), last
