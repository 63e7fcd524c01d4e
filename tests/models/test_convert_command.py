"""`attnres convert` and `attnres generate` on local folders; one line for each bad input."""

import importlib.util
import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import plain, randomise_readers, text_config, tokens
from tiny_runs import recipe
from transformers import AutoModelForCausalLM, AutoTokenizer

from attnres.cli import main
from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM, convert
from attnres.models.pretrained import load_pretrained, save_whole
from attnres.train.loop import train
from attnres.train.tokenizer import byte_tokenizer, for_transformers

PROMPT = "Call me"


@pytest.fixture(autouse=True)
def restored(monkeypatch, tmp_path):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Exit status, standard output and standard error of a command."""

    def run(*arguments: Any):
        status: Any = 0
        capsys.readouterr()
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code or 0
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def original() -> Any:
    """A tiny Llama over bytes that writes small letters, whatever it reads."""
    model = plain(vocab_size=257, rms_norm_eps=1e-4).eval()
    model.lm_head.weight.data[: ord("a")] = 0
    model.lm_head.weight.data[ord("z") + 1 :] = 0
    return model


@pytest.fixture
def folder(tmp_path):
    original().save_pretrained(tmp_path / "plain")
    for_transformers(byte_tokenizer()).save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


@pytest.fixture
def converted(folder, call):
    assert call("convert", folder, "--n-blocks", 2, "-o", "converted")[0] == 0
    return Path("converted")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens()).logits


def assert_one_line(result: Any, *words: str) -> None:
    status, out, err = result
    assert (status, out) == (2, "")
    assert err.startswith("attnres: error: "), err
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err, err


@pytest.mark.parametrize("form", ["centered", "sum", "mean"])
def test_convert_writes_a_folder_that_transformers_loads(call, folder, form):
    out = Path("deep/er/out")
    status, said, err = call("convert", folder, "--n-blocks", 2, "--form", form, "-o", out)
    assert (status, err) == (0, "")
    assert ("largest difference of logits: 0.0\n" in said) == (form == "centered")
    assert "eps hazard" in said
    assert said.endswith(f"model: {out}\n")
    loaded: Any = AutoModelForCausalLM.from_pretrained(out)
    assert loaded.residual.layout.sizes == (3, 3)
    torch.testing.assert_close(logits(loaded), logits(original()))
    assert torch.equal(logits(loaded), logits(original())) == (form == "centered")
    assert AutoTokenizer.from_pretrained(out)(PROMPT)["input_ids"] == list(PROMPT.encode())
    assert isinstance(loaded, AttnResForCausalLM)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_revert_writes_the_plain_model_again(call, folder, converted):
    status, _, err = call("convert", converted, "--revert", "-o", "back")
    assert (status, err) == (0, "")
    saved = json.loads(Path("back/config.json").read_text())
    assert saved["architectures"] == ["LlamaForCausalLM"]
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained("back")), logits(original()))
    assert call("convert", "back", "--revert", "-o", "more")[2].endswith("nothing to revert\n")


def test_a_trained_model_changes_its_form_and_is_reverted_only_with_loss(call, converted):
    model = randomise_readers(AttnResForCausalLM.from_pretrained(converted))
    save_whole(model, None, Path("trained"))
    status, said, _ = call("convert", "trained", "--form", "mean", "--n-blocks", 2, "-o", "mean")
    assert status == 0
    assert "trained has no tokenizer" in said
    loaded = AutoModelForCausalLM.from_pretrained("mean")
    assert loaded.config.scaled_norm_eps
    torch.testing.assert_close(logits(loaded), logits(model))
    assert_one_line(call("convert", "trained", "--revert", "-o", "x"), "queries are trained")
    assert call("convert", "trained", "--revert", "--lossy", "-o", "x")[0] == 0
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained("x")), logits(original()))


def test_the_dtype_is_that_saved_or_asked_for(call, folder):
    assert call("convert", folder, "--dtype", "bfloat16", "-o", "narrow")[0] == 0
    loaded = AutoModelForCausalLM.from_pretrained("narrow", dtype="auto")
    narrow = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert torch.equal(logits(loaded), logits(narrow))
    assert call("convert", "narrow", "-o", "again")[0] == 0
    assert load_pretrained("again").model.dtype == torch.bfloat16


def test_generate_goes_on_as_the_plain_model_does(call, converted):
    status, said, err = call("generate", converted, PROMPT, "--n-tokens", 12)
    assert (status, err) == (0, "")
    prompt_BT = torch.tensor([list(PROMPT.encode())])
    expected = original().generate(prompt_BT, max_new_tokens=12, do_sample=False)
    text = AutoTokenizer.from_pretrained(converted).decode(expected[0], skip_special_tokens=True)
    assert said == f"{text}\n"
    assert re.fullmatch(r"Call me[a-z]{12}", text)
    chunked = ("generate", converted, PROMPT, "--n-tokens", 12, "--prefill-chunk", 3)
    assert call(*chunked) == (0, said, "")


def test_generate_draws_by_the_seed(call, converted):
    words = ("generate", converted, PROMPT, "--n-tokens", 8)
    draws = [call(*words, "--temperature", 1, "--seed", seed)[1] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_generate_takes_the_folder_of_a_run(call, text, tmp_path):
    train(recipe(text, n_steps=1), tmp_path / "run")
    status, said, err = call("generate", tmp_path / "run", "bade", "--n-tokens", 3)
    assert (status, err) == (0, "")
    assert said.startswith("bade")


@pytest.mark.parametrize("form", ["centered", "sum", "mean"])
def test_a_run_that_was_trained_as_standard_is_converted(call, text, form):
    train(recipe(text, "standard", n_steps=2), Path("run"))
    words = ("run", "--n-blocks", 2, "--form", form, "-o", "out")
    status, said, err = call("convert", *words)
    assert (status, err) == (0, "")
    assert ("largest difference of logits: 0.0\n" in said) == (form == "centered")
    found, trained = load_pretrained("out"), load_pretrained("run")
    assert found.model.config.residual["method"] in ("centered", "sum", "attn_res")
    torch.testing.assert_close(logits(found.model), logits(trained.model))
    assert torch.equal(logits(found.model), logits(trained.model)) == (form == "centered")
    tokenizers: Any = found.tokenizer, trained.tokenizer
    assert tokenizers[0]("bade")["input_ids"] == tokenizers[1]("bade")["input_ids"]


def test_the_model_of_a_run_ends_its_text_as_the_training_did(text):
    train(recipe(text, n_steps=1), Path("run"))
    saved = AutoModelForCausalLM.from_pretrained("run/model").generation_config
    tokenizer: Any = load_pretrained("run").tokenizer
    assert (saved.eos_token_id, saved.pad_token_id) == (tokenizer.eos_token_id,) * 2
    assert tokenizer.eos_token_id is not None
    edit(Path("run/model/generation_config.json"), eos_token_id=None)  # as runs had it once
    assert load_pretrained("run").model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_run_that_is_not_finished_is_refused(call):
    Path("run").mkdir()
    Path("run/recipe.json").write_text("{}")
    words = "the run in run is not finished: it has no model yet"
    assert_one_line(call("convert", "run", "-o", "out"), words)
    assert_one_line(call("generate", "run", PROMPT), words)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def remote_code(folder: Path) -> None:
    edit(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.C"})
    (folder / "mine.py").write_text("open('run', 'w')")


def local_family_with_remote_code(folder: Path) -> None:
    """Llama, with code beside it that would be run in its place."""
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "mine.C"})
    (folder / "mine.py").write_text("open('run', 'w')")


def change_weights(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def as_pickle(folder: Path, data: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(data)


BREAK = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "half a config": (lambda f: (f / "config.json").write_text('{"mod'), "config.json is damaged"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "plain"),
    "half the weights": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-99]
        ),
        "cannot be loaded",
    ),
    "another size": (
        lambda f: edit(f / "config.json", intermediate_size=64),
        "model.layers.0.mlp.down_proj.weight has shape [32, 48], by the config it has [32, 64]",
    ),
    "no head": (
        lambda f: change_weights(f, lambda tensors: tensors.pop("lm_head.weight")),
        "lacks 1 weights of the model, the first is lm_head.weight",
    ),
    "an empty pickle": (lambda f: as_pickle(f, b""), "no file named model.safetensors"),
    "a pickle": (lambda f: as_pickle(f, b"\x80\x02cos\nsystem\n."), "model.safetensors"),
    "a family that is no name": (lambda f: edit(f / "config.json", model_type=[]), "is damaged"),
    "a size that is no number": (lambda f: edit(f / "config.json", hidden_size="x"), "hidden_size"),
    "no heads": (lambda f: edit(f / "config.json", num_attention_heads=0), "cannot be loaded"),
    "a tokenizer that is none": (
        lambda f: (f / "tokenizer_config.json").write_text("[]"),
        "cannot be loaded",
    ),
    "quantised": (
        lambda f: edit(f / "config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
        "are quantised: give those that are not",
    ),
    "more layers": (lambda f: edit(f / "config.json", num_hidden_layers=4), "lacks 9 weights"),
    "fewer layers": (lambda f: edit(f / "config.json", num_hidden_layers=2), "has 9 weights that"),
    "no adapter": (lambda f: edit(f / "config.json", model_type="opt"), "no adapter for"),
    "remote code": (remote_code, "code of its own, which is never run"),
    "no folder": (shutil.rmtree, "no model at"),
}


@pytest.mark.parametrize(("damage", "message"), BREAK.values(), ids=BREAK)
def test_a_bad_model_is_one_line_and_leaves_nothing(call, folder, damage, message):
    damage(folder)
    before = sorted(path.name for path in Path().iterdir())
    assert_one_line(call("convert", folder, "--n-blocks", 2, "-o", "out"), message)
    assert sorted(path.name for path in Path().iterdir()) == before


def test_code_beside_a_known_family_is_not_run(call, folder):
    local_family_with_remote_code(folder)
    assert call("convert", folder, "--n-blocks", 2, "-o", "out")[0] == 0
    assert not Path("run").exists()


def test_a_folder_that_exists_is_kept(call, folder):
    Path("out").mkdir()
    Path("out/mine").write_text("mine")
    assert_one_line(call("convert", folder, "-o", "out"), "out exists", "nothing was written")
    with pytest.raises(ValueError, match="out exists"):
        save_whole(original(), None, Path("out"))
    assert [path.name for path in Path("out").iterdir()] == ["mine"]


@pytest.mark.parametrize("out", ["link", "file/out", "file/deep/out"])
def test_a_place_that_cannot_be_written_is_said_before_the_model_is_loaded(call, out):
    Path("link").symlink_to("nowhere")
    Path("file").touch()
    assert_one_line(
        call("convert", "no model", "-o", out), out, "exists" if out == "link" else "no"
    )
    assert "no model at" not in call("convert", "no model", "-o", out)[2]


def test_an_interrupted_conversion_is_not_said_to_resume(call, folder, monkeypatch):
    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnres.models.pretrained.save_whole", interrupt)
    status, _, err = call("convert", folder, "-o", "out")
    assert (status, err) == (130, "\nattnres: interrupted\n")


def test_a_failed_save_leaves_nothing(call, folder, monkeypatch):
    def fail(self, path):
        path.mkdir()
        (path / "half").write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(AttnResForCausalLM, "save_pretrained", fail)
    before = sorted(path.name for path in Path().iterdir())
    status, _, err = call("convert", folder, "--n-blocks", 2, "-o", "out")
    assert (status, err) == (2, "attnres: error: no space left\n")
    assert sorted(path.name for path in Path().iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-blocks", "9"], "n_blocks=9 is more than the model's 6 sublayers"),
        (["--n-blocks", "2", "--layers-per-block", "1"], "exactly one of"),
        (["--form", "middle"], "middle"),
        (["--lossy"], "lossy goes with --revert"),
        (["--dtype", "int8"], "int8"),
    ],
)
def test_a_bad_argument_of_convert_is_one_line(call, folder, arguments, message):
    assert_one_line(call("convert", folder, "-o", "out", *arguments), message)


def test_another_layout_than_that_of_a_folder_is_refused(call, converted):
    for unit, value in (("--n-blocks", 3), ("--sublayers-per-block", 1)):
        result = call("convert", converted, unit, value, "--form", "sum", "-o", "out")
        assert_one_line(result, "blocks of [3, 3] sublayers", "another layout is another model")
    config = AttnResCausalLMConfig(text_config=text_config(), residual="highway")
    save_whole(AttnResForCausalLM(config), None, Path("other"))
    assert_one_line(call("convert", "other", "-o", "out"), "'highway' has no form 'centered'")
    result = call("convert", "other", "--n-blocks", 2, "-o", "out")
    assert_one_line(result, "residual method 'highway', which has no blocks")


def test_an_edited_config_of_a_converted_folder_is_refused(call, converted):
    edit(converted / "config.json", residual={"method": "centered", "n_blocks": 3})
    assert_one_line(call("generate", converted, PROMPT), "but the model was made with", "[3, 3]")


@pytest.mark.parametrize("name", ["residual.readers.3.query", "lm_head.weight"])
def test_a_converted_folder_that_lacks_a_weight_is_refused(call, converted, name):
    change_weights(converted, lambda tensors: tensors.pop(name))
    assert_one_line(
        call("generate", converted, PROMPT), f"lacks 1 weights of the model, the first is {name}"
    )


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs gguf: make pretrained")
def test_half_a_gguf_file_is_one_line(call):
    for n_bytes in (0, 4, 30):
        Path("half.gguf").write_bytes((b"GGUF\3\0\0\0" + bytes(8) + b"\1" + bytes(13))[:n_bytes])
        assert_one_line(call("convert", "half.gguf", "-o", "out"), "half.gguf cannot be loaded")


def test_generate_takes_a_plain_model(call, folder, converted):
    plain_text = call("generate", folder, PROMPT, "--n-tokens", 12)
    assert plain_text == call("generate", converted, PROMPT, "--n-tokens", 12)
    assert plain_text[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "prompt is empty"),
        (["\udcff"], "can't encode"),
        ([PROMPT, "--n-tokens", "0"], "n_tokens is positive"),
        ([PROMPT, "--temperature", "-1"], "temperature at least 0"),
        ([PROMPT, "--prefill-chunk", "0"], "prefill_chunk must be"),
        ([PROMPT, "--n-tokens", "60"], "7 tokens of the prompt and 60 more .* model's 64 places"),
    ],
)
def test_a_bad_argument_of_generate_is_one_line(call, converted, arguments, message):
    status, out, err = call("generate", converted, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.search(message, err)


def test_generate_needs_a_tokenizer(call):
    save_whole(convert(original(), n_blocks=2), None, Path("bare"))
    assert_one_line(call("generate", "bare", PROMPT), "no tokenizer")


def test_a_missing_package_is_named_with_what_installs_it(call, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = call("convert", "smollm2", "-o", "out")
    assert_one_line(result, "pip install 'attention-residuals[pretrained]'")
