"""Delta AttnRes by hand: the stream, and attention over all of its parts besides."""

from typing import Any

import pytest
import torch
from depth_methods import random_residual, run_alone
from torch import Tensor

from attnres.layout import BlockLayout
from attnres.ops.reference import depth_attention
from attnres.residual import Delta, DeltaConfig, format_residual

DIM, N_SUBLAYERS = 5, 8
CONFIGS = [DeltaConfig(), DeltaConfig(sublayers_per_block=3), DeltaConfig(n_blocks=1)]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=format_residual)


def sources_by_hand(layout: BlockLayout, outputs: list[Tensor], depth: int) -> list[Tensor]:
    """The embedding, each finished block's sum and the partial sum, none of it a running sum."""
    sources, start = [outputs[0]], 1
    for size in layout.sizes:
        block = outputs[start : min(start + size, depth + 1)]
        if block:
            sources.append(torch.stack(block).sum(0))
        start += size
    return sources


@every_config
def test_reads_are_those_done_by_hand(config):
    residual = random_residual(config, DIM, N_SUBLAYERS).double()
    assert isinstance(residual, Delta)
    reads, outputs = run_alone(residual, torch.randn(2, 3, DIM, dtype=torch.float64))
    assert torch.equal(reads[0], outputs[0])
    for depth in range(1, N_SUBLAYERS + 1):
        reader: Any = residual.readers[depth]
        sources = sources_by_hand(residual.layout, outputs, depth)
        mix = depth_attention(reader.query, sources, reader.key_weight, reader.eps)
        expected = torch.stack(outputs[: depth + 1]).sum(0) + mix
        torch.testing.assert_close(reads[depth], expected, atol=1e-12, rtol=1e-12)


@every_config
def test_with_zero_queries_a_read_is_the_stream_and_a_part_of_it(config):
    residual = config.build(DIM, N_SUBLAYERS).double()
    reads, outputs = run_alone(residual, torch.randn(2, DIM, dtype=torch.float64))
    for depth in range(1, N_SUBLAYERS + 1):
        stream = torch.stack(outputs[: depth + 1]).sum(0)
        factor = 1 + 1 / residual.layout.n_sources(depth)
        torch.testing.assert_close(reads[depth], factor * stream, atol=1e-12, rtol=1e-12)


def test_finished_blocks_alone_would_be_another_start():
    """The partial sum is a source: without it a read is no multiple of the stream."""
    residual = DeltaConfig(sublayers_per_block=3).build(DIM, N_SUBLAYERS).double()
    reads, outputs = run_alone(residual, torch.randn(DIM, dtype=torch.float64))
    finished = sources_by_hand(residual.layout, outputs, 5)[:-1]
    stream = torch.stack(outputs[:6]).sum(0)
    released = stream + torch.stack(finished).mean(0)
    factor = (released @ stream) / stream.square().sum()
    assert (released - factor * stream).norm() > 1e-2 * stream.norm()
    factor = (reads[5] @ stream) / stream.square().sum()
    assert (reads[5] - factor * stream).norm() < 1e-12 * stream.norm()


def test_the_stream_is_read_and_written_besides():
    full, block = (config.build(DIM, N_SUBLAYERS) for config in CONFIGS[:2])
    assert [full.traffic(depth) for depth in (0, 1, 7)] == [(3, 1), (3, 2), (9, 2)]
    assert [block.traffic(depth) for depth in (3, 4)] == [(3, 2), (6, 3)]


def test_what_no_shape_shows_is_described():
    assert DeltaConfig(n_blocks=2).describe(8)["layout"]["sizes"] == [4, 4]
    with pytest.raises(ValueError, match="exactly one"):
        DeltaConfig(n_blocks=2, layers_per_block=2)
