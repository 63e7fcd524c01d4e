"""Reads without gradients: one phase, two phases, and sums that are made by the read."""

import copy
import pickle
from typing import Any

import pytest
import torch
from error_budget import assert_as_good_as
from implementations import needs_cpu_kernel
from tiny_models import build, tokens
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from attnres import AttnRes, BlockLayout
from attnres.ops import cpu, quick
from attnres.residual import DepthState, Parts, ReadingState, TwoPhase
from attnres.residual.reading import ReadsQuickly

DIM, N = 12, 8
LAYOUTS = [
    BlockLayout((3, 3, 2)),
    BlockLayout.full(N),
    BlockLayout((N,)),
    BlockLayout((1, 4, 3)),
]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.sizes))


def trained(residual: Any) -> Any:
    torch.manual_seed(0)
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    return residual


def inputs(residual: Any, dtype: torch.dtype, shape: tuple[int, ...] = (2, 3)) -> list[Tensor]:
    """What every sublayer and the final norm read, of sublayers that are not linear."""
    generator = torch.Generator().manual_seed(1)
    scales = torch.randn(N, generator=generator).to(dtype)
    embed_BTD = torch.randn(*shape, DIM, generator=generator).to(dtype)
    state, found = residual.start(embed_BTD), []
    for depth in range(N):
        h_BTD, state = residual.read(state, depth)
        found.append(h_BTD)
        state = residual.write(state, depth, torch.sin(h_BTD * scales[depth]))
    return [*found, residual.finish(state)]


@layouts
@pytest.mark.parametrize("reads", ["one", "two", "auto"])
@pytest.mark.parametrize("way", ["quick", "slow"])
def test_reads_are_those_with_gradients_in_float64(layout, reads, way, monkeypatch):
    residual = trained(AttnRes(DIM, layout, eps=1e-3)).double()
    residual.reads = reads
    expected = inputs(residual, torch.float64)
    assert expected[-1].requires_grad
    if way == "slow":
        monkeypatch.setattr(quick, "_quick_reads", lambda impl: None)
    with torch.no_grad():
        actual = inputs(residual, torch.float64)
    for h_BTD, expected_BTD in zip(actual, expected, strict=True):
        torch.testing.assert_close(h_BTD, expected_BTD, atol=1e-12, rtol=1e-12)


@layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("reads", ["one", "two"])
@pytest.mark.parametrize("shape", [(1, 1), (5,), (2, 3, 4)], ids=str)
def test_rounding_is_within_the_budget(layout, dtype, reads, shape):
    residual = trained(AttnRes(DIM, layout, impl="reference"))
    for parameter in residual.parameters():
        parameter.data.copy_(parameter.to(dtype))  # so that all have the same function
    exact = inputs(copy.deepcopy(residual).double(), torch.float64, shape)[-1]
    plain = inputs(copy.deepcopy(residual).to(dtype), dtype, shape)[-1]
    actual: Any = AttnRes(DIM, layout)
    actual.load_state_dict(residual.state_dict())
    actual.reads = reads
    with torch.inference_mode():
        found = inputs(actual.to(dtype), dtype, shape)[-1]
    assert found.dtype == dtype
    assert_as_good_as(found, plain.detach(), exact.detach(), "output read")


@layouts
def test_one_phase_is_bit_for_bit_the_read_with_gradients(layout):
    residual = trained(AttnRes(DIM, layout))
    residual.reads = "one"
    expected = inputs(residual, torch.float32)
    with torch.no_grad():
        actual = inputs(residual, torch.float32)
    assert all(map(torch.equal, actual, expected))


@needs_cpu_kernel
def test_sums_and_reads_are_one_call_of_the_kernel_each(monkeypatch):
    """A block of three asks once; each of its other readers makes the sum and goes on from it."""
    kernel, calls = cpu.kernel().quick, []
    monkeypatch.setattr(quick, "_quick_reads", lambda impl: kernel)
    read = type(kernel).read

    def counting(self, queries, key_weights, rows, eps, has_terms=False, *rest):
        calls.append((len(queries), len(rows), has_terms))
        return read(self, queries, key_weights, rows, eps, has_terms, *rest)

    monkeypatch.setattr(type(kernel), "read", counting)
    residual = trained(AttnRes(DIM, BlockLayout((3, 3, 2))))
    residual.reads = "two"
    with torch.no_grad():
        inputs(residual, torch.float32)
    alone = [(1, 2, False), (1, 3, True)]  # readers 1 and 2, which have one block to ask
    later = [(1, 1, False), (1, 2, True)]
    assert calls == [*alone, (3, 3, True), *later, (3, 4, True), *later]


def _step(residual: AttnRes) -> None:
    optimizer = torch.optim.SGD(residual.parameters(), lr=1.0)
    inputs(residual, torch.float32)[-1].square().sum().backward()
    optimizer.step()


def _load(residual: AttnRes) -> None:
    residual.load_state_dict({name: 2 * x for name, x in residual.state_dict().items()})


