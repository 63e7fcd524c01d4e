"""Every method computes in float32 at least, and rounds to the stream's dtype once a step."""

from typing import Any, cast

import pytest
import torch
from depth_methods import CONFIGS, random_residual
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from attnres.residual import DenseFormerConfig, MuddFormerConfig, format_residual

DIM, N_SUBLAYERS = 14, 6
# what attends over depth rounds a mix and what it is merged with or multiplied by apart; an average
# of states is one of the newest as it is kept, rounded
AVERAGES = (DenseFormerConfig, MuddFormerConfig)
ONE_STEP = [c for c in CONFIGS if not hasattr(c, "layout") and not isinstance(c, AVERAGES)]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=format_residual)


def _to(state: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) else x, state)


def _assert_equal(actual: Any, expected: Any) -> None:
    for a, b in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        assert a is b or torch.equal(cast(Tensor, a), cast(Tensor, b))


@pytest.mark.parametrize("config", ONE_STEP, ids=format_residual)
@torch.no_grad()
def test_a_bfloat16_stream_is_rounded_once_a_step(config):
    residual = random_residual(config, DIM, N_SUBLAYERS)
    state = residual.start(torch.randn(2, 3, DIM).bfloat16())
    for depth in range(N_SUBLAYERS):
        out_BTD = torch.randn(2, 3, DIM).bfloat16()
        exact_BTD, exact = residual.read(_to(state, torch.float32), depth)
        exact = residual.write(exact, depth, out_BTD.float())
        h_BTD, state = residual.read(state, depth)
        state = residual.write(state, depth, out_BTD)
        _assert_equal(h_BTD, _to(exact_BTD, torch.bfloat16))
        _assert_equal(state, _to(exact, torch.bfloat16))
    exact_BTD = residual.finish(_to(state, torch.float32))
    assert torch.equal(residual.finish(state), exact_BTD.bfloat16())


@every_config
@torch.no_grad()
def test_autocast_changes_no_bit(config):
    residual = random_residual(config, DIM, N_SUBLAYERS)
    state = residual.start(torch.randn(2, 3, DIM))
    for depth in range(N_SUBLAYERS):
        out_BTD = torch.randn(2, 3, DIM)
        expected = residual.read(state, depth)
        written = residual.write(expected[1], depth, out_BTD)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _assert_equal(residual.read(state, depth), expected)
            _assert_equal(residual.write(expected[1], depth, out_BTD), written)
        state = written
