"""Nothing is kept between calls, models or copies, and the compiler can trace it all."""

import copy
import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import torch
from implementations import needs_compiler
from tiny_models import (
    FAMILIES,
    build,
    gradients,
    plain,
    randomise_readers,
    text_config,
    tokens,
)
from torch import Tensor, nn

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM, convert

SIZES = [(2, 11), (1, 5), (3, 8), (2, 11)]


@torch.no_grad()
def outputs(model: Any) -> list[Tensor]:
    return [model(tokens(*size)).logits for size in SIZES]


def test_a_model_recovers_from_an_error_inside_a_layer():
    model = build()
    expected = outputs(model)

    def fail(*call):
        raise RuntimeError("out of memory")

    for part in (model.model.layers[1].mlp, model.residual.readers[-1]):
        hook = part.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            model(tokens())
        hook.remove()
    assert all(map(torch.equal, outputs(model), expected))


@torch.no_grad()
def test_batches_of_several_sizes_may_alternate():
    expected = [build()(tokens(*size)).logits for size in SIZES]
    assert all(map(torch.equal, outputs(build()), expected))


FIRST_FORWARD = """
import tiny_models
import torch

model, tokens = tiny_models.build(), tiny_models.tokens()
with torch.no_grad():
    first, second = model(tokens).logits, model(tokens).logits
assert torch.equal(first, second), (first - second).abs().max()
"""


@pytest.mark.slow
def test_the_first_forward_of_a_process_rounds_as_all_others_do():
    """Also where it has to load the kernel."""
    tests = Path(__file__).parent
    subprocess.run([sys.executable, "-c", FIRST_FORWARD], check=True, cwd=tests, timeout=300)


def test_threads_and_models_do_not_meet():
    models = [build(residual="block"), build(residual="full"), build("qwen3", "block")]
    expected = [outputs(model) for model in models]
    with ThreadPoolExecutor(max_workers=4) as pool:
        runs = list(pool.map(outputs, models * 8))
    for run, right in zip(runs, expected * 8, strict=True):
        assert all(map(torch.equal, run, right))


