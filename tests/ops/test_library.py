"""The CPU kernel as an op of torch.library keeps torch's rules for such ops."""

import pytest
import torch
from implementations import needs_cpu_kernel

from attnres.ops.backends import implementation

pytestmark = needs_cpu_kernel


def _tensors(dtype: torch.dtype, requires_grad: bool):
    wide = torch.promote_types(dtype, torch.float32)
    folded_QD = torch.randn(2, 8, dtype=wide, requires_grad=requires_grad)
    sources = [torch.randn(3, 5, 8, dtype=dtype, requires_grad=requires_grad) for _ in range(3)]
    mix_QD = torch.randn(2, 3, 5, 8, dtype=dtype, requires_grad=requires_grad)
    lse_Q = torch.randn(2, 3, 5, dtype=wide, requires_grad=requires_grad)
    return folded_QD, sources, mix_QD, lse_Q


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("has_given", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_of_the_forward(dtype, has_given, requires_grad):
    implementation("cpu", torch.device("cpu"))
    folded_QD, sources, *given = _tensors(dtype, requires_grad)
    arguments = (folded_QD, sources, *(given if has_given else (None, None)), 1e-6)
    torch.library.opcheck(torch.ops.attnres.cpu_read.default, arguments)


@pytest.mark.parametrize("has_given", [False, True])
@pytest.mark.parametrize(
    "needed", [[True, True, True, True], [False, True, False, True], [True, False, False, False]]
)
@pytest.mark.parametrize("upstream", ["both", "mix", "lse"])
def test_opcheck_of_the_backward(has_given, needed, upstream):
    implementation("cpu", torch.device("cpu"))
    folded_QD, sources, *given = _tensors(torch.float32, requires_grad=False)
    mix_QD, lse_Q = given if has_given else (None, None)
    _, _, rstd, logits = torch.ops.attnres.cpu_read(folded_QD, sources, mix_QD, lse_Q, 1e-6)
    grad_mix_QD = None if upstream == "lse" else torch.randn(2, 3, 5, 8)
    grad_lse_Q = None if upstream == "mix" else torch.randn(2, 3, 5)
    torch.library.opcheck(
        torch.ops.attnres.cpu_read_backward.default,
        (grad_mix_QD, grad_lse_Q, folded_QD, sources, mix_QD, lse_Q, rstd, logits, needed),
    )


def test_a_second_derivative_of_the_op_is_refused():
    """The ops of `attnres.ops` have one wherever they read memory themselves."""
    implementation("cpu", torch.device("cpu"))
    folded_QD, sources, *_ = _tensors(torch.float32, requires_grad=True)
    mix_QD, *_ = torch.ops.attnres.cpu_read(folded_QD, sources, None, None, 1e-6)
    (gradient,) = torch.autograd.grad(mix_QD.square().sum(), folded_QD, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative, impl='reference' has"):
        gradient.square().sum().backward()
