"""Vectors for other languages, and answers that come back as a file."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnres.conformance import MISTAKES, export, judge_file
from attnres.conformance.mistakes import combine
from attnres.conformance.op_steps import Op


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    export(folder)
    return folder


def answers_of(op: Op, folder, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Mixes alone, from nothing but what lies in the folder."""
    described = json.loads((folder / "conformance.json").read_text())["kinds"]["op"]
    tensors = load_file(folder / described["file"])
    found = {}
    for case in described["cases"]:
        given = {name: tensors[f"op/{case['name']}/input/{name}"] for name in case["inputs"]}
        query, sources, key_weight = (x.to(dtype) for x in given.values())
        mix = op(query, list(sources), key_weight, case["eps"])
        found[f"op/{case['name']}/answer/mix"] = mix.contiguous()
    return found


def test_the_same_bytes_are_written_each_time(folder, tmp_path):
    for path in export(tmp_path):
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000


def test_the_description_is_enough_to_find_every_tensor(folder):
    described = json.loads((folder / "conformance.json").read_text())
    assert described["readme"]
    assert {x["name"] for x in described["mistakes"]} == set(MISTAKES)
    for kind, each in described["kinds"].items():
        tensors = load_file(folder / each["file"])
        expected = {}
        for case in each["cases"]:
            start = f"{kind}/{case['name']}"
            expected |= {f"{start}/input/{name}": s for name, s in case["inputs"].items()}
            expected |= {f"{start}/answer/{name}": s for name, s in case["answers"].items()}
            answer = case["answers"]["mix" if kind == "op" else "reads"]
            expected[f"{start}/upstream"] = answer
            for allowed in case["allowed"].values():
                assert allowed.keys() == case["answers"].keys()
        assert {name: list(x.shape) for name, x in tensors.items()} == expected
        assert {x.dtype for x in tensors.values()} == {torch.float64}


@pytest.mark.parametrize("kind", ["op", "full", "block"])
def test_what_is_exported_passes_as_answers(folder, kind):
    (report,) = judge_file(folder / f"{kind}.safetensors")
    assert report.kind == kind
    assert report.conforms
    assert report.has_gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answers_computed_from_the_files_conform(folder, tmp_path, dtype):
    save_file(answers_of(Op(), folder, dtype), tmp_path / "mine.safetensors")
    (report,) = judge_file(tmp_path / "mine.safetensors")
    assert report.conforms
    assert {row.dtype for row in report.rows} == {dtype}
    assert not report.has_gradients


def test_a_mistake_in_answers_is_named(folder, tmp_path):
    wrong = combine("op", MISTAKES["no_key_norm"])
    assert isinstance(wrong, Op)
    save_file(answers_of(wrong, folder), tmp_path / "mine.safetensors")
    (report,) = judge_file(tmp_path / "mine.safetensors")
    assert report.mistakes == ("no_key_norm",)


def test_answers_that_lack_or_do_not_fit_are_problems(folder, tmp_path):
    answers = answers_of(Op(), folder)
    del answers["op/random/answer/mix"]
    answers["op/narrow/answer/mix"] = torch.zeros(3)
    save_file(answers, tmp_path / "mine.safetensors")
    (report,) = judge_file(tmp_path / "mine.safetensors")
    problems = {row.case: row.problem for row in report.rows if row.problem}
    assert problems == {
        "random": "not answered",
        "narrow": "mix has shape [3], expected [1, 4, 1]",
    }
    assert all(row.passes for row in report.rows if not row.problem)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"op/random/answer/mux": torch.zeros(1)}, "is no KIND/CASE/answer/NAME"),
        ({"op/unheard/answer/mix": torch.zeros(1)}, "is no KIND/CASE/answer/NAME"),
        ({"mix": torch.zeros(1)}, "is no KIND/CASE/answer/NAME"),
        ({"op/random/input/query": torch.zeros(1)}, "has no tensor named"),
        ({"op/random/answer/mix": torch.zeros(1, dtype=torch.int32)}, "must be floating point"),
        (
            {
                "op/random/answer/mix": torch.zeros(1),
                "op/narrow/answer/mix": torch.zeros(1).half(),
            },
            "have several dtypes",
        ),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, tensors, words):
    save_file(tensors, tmp_path / "mine.safetensors")
    with pytest.raises(ValueError, match=words):
        judge_file(tmp_path / "mine.safetensors")


def test_what_is_no_safetensors_file_is_refused(tmp_path):
    (tmp_path / "mine.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}nothing")
    with pytest.raises(ValueError, match="is no safetensors file"):
        judge_file(tmp_path / "mine.safetensors")
