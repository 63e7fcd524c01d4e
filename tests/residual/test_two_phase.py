"""Two phases give what one gives, for every layout and every group of readers."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from error_budget import assert_as_good_as
from implementations import IMPLEMENTATIONS
from torch import Tensor, nn

from attnres import AttnRes, BlockLayout
from attnres.residual import (
    AttnResConfig,
    DepthReader,
    Residual,
    TwoPhase,
    TwoPhaseConfig,
    depth_reader,
)
from attnres.residual import two_phase as module
from attnres.residual.groups import Group, groups

DIM = 8
Tensors = dict[str, Tensor]
Method = Residual[Any]


def _layouts(n_sublayers: int) -> list[BlockLayout]:
    """Every way to cut the sublayers into blocks."""
    found = []
    for cuts in range(2 ** (n_sublayers - 1)):
        inner = [i + 1 for i in range(n_sublayers - 1) if cuts >> i & 1]
        sizes = tuple(end - start for start, end in pairwise([0, *inner, n_sublayers]))
        found.append(BlockLayout(sizes))
    return found


def _forward_backward(residual: Method, dtype: torch.dtype, share: bool = False) -> Tensors:
    """Inputs of all sublayers, the output read and every gradient; `share` by `backward()`."""
    torch.manual_seed(2)
    n = residual.n_sublayers
    residual = residual.double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    scales = [torch.randn(DIM, dtype=torch.float64) for _ in range(n)]
    embed = torch.randn(2, 3, DIM, dtype=torch.float64)
    residual = residual.to(dtype)
    leaves = [x.to(dtype).requires_grad_() for x in (embed, *scales)]
    embed_BTD, *scales = leaves
    state = residual.start(embed_BTD)
    found = {}
    for depth in range(n):
        h_BTD, state = residual.read(state, depth)
        found[f"input {depth}"] = h_BTD.detach()
        state = residual.write(state, depth, torch.sin(h_BTD * scales[depth]))
    out_BTD = residual.finish(state)
    names = ["embed", *(f"scale {d}" for d in range(n))]
    names += [name for name, _ in residual.named_parameters()]
    leaves += list(residual.parameters())
    upstream_BTD = torch.randn(2, 3, DIM, dtype=torch.float64).to(dtype)
    if share:
        out_BTD.backward(upstream_BTD)
        gradients = [leaf.grad for leaf in leaves]
    else:
        gradients = torch.autograd.grad(out_BTD, leaves, upstream_BTD)
    found["out"] = out_BTD.detach()
    for name, gradient in zip(names, gradients, strict=True):
        assert gradient is not None, name
        found[name] = gradient
    return found


def _assert_close(actual: Tensors, expected: Tensors) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, atol=1e-12, rtol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("layout", _layouts(5), ids=lambda layout: str(layout.sizes))
@pytest.mark.parametrize("readers_per_group", [None, 1, 2, 3, 4, 5, 9])
def test_every_layout_and_group_equals_one_phase_in_float64(layout, readers_per_group):
    residual = TwoPhase(DIM, layout, readers_per_group, eps=1e-3)
    expected = _forward_backward(AttnRes(DIM, layout, eps=1e-3), torch.float64)
    _assert_close(_forward_backward(residual, torch.float64), expected)
    _assert_close(_forward_backward(residual, torch.float64, share=True), expected)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "layout", [BlockLayout.full(24), BlockLayout.of(24, n_blocks=8)], ids=["full", "block"]
)
def test_every_implementation_equals_one_phase_at_24_sublayers(impl, layout):
    expected = _forward_backward(AttnRes(DIM, layout, impl="reference"), torch.float64)
    _assert_close(_forward_backward(TwoPhase(DIM, layout, impl=impl), torch.float64), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("readers_per_group", [None, 3])
@pytest.mark.parametrize(
    "layout", [BlockLayout.full(12), BlockLayout.of(12, n_blocks=4)], ids=["full", "block"]
)
def test_rounding_is_within_the_budget_of_one_phase(layout, readers_per_group, dtype):
    exact = _forward_backward(AttnRes(DIM, layout, impl="reference"), torch.float64)
    plain = _forward_backward(AttnRes(DIM, layout, impl="reference"), dtype)
    actual = _forward_backward(TwoPhase(DIM, layout, readers_per_group), dtype)
    for group in ("input", "scale", "embed", "out", "query", "key_weight"):
        names = [name for name in exact if group in name]
        errors = (torch.stack([x[name] for name in names]) for x in (actual, plain, exact))
        assert_as_good_as(*errors, name=group)


def test_the_groups_of_blocks_are_their_readers_and_the_output_read_is_of_the_last():
    assert groups(BlockLayout((3, 3, 2))) == (
        *[Group(last=2, n_asked=0)] * 3,  # there is the embedding alone
        *[Group(last=5, n_asked=2)] * 3,
        *[Group(last=8, n_asked=3)] * 3,
    )
    assert groups(BlockLayout((2, 1, 1))) == (
        *[Group(last=1, n_asked=0)] * 2,
        Group(last=2, n_asked=0),  # one reader asks for itself
        *[Group(last=4, n_asked=3)] * 2,
    )
    assert groups(BlockLayout((4,))) == (Group(last=4, n_asked=0),) * 5


def test_the_groups_of_full_are_as_many_as_their_readers():
    assert groups(BlockLayout.full(9)) == (
        *[Group(last=2, n_asked=0)] * 3,
        *[Group(last=5, n_asked=4)] * 3,
        *[Group(last=9, n_asked=7)] * 4,
    )
    assert {g.last for g in groups(BlockLayout.full(96))} == {*range(9, 90, 10), 96}
    assert groups(BlockLayout.full(1)) == (Group(last=1, n_asked=0),) * 2


def test_groups_may_cut_blocks():
    assert groups(BlockLayout((3, 3, 2)), 4) == (
        *[Group(last=3, n_asked=0)] * 4,
        *[Group(last=8, n_asked=2)] * 5,  # the third source is finished within the group
    )


GOLDEN = {
    (4, 4): [1, 1.5, 3.5, 7.5, 15.5, 21, 127 / 3, 85, 511 / 3],
    (1,) * 8: [(2**n - 1) / n for n in range(1, 10)],
    (4, 4, 2): [1, 1.5, 3.5, 7.5, 15.5, 21, 127 / 3, 85, 511 / 3, 255.75, 511.75],
}


@pytest.mark.parametrize(("sizes", "golden"), GOLDEN.items(), ids=str)
@pytest.mark.parametrize("readers_per_group", [None, 1, 2, 3, 5, 20])
def test_golden_schedule(sizes, golden, readers_per_group):
    """The embedding is 1, sublayer i returns 2^i: every wrong list of sources shows."""
    residual = TwoPhase(DIM, BlockLayout(sizes), readers_per_group).double()
    state = residual.start(torch.ones(2, DIM, dtype=torch.float64))
    inputs = []
    for depth in range(residual.n_sublayers):
        h_BTD, state = residual.read(state, depth)
        inputs.append(h_BTD)
        state = residual.write(state, depth, torch.full_like(h_BTD, 2.0 ** (depth + 1)))
    inputs.append(residual.finish(state))
    for actual, value in zip(inputs, golden, strict=True):
        expected = torch.full((2, DIM), float(value), dtype=torch.float64)
        torch.testing.assert_close(actual, expected, atol=0, rtol=1e-14)


def _random(residual: Method) -> Method:
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    return residual


def _inputs(residual: Method, embed_BTD: Tensor) -> list[Tensor]:
    state, inputs = residual.start(embed_BTD), []
    for depth in range(residual.n_sublayers):
        h_BTD, state = residual.read(state, depth)
        inputs.append(h_BTD)
        state = residual.write(state, depth, torch.sin(h_BTD))
    return [*inputs, residual.finish(state)]


@pytest.mark.parametrize("settings", [{}, {"n_blocks": 3}, {"sublayers_per_block": 4}], ids=str)
def test_a_checkpoint_of_one_loads_in_the_other(settings):
    one = _random(AttnResConfig(**settings).build(DIM, 6))
    two = TwoPhaseConfig(**settings).build(DIM, 6)
    two.load_state_dict(one.state_dict(), strict=True)
    assert list(two.state_dict()) == list(one.state_dict())
    embed_BTD = torch.randn(2, 3, DIM)
    for actual, expected in zip(_inputs(two, embed_BTD), _inputs(one, embed_BTD), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    back = AttnResConfig(**settings).build(DIM, 6)
    back.load_state_dict(two.state_dict(), strict=True)
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), one.parameters(), strict=True))
    function = {"method": "attn_res", **AttnResConfig(**settings).describe(6)}
    assert TwoPhaseConfig(readers_per_group=2, **settings).describe(6) == function


@pytest.mark.parametrize("readers_per_group", [None, 4])
def test_weights_are_those_of_one_phase(readers_per_group):
    layout = BlockLayout.of(7, sublayers_per_block=3)
    one: Method = _random(AttnRes(DIM, layout))
    two: Method = TwoPhase(DIM, layout, readers_per_group)
    two.load_state_dict(one.state_dict())
    embed_TD, outs = torch.randn(2, DIM), torch.randn(7, 2, DIM)
    first, second = one.start(embed_TD), two.start(embed_TD)
    for depth in range(7):
        assert torch.equal(two.weights(second, depth), one.weights(first, depth))
        assert torch.equal(two.stream(second), one.stream(first))
        _, second = two.read(second, depth)
        assert torch.equal(two.weights(second, depth), one.weights(first, depth))
        first = one.write(first, depth, outs[depth])
        second = two.write(second, depth, outs[depth])
    assert torch.equal(two.weights(second, 7), one.weights(first, 7))


def test_a_finished_source_is_read_once_for_a_group_and_a_fresh_block_takes_its_mix(monkeypatch):
    asked, merged = [], []
    ask, merge = module.split_queries, depth_reader.merge

    def asking(queries_QD, sources, *args, **kwargs):
        asked.append((len(queries_QD), len(sources)))
        return ask(queries_QD, sources, *args, **kwargs)

    def merging(mix_D, lse, sources, *args, **kwargs):
        merged.append(len(sources))
        return merge(mix_D, lse, sources, *args, **kwargs)

    monkeypatch.setattr(module, "split_queries", asking)
    monkeypatch.setattr(depth_reader, "merge", merging)
    _inputs(TwoPhase(DIM, BlockLayout((3, 3, 2))), torch.randn(2, DIM))
    assert asked == [(3, 2), (3, 3)]
    assert merged == [1, 1, 1, 1]  # readers 4, 5, 7 and the output read
    asked.clear()
    merged.clear()
    _inputs(TwoPhase(DIM, BlockLayout.full(6), 3), torch.randn(2, DIM))
    assert asked == [(4, 4)]
    assert merged == [1, 2, 3]


def test_the_state_holds_one_mix_a_reader_still_to_come():
    residual = TwoPhase(DIM, BlockLayout((2, 3, 1)))
    state: Any = residual.start(torch.randn(2, DIM))
    counts = []
    for depth in range(6):
        h_TD, state = residual.read(state, depth)
        state = residual.write(state, depth, h_TD)
        assert len(state.lses) == len(state.mixes)
        counts.append(len(state.mixes))
    assert counts == [0, 0, 2, 1, 0, 1]


@pytest.mark.parametrize("skipped", [*([depth] for depth in range(7)), [3, 4, 5]], ids=str)
def test_a_sublayer_may_be_skipped_and_a_read_repeated(skipped):
    """Dropped layers write without having read; who reads twice gets the same.

    After depths 3 to 5 two mixes of their group would be left, as many as depth 6 looks for.
    """
    layout = BlockLayout((2, 3, 2))
    one: Method = _random(AttnRes(DIM, layout)).double()
    two: Method = TwoPhase(DIM, layout).double()
    two.load_state_dict(one.state_dict())
    outs = torch.randn(7, 2, DIM, dtype=torch.float64)
    first, second = one.start(outs[0]), two.start(outs[0])
    for depth in range(7):
        if depth not in skipped:
            expected, first = one.read(first, depth)
            for _ in range(2):
                h_TD, second = two.read(second, depth)
                torch.testing.assert_close(h_TD, expected, atol=1e-12, rtol=1e-12)
        first = one.write(first, depth, outs[depth])
        second = two.write(second, depth, outs[depth])
    expected = one.finish(first)
    torch.testing.assert_close(two.finish(second), expected, atol=1e-12, rtol=1e-12)


def test_the_lse_of_a_bfloat16_state_stays_as_wide_as_the_arithmetic():
    residual = TwoPhase(DIM, BlockLayout((2, 2))).bfloat16()
    state: Any = residual.start(torch.randn(2, DIM).bfloat16())
    for depth in range(2):
        h_TD, state = residual.read(state, depth)
        state = residual.write(state, depth, h_TD)
    _, state = residual.read(state, 2)
    assert {x.dtype for x in state.mixes} == {torch.bfloat16}
    assert {x.dtype for x in state.lses} == {torch.float32}


def test_every_query_learns_from_zero():
    residual = TwoPhase(DIM, BlockLayout.of(7, sublayers_per_block=3))
    torch.manual_seed(0)
    _inputs(residual, torch.randn(2, 3, DIM))[-1].square().sum().backward()
    for reader in list(residual.readers)[1:]:
        assert isinstance(reader, DepthReader)
        assert reader.query.grad is not None
        assert reader.query.grad.abs().max() > 1e-6


@pytest.mark.parametrize("value", [0, -2, 1.5, True, "3"])
def test_a_group_needs_a_positive_number_of_readers(value):
    with pytest.raises(ValueError, match=f"readers_per_group .* got {value!r}"):
        TwoPhase(DIM, BlockLayout.full(4), value)


def test_a_state_out_of_step_is_refused():
    residual = TwoPhase(DIM, BlockLayout.of(4, sublayers_per_block=2))
    state = residual.start(torch.randn(2, DIM))
    with pytest.raises(ValueError, match="1 sources, at depth 1 there are 2"):
        residual.read(state, 1)
    with pytest.raises(ValueError, match="1 sources, at depth 4 there are 3"):
        residual.finish(state)
