"""torch.func and forward-mode derivatives: a kernel that knows them not says so."""

from collections.abc import Callable

import pytest
import torch
from error_budget import random_read
from implementations import IMPLEMENTATIONS
from torch import Tensor
from torch.autograd import forward_ad

from attnres import depth_attention
from attnres.ops import own

READ = random_read(2, 3, 8)
every_impl = pytest.mark.parametrize("impl", IMPLEMENTATIONS)
MESSAGE = r"neither torch\.func nor forward-mode"


def _forward_mode(read: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(read(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


@pytest.mark.parametrize("impl", sorted({*IMPLEMENTATIONS} & {"cpu", "reference"}))
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
        with pytest.raises(RuntimeError, match=MESSAGE):
            transform(read, READ.sources[0])


def test_plain_pytorch_with_a_backward_of_its_own_refuses_a_gradient_of_torch_func():
    def read(query_D: Tensor) -> Tensor:
        return depth_attention(query_D, READ.sources, READ.key_weight_D, impl="closed_form").sum()

    with pytest.raises(RuntimeError, match=MESSAGE):
        torch.func.grad(read)(READ.query_D)


@every_impl
@pytest.mark.parametrize("are_owned", [False, True])
def test_many_upstream_gradients_at_once_are_each_of_them(impl, are_owned):
    read = random_read(3, 4, 5, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (read.query_D, read.key_weight_D, *read.sources)]
    query_D, key_weight_D, *sources = leaves
    sources = [own(source) for source in sources] if are_owned else sources
    mix_D = depth_attention(query_D, sources, key_weight_D, impl=impl)
    upstream_ND = torch.randn(3, 4, 5, dtype=torch.float64)
    at_once = torch.autograd.grad(
        mix_D, leaves, upstream_ND, is_grads_batched=True, retain_graph=True
    )
    for i, upstream_D in enumerate(upstream_ND):
        alone = torch.autograd.grad(mix_D, leaves, upstream_D, retain_graph=True)
        torch.testing.assert_close([gradient[i] for gradient in at_once], list(alone))


def test_forward_mode_of_something_else_goes_by():
    with forward_ad.dual_level():
        mix_D = depth_attention(READ.query_D, READ.sources, READ.key_weight_D)
    torch.testing.assert_close(
        mix_D, depth_attention(READ.query_D, READ.sources, READ.key_weight_D)
    )
