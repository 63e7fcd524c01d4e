"""Files of strangers: nothing in them is run, and nothing outside of their folder is touched."""

import ast
import json
import os
from pathlib import Path

import pytest
import torch
from drawn import snapshot
from tiny_runs import recipe, write_text
from transformers import LlamaConfig, LlamaForCausalLM

import attnres
from attnres.models import AttnResForCausalLM
from attnres.models.pretrained import load_pretrained
from attnres.train import checkpoint
from attnres.train.debian import documents
from attnres.train.debian_packages import Package
from attnres.train.loop import train

PACKAGE = Path(attnres.__file__).parent
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "tarfile",
                     "zipfile", "yaml", "cloudpickle"}  # fmt: skip


def sources():
    return sorted(PACKAGE.rglob("*.py"))


def names_of_imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("file", sources(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_nothing_is_unpickled_unpacked_or_evaluated(file):
    tree = ast.parse(file.read_text())
    assert not FORBIDDEN_MODULES & set(names_of_imports(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in ("eval", "exec", "compile", "__import__"), called
        assert called not in ("torch.load", "np.load", "numpy.load", "torch.jit.load"), called
        assert "yaml" not in called, called
        for keyword in node.keywords:
            if keyword.arg == "trust_remote_code":
                assert ast.unparse(keyword.value) == "False", called
            assert keyword.arg not in ("allow_pickle", "weights_only", "shell"), called


def test_what_transformers_reads_runs_no_code_that_comes_with_it():
    """`Auto` classes ask on a terminal where they are not told."""
    found = []
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained"):
                given = {keyword.arg for keyword in node.keywords}
                found.append((file.name, ast.unparse(node.func), "trust_remote_code" in given))
    assert found
    own = ("joint.", "AttnRes")  # which are no `Auto` classes
    assert [each for each in found if not each[1].startswith(own) and not each[2]] == []


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_weights_in_a_pickle_are_not_read(model):
    from safetensors.torch import load_file

    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="safetensors"):
        load_pretrained(model)
    with pytest.raises((ValueError, OSError), match="safetensors"):
        AttnResForCausalLM.from_pretrained(model, residual="attn_res:n_blocks=2")


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_of_the_hub_is_not_fetched(model, name):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, name: "somebody/kernel@main"}))
    for load in (load_pretrained, AttnResForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match="wants code of 'somebody/kernel@main'"):
            load(model)


def test_an_adapter_does_not_have_another_model_read(model):
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    with pytest.raises(ValueError, match="is an adapter"):
        load_pretrained(model)


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "words.txt")


@pytest.fixture
def outside(tmp_path):
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_text("as it was")
    return place


@pytest.mark.parametrize("name", [".lock", "recipe.json", "env.json", "metrics.jsonl"])
def test_a_run_writes_through_no_link_to_a_file_elsewhere(text, tmp_path, outside, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(outside / "new")
    with pytest.raises(ValueError, match="leads out of"):
        train(recipe(text), tmp_path / "run")
    assert snapshot(outside) == {str(outside / "file"): b"as it was"}


@pytest.mark.parametrize("name", ["tensorboard", "checkpoint", "model"])
def test_a_run_writes_through_no_link_to_a_folder_elsewhere(text, tmp_path, outside, name):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(ValueError, match=f"{name} is a link that leads out of"):
        train(recipe(text), tmp_path / "run")
    assert snapshot(outside) == {str(outside / "file"): b"as it was"}


def test_a_run_folder_may_itself_be_a_link(text, tmp_path, outside):
    (tmp_path / "run").symlink_to(outside)
    assert train(recipe(text, n_steps=1), tmp_path / "run")
    assert (outside / "model").is_dir()


def test_a_checkpoint_that_is_a_link_is_passed_over_and_what_it_leads_to_stays(text, tmp_path):
    own = recipe(text)
    assert train(own, tmp_path / "other")
    stranger = tmp_path / "other" / "checkpoint" / "step-00000005"
    before = snapshot(stranger)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    link = folder / "step-00000005"
    link.symlink_to(stranger)
    assert "is a link" in str(checkpoint.damage(link))
    checkpoint.discard(link)
    assert not os.path.lexists(link)
    assert snapshot(stranger) == before


def test_texts_are_taken_from_within_an_unpacked_package_alone(tmp_path):
    text = "Words that are long enough to be a document of their own. " * 20
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.txt").write_text(f"secret {text}")
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (root / "docs" / "own.txt").write_text(text)
    (root / "docs" / "link.txt").symlink_to(tmp_path / "secret" / "key.txt")
    (root / "docs" / "more").symlink_to(tmp_path / "secret")
    for files in ("docs/*.txt", "docs/**/*.txt", "docs/more/*.txt"):
        found = [name for name, _ in documents(root, Package(name="any", files=files))]
        assert found == (["own.txt"] if "more" not in files else []), files
