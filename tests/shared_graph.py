"""Reads that share sources, with one gradient buffer a source or with autograd's additions."""

from collections.abc import Callable, Sequence

import torch
from implementations import KERNELS
from torch import Tensor

from attnres import depth_attention
from attnres.ops import own

N_SOURCES, N_READS, DIM = 4, 6, 24
Tensors = dict[str, Tensor]


class Graph:
    """Leaves, the sources made of them, and reads whose mixes make a loss."""

    def __init__(self, shared: bool, dtype=torch.float64, impl: str = KERNELS[-1], shape=(5, DIM)):
        generator = torch.Generator().manual_seed(0)

        def leaf(*size: int) -> Tensor:
            x = torch.randn(size, generator=generator, dtype=torch.float64)
            return x.to(dtype).requires_grad_()

        self.impl = impl
        self.leaves: Tensors = {f"leaf {i}": leaf(*shape) for i in range(N_SOURCES)}
        self.queries = [leaf(shape[-1]) for _ in range(N_READS)]
        self.key_weights = [leaf(shape[-1]) for _ in range(N_READS)]
        self.sources = [torch.sin(x) for x in self.leaves.values()]
        if shared:
            self.sources = [own(x) for x in self.sources]
        self.mixes: list[Tensor] = []

    @property
    def named(self) -> Tensors:
        queries = {f"query {i}": x for i, x in enumerate(self.queries)}
        return {**self.leaves, **queries, **{f"key {i}": x for i, x in enumerate(self.key_weights)}}

    def read(self, sources: Sequence[Tensor] | None = None) -> "Graph":
        for query_D, key_weight_D in zip(self.queries, self.key_weights, strict=True):
            given = self.sources if sources is None else sources
            self.mixes.append(depth_attention(query_D, given, key_weight_D, impl=self.impl))
        return self

    def loss(self) -> Tensor:
        """With a consumer of a source beside the reads."""
        terms = [(mix * torch.cos(mix)).sum() for mix in self.mixes]
        return torch.stack([*terms, torch.tanh(self.sources[1]).sum()]).sum()

    def gradients(self) -> Tensors:
        return {n: x.grad.clone() for n, x in self.named.items() if x.grad is not None}


def assert_equal(actual: Tensors, expected: Tensors, tolerance: float = 1e-12) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def expected_gradients(run: Callable[[Graph], object] | None = None, **kwargs) -> Tensors:
    graph = Graph(shared=False, **kwargs).read()
    if run is None:
        graph.loss().backward()
    else:
        run(graph)
    return graph.gradients()
