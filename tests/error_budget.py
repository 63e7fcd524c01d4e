"""Tolerances are measured: an implementation may err at most twice as much as the reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres import depth_attention

EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Read:
    """The inputs of one read, and the gradient that comes back to its mix."""

    query_D: Tensor
    key_weight_D: Tensor
    sources: Sequence[Tensor]
    upstream_D: Tensor

    def to(self, dtype: torch.dtype) -> "Read":
        return Read(
            query_D=self.query_D.to(dtype),
            key_weight_D=self.key_weight_D.to(dtype),
            sources=[source.to(dtype) for source in self.sources],
            upstream_D=self.upstream_D.to(dtype),
        )


def random_read(n_sources: int, *shape: int, dtype: torch.dtype = torch.float32) -> Read:
    """Sources of unequal size and logits of order one, the same for the same arguments."""
    generator = torch.Generator().manual_seed(n_sources)
    dim = shape[-1]

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    read = Read(
        query_D=normal(dim) * 2 / dim**0.5,
        key_weight_D=1 + normal(dim) / 4,
        sources=[normal(*shape) * (1 + i % 3) for i in range(n_sources)],
        upstream_D=normal(*shape),
    )
    return read.to(dtype)


def forward_backward(read: Read, impl: str, eps: float = EPS) -> dict[str, Tensor]:
    """The mix, and the gradients of the query, the key weight and every source, by name."""
    query_D = read.query_D.detach().requires_grad_()
    key_weight_D = read.key_weight_D.detach().requires_grad_()
    sources = [source.detach().requires_grad_() for source in read.sources]
    mix_D = depth_attention(query_D, sources, key_weight_D, eps=eps, impl=impl)
    gradients = torch.autograd.grad(mix_D, [query_D, key_weight_D, *sources], read.upstream_D)
    names = ["query", "key_weight", *(f"source {i}" for i in range(len(sources)))]
    return {"mix": mix_D.detach(), **dict(zip(names, gradients, strict=True))}


def assert_within_budget(read: Read, impl: str, eps: float = EPS) -> None:
    """Mix and every gradient of `impl` are as good as those of the reference."""
    actual = stack_sources(forward_backward(read, impl, eps))
    plain = stack_sources(forward_backward(read, "reference", eps))
    exact = stack_sources(forward_backward(read.to(torch.float64), "reference", eps))
    for name in exact:
        assert_as_good_as(actual[name], plain[name], exact[name], name)


def stack_sources(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All sources share one budget: among 187 luck of rounding decides which one errs most."""
    names = [name for name in tensors if name.startswith("source ")]
    others = {name: tensor for name, tensor in tensors.items() if name not in names}
    return {**others, "sources": torch.stack([tensors[name] for name in names])}


def assert_as_good_as(actual: Tensor, plain: Tensor, exact: Tensor, name: str) -> None:
    """`actual` errs at most twice as much as `plain`, the reference in the same dtype, does."""
    assert actual.shape == exact.shape, f"{name}: shape {actual.shape}, expected {exact.shape}"
    assert actual.dtype == plain.dtype, f"{name}: dtype {actual.dtype}, expected {plain.dtype}"
    if exact.numel() == 0:
        return
    info = torch.finfo(plain.dtype)
    rounding = info.eps * exact.abs().max().clamp(min=info.smallest_normal)
    budget = 2 * ((plain - exact).abs().max() + rounding)
    error = (actual - exact).abs().max()
    assert error <= budget, f"{name}: error {error:.1e}, budget {budget:.1e}"