def test_a_deep_copy_reads_by_its_own_readers():
    model = build()
    before = model(tokens()).logits
    twin = copy.deepcopy(model)
    assert torch.equal(twin(tokens()).logits, before)
    for reader in twin.residual.readers[1:]:
        reader.query.data.neg_()
    assert torch.equal(model(tokens()).logits, before)
    assert not torch.allclose(twin(tokens()).logits, before)
    twin(tokens(), labels=tokens()).loss.backward()
    assert gradients(twin).keys() == dict(twin.named_parameters()).keys()
    assert not gradients(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickled_model_is_the_model(family):
    model = build(family)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    for twin in (again, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(twin.model.layers[0]) is type(model.model.layers[0])
        assert torch.equal(twin(tokens()).logits, model(tokens()).logits)
        for module in (*twin.model.layers, twin.model.norm):
            assert module.residual_of[0] is twin.residual


@pytest.mark.slow
def test_a_model_is_pickled_into_a_process_that_made_none(tmp_path):
    model = build()
    torch.save(model, tmp_path / "model.pt")
    code = "import sys, torch; model = torch.load(sys.argv[1], weights_only=False)"
    code += "; torch.save(model(torch.arange(3, 14)[None]).logits, sys.argv[2])"
    files = [str(tmp_path / name) for name in ("model.pt", "logits.pt")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    expected = model(torch.arange(3, 14)[None]).logits
    torch.testing.assert_close(torch.load(files[1]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("residual", ["standard", "full", "block"])
def test_every_parameter_gets_a_gradient_in_the_first_step(family, residual):
    model = build(family, residual, trained=False)
    model(tokens(), labels=tokens()).loss.backward()
    found = gradients(model)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(found[name].any() for name in found if not name.endswith("key_weight"))


def test_the_residual_is_owned_once():
    model = build()
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len([name for name in names if "readers" in name]) == 2 * 6
    assert all(name.startswith("residual.") for name in names if "readers" in name)


class Constant(nn.Module):
    """A sublayer that returns one number, whatever it is given, and notes what that was."""

    def __init__(self, value: float, inputs: list[float], as_attention: bool):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float64))
        self.inputs, self.as_attention = inputs, as_attention

    def forward(self, hidden_states: Tensor, **context: Any) -> Any:
        self.inputs.append(round(hidden_states.mean().item(), 4))
        out_BTD = self.value * (1 + 0 * hidden_states)  # saved, so that it is computed again
        return (out_BTD, None) if self.as_attention else out_BTD


BLOCKS_OF_4 = [1, 1.5, 3.5, 7.5, 15.5, 21, 42.3333, 85]
GOLDEN = {
    "blocks of 4": (4, {"sublayers_per_block": 4}, [*BLOCKS_OF_4, 170.3333]),
    "full": (4, {}, [1, 1.5, 2.3333, 3.75, 6.2, 10.5, 18.1429, 31.875, 56.7778]),
    "short last block": (5, {"sublayers_per_block": 4}, [*BLOCKS_OF_4, 170.3333, 255.75, 511.75]),
}


@pytest.mark.parametrize("case", GOLDEN)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_constant_sublayers_give_the_golden_table(case, checkpointing, monkeypatch):
    n_layers, settings, table = GOLDEN[case]
    text = text_config(num_hidden_layers=n_layers)
    residual = {"method": "attn_res", **settings}
    config = AttnResCausalLMConfig(text_config=text, residual=residual)
    model: Any = AttnResForCausalLM(config).double()
    norm_class = type(model.model.layers[0].input_layernorm)
    monkeypatch.setattr(norm_class, "forward", lambda self, x: x)
    nn.init.ones_(model.get_input_embeddings().weight)
    inputs: list[list[float]] = [[] for _ in range(2 * n_layers)]
    for i, layer in enumerate(model.model.layers):
        layer.self_attn = Constant(2.0 ** (2 * i + 1), inputs[2 * i], as_attention=True)
        layer.mlp = Constant(2.0 ** (2 * i + 2), inputs[2 * i + 1], as_attention=False)
    for reader in model.residual.readers:
        reader.register_forward_pre_hook(assert_no_source_twice)
    if checkpointing:
        model.train().activation_checkpointing_enable()

    output_BTD = model.model(tokens()).last_hidden_state
    output_BTD.sum().backward()
    n_calls = 2 if checkpointing else 1
    assert inputs == [[value] * n_calls for value in table[:-1]]
    assert torch.allclose(output_BTD, torch.full_like(output_BTD, table[-1]), rtol=0, atol=5e-5)


def assert_no_source_twice(reader: nn.Module, arguments: tuple[Any, ...]) -> None:
    (sources,) = arguments
    means = [round(source.mean().item(), 6) for source in sources]
    assert len(set(means)) == len(means)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
def test_compiled_is_eager(backend):
    assert_compiled_is_eager(build("qwen3"), backend)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "cohere", "gemma3_text"])
def test_compiled_is_eager_in_families_of_other_layers(family):
    assert_compiled_is_eager(tiny_families.build(family).eval(), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "backend"),
    [
        ("centered", "aot_eager"),
        ("sum", "aot_eager"),
        ("mean", "aot_eager"),
        pytest.param("centered", "inductor", marks=needs_compiler),
    ],
)
def test_a_compiled_conversion_is_the_eager_one(form, backend):
    original = plain("qwen3", num_hidden_layers=2)
    assert_compiled_is_eager(randomise_readers(convert(original, form=form, n_blocks=3)), backend)


def assert_compiled_is_eager(eager: Any, backend: str) -> None:
    compiled: Any = torch.compile(copy.deepcopy(eager), fullgraph=True, backend=backend)
    losses = []
    for model in (eager, compiled):
        out = model(tokens(), labels=tokens(), use_cache=False)
        out.loss.backward()
        losses.append(out.loss)
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    found = gradients(compiled._orig_mod)
    for name, gradient in gradients(eager).items():
        assert (found[name] - gradient).abs().max() <= 1e-5 * max(1, gradient.abs().max()), name
