"""torch.func and forward-mode derivatives: a kernel that knows them not says so."""

from collections.abc import Callable

import pytest
import torch
from error_budget import random_read
from implementations import IMPLEMENTATIONS
from torch import Tensor
from torch.autograd import forward_ad

from attnres import depth_attention

READ = random_read(2, 3, 8)
every_impl = pytest.mark.parametrize("impl", sorted({*IMPLEMENTATIONS} & {"cpu", "reference"}))


def _forward_mode(read: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(read(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


@every_impl
@pytest.mark.parametrize(
    "transform",
    [
        lambda read, x: torch.func.grad(lambda v: read(v).sum())(x),
        lambda read, x: torch.func.jvp(read, (x,), (torch.ones_like(x),))[1],
        lambda read, x: torch.vmap(read)(torch.stack([x, -x])),
        _forward_mode,
    ],
    ids=["grad", "jvp", "vmap", "forward mode"],
)
def test_the_reference_is_transformed_and_a_kernel_refuses(impl, transform):
    def read(source: Tensor) -> Tensor:
        return depth_attention(
            READ.query_D, [source, READ.sources[1]], READ.key_weight_D, impl=impl
        )

    if impl == "reference":
        assert transform(read, READ.sources[0]).isfinite().all()
    else:
        with pytest.raises(RuntimeError, match=r"neither torch\.func nor forward-mode"):
            transform(read, READ.sources[0])


def test_forward_mode_of_something_else_goes_by():
    with forward_ad.dual_level():
        mix_D = depth_attention(READ.query_D, READ.sources, READ.key_weight_D)
    torch.testing.assert_close(
        mix_D, depth_attention(READ.query_D, READ.sources, READ.key_weight_D)
    )
