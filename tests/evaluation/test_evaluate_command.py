"""lm-evaluation-harness finds in a converted model what it finds in the one it was made of.

The harness brings 40 packages, so it is an extra of its own: without it, its cases say so.
"""

import importlib.util
import json
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
    original = plain(vocab_size=257, max_position_embeddings=48).eval()
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
    from lm_eval.models.huggingface import HFLM  # pyright: ignore  optional

    model = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=2)
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
    assert expected["max_length"] == 48
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


@where_installed
def test_the_command_scores_both_alike_and_writes_what_it_found(installed, folders, task, capfd):
    said, found = [], []
    for name in ("plain", "converted"):
        main(["evaluate", folders[name], "--tasks", task, "-o", f"{name}.json"])
        said.append(capfd.readouterr().out)
        found.append(json.loads(Path(f"{name}.json").read_text()))
    assert said[0] == said[1]
    assert "|whales|" in said[0]
    assert found[0]["results"] == found[1]["results"]
    assert found[0]["n-samples"]["whales"] == {"original": 3, "effective": 3}
    main(["evaluate", folders["plain"], "--tasks", task, "--limit", "2", "-o", "limited.json"])
    limited = json.loads(Path("limited.json").read_text())
    assert limited["n-samples"]["whales"]["effective"] == 2


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


def test_without_the_harness_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(SystemExit) as end:
        main(["evaluate", "folder", "--tasks", "arc_easy"])
    assert end.value.code == 2
    assert "lm_eval: pip install 'attention-residuals[eval]'" in capsys.readouterr().err
