"""Attention Residuals against numbers worked out by hand and loops written from the paper."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnres import AttnRes, BlockLayout
from attnres.residual import DepthReader, DepthState

DIM = 8
BLOCK = [1, 1.5, 3.5, 7.5, 15.5, 21, 127 / 3, 85, 511 / 3]
FULL = [(2**n - 1) / n for n in range(1, 10)]
SHORT_LAST = [*BLOCK, 255.75, 511.75]


def _random_queries(residual: AttnRes) -> AttnRes:
    generator = torch.Generator().manual_seed(1)
    for parameter in residual.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data.add_(noise)
    return residual


def _run(residual: AttnRes, embed_BTD: Tensor, sublayers, by_checkpoint: bool = False):
    """Inputs of all sublayers and the output read, and the states that they were read from."""
    state = residual.start(embed_BTD)
    inputs, states = [], [state]

    def step(depth, state):
        h_BTD, state = residual.read(state, depth)
        return h_BTD, residual.write(state, depth, sublayers[depth](h_BTD))

    for depth in range(residual.n_sublayers):
        run = partial(checkpoint, step, use_reentrant=False) if by_checkpoint else step
        h_BTD, state = run(depth, state)
        inputs.append(h_BTD)
        states.append(state)
    return [*inputs, residual.finish(state)], states


@pytest.mark.parametrize("by_checkpoint", [False, True])
@pytest.mark.parametrize(
    ("layout", "golden"),
    [
        (BlockLayout.of(8, sublayers_per_block=4), BLOCK),
        (BlockLayout.full(8), FULL),
        (BlockLayout.of(10, sublayers_per_block=4), SHORT_LAST),
    ],
    ids=["block", "full", "short last block"],
)
def test_golden_schedule(layout, golden, by_checkpoint):
    """The embedding is 1, sublayer i returns 2^i: every wrong list of sources shows."""
    residual = AttnRes(DIM, layout).double()
    sublayers = [lambda h, i=i: torch.full_like(h, 2.0**i) for i in range(1, 11)]
    embed_BTD = torch.ones(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    inputs, states = _run(residual, embed_BTD, sublayers, by_checkpoint)
    for actual, value in zip(inputs, golden, strict=True):
        expected = torch.full((2, 3, DIM), float(value), dtype=torch.float64)
        torch.testing.assert_close(actual, expected, atol=0, rtol=1e-14)
    for state in states:
        addresses = [source.data_ptr() for source in state.sources]
        assert len(set(addresses)) == len(addresses)
    assert len(states[-1].sources) == layout.n_sources(layout.n_sublayers)


def _mix(sources: list[Tensor], query_D: Tensor, gain_D: Tensor, eps: float) -> Tensor:
    logits = [
        (v / (v.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gain_D * query_D).sum(-1)
        for v in sources
    ]
    alpha_SBT = torch.softmax(torch.stack(logits), 0)
    return torch.einsum("sbt,sbtd->btd", alpha_SBT, torch.stack(sources))


def _full_loop(readers, embed_BTD, sublayers, eps):
    """h_l = depth attention over the embedding and every output before l (section 3.1)."""
    values, hidden = [embed_BTD], embed_BTD
    for sublayer, (query_D, gain_D) in zip(sublayers, readers, strict=True):
        values.append(sublayer(hidden))
        hidden = _mix(values, query_D, gain_D, eps)
    return hidden


def _block_loop(readers, embed_BTD, sublayers, eps, block_size):
    """Sources are sums over slices of the list of all outputs (section 3.2)."""
    outputs, hidden = [], embed_BTD
    for sublayer, (query_D, gain_D) in zip(sublayers, readers, strict=True):
        outputs.append(sublayer(hidden))
        slices = range(0, len(outputs), block_size)
        sums = [torch.stack(outputs[i : i + block_size]).sum(0) for i in slices]
        hidden = _mix([embed_BTD, *sums], query_D, gain_D, eps)
    return hidden


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 6, 7])
def test_equals_the_written_out_loop_with_all_gradients(block_size):
    torch.manual_seed(0)
    layout = BlockLayout.of(6, sublayers_per_block=block_size)
    residual = _random_queries(AttnRes(DIM, layout, eps=1e-3).double())
    linears = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(6)).double()
    sublayers = [nn.Sequential(linear, nn.Tanh()) for linear in linears]
    embed_BTD = torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    upstream_BTD = torch.randn(2, 3, DIM, dtype=torch.float64)
    inputs, _ = _run(residual, embed_BTD, sublayers)
    readers = [(r.query, r.key_weight) for r in residual.readers if isinstance(r, DepthReader)]
    if block_size == 1:
        expected = _full_loop(readers, embed_BTD, sublayers, 1e-3)
    else:
        expected = _block_loop(readers, embed_BTD, sublayers, 1e-3, block_size)
    torch.testing.assert_close(inputs[-1], expected, atol=1e-12, rtol=1e-12)
    leaves = [embed_BTD, *residual.parameters(), *linears.parameters()]
    actual = torch.autograd.grad(inputs[-1], leaves, upstream_BTD)
    for gradient, value in zip(
        actual, torch.autograd.grad(expected, leaves, upstream_BTD), strict=True
    ):
        torch.testing.assert_close(gradient, value, atol=1e-12, rtol=1e-12)


def _written(layout: BlockLayout, n_written: int, dtype=torch.float32, dim=DIM) -> Any:
    residual = AttnRes(dim, layout)
    state = residual.start(torch.randn(2, 3, dim).to(dtype))
    for depth in range(n_written):
        state = residual.write(state, depth, torch.randn(2, 3, dim).to(dtype))
    return state


@pytest.mark.parametrize("depth", [1, 4, 7, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_large_query_selects_one_source_of_its_read(depth, sign):
    layout = BlockLayout.of(8, sublayers_per_block=3)
    residual = AttnRes(DIM, layout)
    blocks = tuple(torch.ones(2, DIM) * (i + 1) for i in range(layout.n_sources(depth)))
    for i, block in enumerate(blocks):
        block[:, 0] *= -1.0 if i == 1 else 1.0
        block[:, 1] *= 0 if i == 0 else 1.0
    state = DepthState(blocks)
    reader = residual.readers[depth]
    assert isinstance(reader, DepthReader)
    unit_D = torch.nn.functional.one_hot(torch.tensor(0 if sign < 0 else 1), DIM).float()
    reader.query.data = unit_D * 100 * sign
    alpha_S = residual.weights(state, depth)
    h_BTD = residual.finish(state) if depth == 8 else residual.read(state, depth)[0]
    if sign < 0:
        torch.testing.assert_close(alpha_S[1], torch.ones(2))
        torch.testing.assert_close(h_BTD, blocks[1])
    else:
        torch.testing.assert_close(alpha_S[0], torch.zeros(2))
    other = 3
    other_state = _written(layout, other)
    mean_BTD = torch.stack(other_state.sources).mean(0)
    if depth != other:
        torch.testing.assert_close(residual.read(other_state, other)[0], mean_BTD)


def test_the_output_read_has_its_own_query_and_takes_the_unfinished_block():
    layout = BlockLayout.of(5, sublayers_per_block=2)
    residual = AttnRes(DIM, layout)
    state = _written(layout, 5)
    torch.testing.assert_close(residual.finish(state), torch.stack(state.sources).mean(0))
    assert len(state.sources) == 4
    assert residual.weights(state, 5).shape == (4, 2, 3)
    residual.finish(state).square().sum().backward()
    with_gradient = [n for n, p in residual.named_parameters() if p.grad is not None]
    assert with_gradient == ["readers.5.query", "readers.5.key_weight"]


def test_every_query_learns_from_zero_and_the_first_read_owns_no_parameter():
    residual = AttnRes(DIM, BlockLayout.of(7, sublayers_per_block=3))
    assert not list(residual.readers[0].parameters())
    assert sum(p.numel() for p in residual.parameters()) == 7 * 2 * DIM
    torch.manual_seed(0)
    sublayers = [nn.Sequential(nn.Linear(DIM, DIM), nn.GELU()) for _ in range(7)]
    inputs, _ = _run(residual, torch.randn(2, 3, DIM), sublayers)
    inputs[-1].square().sum().backward()
    for reader in list(residual.readers)[1:]:
        assert isinstance(reader, DepthReader)
        assert reader.query.grad is not None
        assert reader.query.grad.abs().max() > 1e-6


def test_the_first_read_is_the_embedding_itself():
    residual = AttnRes(DIM, BlockLayout.full(2))
    embed_BTD = torch.randn(2, DIM)
    h_BTD, _ = residual.read(residual.start(embed_BTD), 0)
    assert h_BTD is embed_BTD
    assert torch.equal(residual.weights(residual.start(embed_BTD), 0), torch.ones(1, 2))


def test_values_keep_their_size_in_a_read():
    residual = _random_queries(AttnRes(DIM, BlockLayout.full(2)))
    embed_BTD = torch.randn(2, DIM)
    state = residual.write(residual.start(embed_BTD), 0, embed_BTD * 1000)
    torch.testing.assert_close(
        residual.weights(state, 1), torch.full((2, 2), 0.5), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(residual.read(state, 1)[0], 500.5 * embed_BTD, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("branch", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 4])
def test_the_stream_keeps_the_dtype_of_the_embedding(stream, branch, size):
    residual = _random_queries(AttnRes(DIM, BlockLayout.of(6, sublayers_per_block=size)))
    sublayers = [lambda h, i=i: (h * (i + 1)).to(branch) for i in range(6)]
    inputs, states = _run(residual, torch.randn(2, DIM, dtype=stream), sublayers)
    assert {h.dtype for h in inputs} == {stream}
    assert {source.dtype for state in states for source in state.sources} == {stream}


def test_no_state_is_changed_in_place():
    residual = _random_queries(AttnRes(DIM, BlockLayout.of(6, sublayers_per_block=4)))
    states, copies = [residual.start(torch.randn(2, DIM))], []
    for depth in range(6):
        copies.append([source.clone() for source in states[-1].sources])
        _, state = residual.read(states[-1], depth)
        states.append(residual.write(state, depth, torch.randn(2, DIM)))
    residual.finish(states[-1])
    for state, copied in zip(states, copies, strict=False):
        assert len(state.sources) == len(copied)
        for source, copy in zip(state.sources, copied, strict=True):
            assert torch.equal(source, copy)


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0,)], ids=str)
def test_tokens_are_read_alone_whatever_they_are(shape):
    """Image patches, graph nodes, one vector: permuting tokens permutes outputs."""
    residual = _random_queries(AttnRes(DIM, BlockLayout.of(5, sublayers_per_block=2)))
    sublayers = [torch.tanh, torch.sin, torch.cos, torch.tanh, torch.sin]
    tokens = torch.randn(math.prod(shape), DIM)
    order = torch.randperm(len(tokens))
    inputs, _ = _run(residual, tokens.reshape(*shape, DIM), sublayers)
    permuted, _ = _run(residual, tokens[order], sublayers)
    for actual, other in zip(inputs, permuted, strict=True):
        assert actual.shape == (*shape, DIM)
        torch.testing.assert_close(actual.reshape(-1, DIM)[order], other)


def test_the_stream_is_the_sum_that_was_last_added_to():
    residual = AttnRes(DIM, BlockLayout.of(4, sublayers_per_block=2))
    outs = list(torch.randn(3, 2, DIM))
    state = residual.start(torch.randn(2, DIM))
    assert residual.stream(state) is state.blocks[0]
    state = residual.write(state, 0, outs[0])
    torch.testing.assert_close(residual.stream(state), outs[0])
    state = residual.write(state, 1, outs[1])
    torch.testing.assert_close(residual.stream(state), outs[0] + outs[1])
    state = residual.write(state, 2, outs[2])
    torch.testing.assert_close(residual.stream(state), outs[2])