def _edit(residual: AttnRes) -> None:
    with torch.no_grad():
        for parameter in residual.parameters():
            parameter.mul_(2)


def _edit_data(residual: AttnRes) -> None:
    """Which raises no version."""
    for parameter in residual.parameters():
        parameter.data.mul_(2)


def _to_and_back(residual: AttnRes) -> None:
    residual.to(torch.bfloat16).to(torch.float32)


def _replace(residual: AttnRes) -> None:
    readers: Any = list(residual.readers)[1:]
    for reader in readers:
        reader.query = nn.Parameter(-reader.query.detach())


CHANGES = [_step, _load, _edit, _edit_data, _to_and_back, _replace]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
@pytest.mark.parametrize("reads", ["one", "two"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_weight_is_out_of_date(change, reads, mode):
    residual = trained(AttnRes(DIM, BlockLayout((3, 3, 2))))
    residual.reads = reads
    with mode():
        before = inputs(residual, torch.float32)[-1]
    change(residual)
    fresh: Any = AttnRes(DIM, BlockLayout((3, 3, 2)))
    fresh.load_state_dict(residual.state_dict())
    fresh.reads = reads
    with mode():
        after = inputs(residual, torch.float32)[-1]
        assert torch.equal(after, inputs(fresh, torch.float32)[-1])
    assert not torch.equal(before, after)


def test_a_weight_that_changes_within_a_pass_is_noticed():
    residual = trained(AttnRes(DIM, BlockLayout((3, 3, 2))))
    residual.reads = "one"
    with torch.no_grad():
        state = residual.start(torch.randn(2, DIM))
        for depth in range(5):
            h_BTD, state = residual.read(state, depth)
            state = residual.write(state, depth, h_BTD.sin())
        before = residual.read(state, 5)[0]
        residual.readers[5].query.mul_(-1)  # type: ignore[union-attr]
        assert not torch.equal(residual.read(state, 5)[0], before)


@pytest.mark.parametrize("kind", [AttnRes, TwoPhase])
def test_a_state_is_tensors_that_stay_as_they_are(kind):
    residual = trained(kind(DIM, BlockLayout((3, 3, 2))))
    generator = torch.Generator().manual_seed(0)
    outs = [torch.randn(2, DIM, generator=generator) for _ in range(N + 1)]
    with torch.no_grad():
        state = residual.start(outs[0])
        states, reads = [state], []
        for depth in range(N):
            h_TD, after = residual.read(state, depth)
            reads.append(h_TD)
            state = residual.write(after, depth, outs[depth + 1])
            states.append(state)
        for depth, old in enumerate(states[:-1]):
            assert torch.equal(residual.read(old, depth)[0], reads[depth])
            again = pickle.loads(pickle.dumps(residual.write(old, depth, outs[depth + 1])))
            error = residual.read(again, depth + 1)[0] if depth + 1 < N else again.sources[-1]
            assert torch.isfinite(error).all()
    leaves = tree_leaves(state)
    assert all(isinstance(leaf, Tensor) for leaf in leaves if leaf is not None)


@layouts
@pytest.mark.parametrize("skipped", [[0, 1], [3, 4], [4, 5, 6], [6, 7]], ids=str)
def test_a_sublayer_may_be_written_without_a_read(layout, skipped):
    """After [4, 5, 6] two mixes of their group would be left, as many as depth 7 looks for."""
    generator = torch.Generator().manual_seed(0)
    outs = [torch.randn(2, DIM, generator=generator).double() for _ in range(N + 1)]
    residual = trained(AttnRes(DIM, layout)).double()
    residual.reads = "two"

    def run() -> list[Tensor]:
        state, found = residual.start(outs[0]), []
        for depth in range(N):
            if depth not in skipped:
                h_TD, state = residual.read(state, depth)
                found += [h_TD, state.sources[-1], *state.blocks]
            state = residual.write(state, depth, outs[depth + 1])
        return [*found, residual.finish(state)]

    expected = run()
    with torch.no_grad():
        for h_TD, expected_TD in zip(run(), expected, strict=True):
            torch.testing.assert_close(h_TD, expected_TD, atol=1e-12, rtol=1e-12)


def test_outputs_of_other_kinds_are_as_with_gradients():
    """In two parts, of a wider dtype, not contiguous."""
    residual = trained(AttnRes(DIM, BlockLayout((3, 3, 2)))).bfloat16()
    residual.reads = "one"

    def run() -> Tensor:
        generator = torch.Generator().manual_seed(0)
        state: Any = residual.start(torch.randn(DIM, 4, generator=generator).bfloat16().t())
        for depth in range(N):
            h_TD, state = residual.read(state, depth)
            kinds = [h_TD.float(), Parts(h_TD, h_TD * 2), h_TD.t().contiguous().t()]
            state = residual.write(state, depth, kinds[depth % 3])
        return residual.finish(state)

    expected = run()
    with torch.no_grad():
        assert torch.equal(run(), expected)


@pytest.mark.parametrize("value", [torch.randn(2, DIM + 1), "text"], ids=["shape", "kind"])
def test_a_wrong_output_is_refused(value):
    residual = AttnRes(DIM, BlockLayout((3, 3, 2)))
    with torch.no_grad(), pytest.raises(ValueError, match="the output of sublayer 0"):
        residual.write(residual.start(torch.randn(2, DIM)), 0, value)


def test_a_state_out_of_step_is_refused():
    residual = AttnRes(DIM, BlockLayout((3, 3, 2)))
    with torch.no_grad():
        state = residual.start(torch.randn(2, DIM))
        with pytest.raises(ValueError, match="1 sources, at depth 1 there are 2"):
            residual.read(state, 1)
        with pytest.raises(ValueError, match="1 sources, at depth 8 there are 4"):
            residual.finish(state)


def test_who_watches_sees_the_reads():
    """With gradients, under the compiler or with a hook on a reader nothing is hidden."""
    residual = trained(AttnRes(DIM, BlockLayout((3, 3, 2))))
    assert isinstance(residual.start(torch.randn(2, DIM)), DepthState)
    seen = []
    residual.readers[4].register_forward_hook(lambda *_: seen.append(4))
    residual.reads = "one"
    with torch.no_grad():
        assert isinstance(residual.start(torch.randn(2, DIM)), ReadingState)
        inputs(residual, torch.float32)
    assert seen == [4]


def test_gradients_may_begin_within_a_pass():
    """As where the first layers are frozen under no_grad."""
    residual = trained(AttnRes(DIM, BlockLayout((3, 3, 2)))).double()
    outs = [torch.randn(2, DIM).double() for _ in range(N + 1)]

    def run(n_frozen: int) -> Tensor:
        state = residual.start(outs[0])
        for depth in range(N):
            with torch.set_grad_enabled(depth >= n_frozen):
                _, state = residual.read(state, depth)
                state = residual.write(state, depth, outs[depth + 1])
        return residual.finish(state)

    expected, actual = run(0), run(4)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    last = residual.readers[-1].query
    of_both = [torch.autograd.grad(h.sum(), last)[0] for h in (actual, expected)]
    torch.testing.assert_close(*of_both, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("residual", ["full", "block"])
def test_text_and_state_dict_are_those_of_one_phase(residual):
    model = build(residual=residual).eval()
    texts = []
    for reads in ("one", "two", "auto"):
        model.residual.reads = reads
        texts.append(model.generate(tokens(), max_new_tokens=8, do_sample=False))
        assert "reads" not in str(model.config.to_dict())
        assert {name.rpartition(".")[2] for name in model.residual.state_dict()} == {
            "query",
            "key_weight",
        }
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    assert isinstance(model.residual, ReadsQuickly)


@needs_cpu_kernel
def test_a_read_and_the_norm_after_it_are_one_call(monkeypatch):
    """But at depth 0, where the norm has a hook and where it is the final one."""
    monkeypatch.setattr(quick, "_quick_reads", lambda impl: cpu.kernel().quick)
    model = build(residual="block").eval()
    model.residual.reads = "one"
    calls, forward = [], LlamaRMSNorm.forward

    def counting(norm, *arguments):
        calls.append(norm)
        return forward(norm, *arguments)

    def run(wanted=None):
        calls.clear()
        with torch.no_grad():
            logits = model(tokens(), use_cache=False).logits
        assert wanted is None or list(map(id, calls)) == list(map(id, wanted))
        return logits

    layers, final = model.model.layers, model.model.norm
    first = layers[0].input_layernorm
    monkeypatch.setattr(LlamaRMSNorm, "forward", counting)
    run()  # asks the class what it computes
    in_one_call = run(wanted=[first, final])
    layers[1].post_attention_layernorm.register_forward_hook(lambda *_: None)
    run(wanted=[first, layers[1].post_attention_layernorm, final])
    for norm in {m for m in model.modules() if isinstance(m, LlamaRMSNorm)} - {final}:
        norm.register_forward_hook(lambda *_: None)
    in_two = run()
    assert len(calls) == 2 * len(layers) + 1
    assert (in_one_call - in_two).abs().max() <= 1e-5 * in_two.abs().max()


def test_who_replaces_a_residuals_read_is_asked():
    model, depths = build(residual="full").eval(), []
    read = model.residual.read

    def listening(state, depth):
        depths.append(depth)
        return read(state, depth)

    model.residual.read = listening
    with torch.no_grad():
        model(tokens(), use_cache=False)
    assert depths == list(range(model.residual.n_sublayers))


@pytest.mark.slow
def test_a_compiled_model_without_gradients_is_the_model():
    model = build(residual="block").eval()
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        expected = model(tokens(), use_cache=False).logits
        actual = compiled(tokens(), use_cache=False).logits
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_layers_that_are_compiled_one_by_one_take_the_state_of_others():
    model = build(residual="block").eval()
    model.residual.reads = "two"
    with torch.no_grad():
        expected = model(tokens(), use_cache=False).logits
        layer = model.model.layers[1]
        layer.forward = torch.compile(layer.forward, backend="eager")
        actual = model(tokens(), use_cache=False).logits
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()
