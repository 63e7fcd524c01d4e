"""The ops of an implementation, from its kernel."""

from collections.abc import Sequence

from torch import Tensor

from attnres.ops import closed_form, deviation, reference
from attnres.ops.deviation import Around
from attnres.ops.kernel import Given, Kernel, MemoryKernel
from attnres.ops.precision import compute_dtype
from attnres.ops.read import read
from attnres.ops.sources import of_one_dtype, tensors_of


class Fused:
    """As `reference`, and `split_queries`; differentiable twice, the second time at its speed."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel

    def depth_attention(
        self, query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
    ) -> Tensor:
        _, (mix_D,) = self._read(query_D, sources, key_weight_D, eps)
        return mix_D

    def depth_weights(
        self, query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
    ) -> Tensor:
        """In plain PyTorch for every kernel: weights are for looking at."""
        sources = of_one_dtype(sources)
        folded_QD = _fold(query_D, sources, key_weight_D)
        wide = [source.to(folded_QD.dtype) for source in sources]  # so that a gradient is cast once
        _, logits_QS = closed_form.statistics(folded_QD, wide, eps)
        return logits_QS[0].softmax(dim=0)

    def depth_attention_queries(
        self, queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        lse_Q, (mix_QD,) = self._read(queries_QD, sources, key_weights_QD, eps, split=False)
        return mix_QD, lse_Q

    def split_queries(
        self, queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor, eps: float
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Phase 1 for readers that come one by one: each mix is a tensor with its own gradient."""
        lse_Q, mixes = self._read(queries_QD, sources, key_weights_QD, eps)
        return mixes, lse_Q.unbind(0)

    def merge(
        self,
        mix_D: Tensor,
        lse: Tensor,
        partials: Sequence[Tensor],
        query_D: Tensor,
        key_weight_D: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        mix_D, *partials = of_one_dtype([mix_D, *partials])
        given = Given(mix_D.unsqueeze(0), lse.to(compute_dtype(partials)).unsqueeze(0))
        lse_Q, (mix_D,) = self._read(query_D, partials, key_weight_D, eps, given)
        return mix_D, lse_Q.squeeze(0)

    def centered_attention(
        self,
        query_D: Tensor,
        sources: Sequence[Tensor],
        stream_D: Tensor,
        key_weight_D: Tensor,
        eps: float,
    ) -> Tensor:
        sources = of_one_dtype(sources)
        folded_QD = _fold(query_D, sources, key_weight_D)
        if self._reads_around(stream_D, folded_QD, sources):
            stream = Given(stream_D.unsqueeze(0), folded_QD.new_empty(0))
            _, (mix_D,) = read(Around(self.kernel), folded_QD, sources, stream, eps, True)
            return mix_D
        _, (deviation_D,) = read(deviation, folded_QD, sources, None, eps, True)
        return reference.around(stream_D, deviation_D)

    def _reads_around(self, stream_D: Tensor, folded_QD: Tensor, sources: Sequence[Tensor]) -> bool:
        """Whether the kernel itself does, on memory that it reads."""
        return (
            isinstance(self.kernel, MemoryKernel)
            and self.kernel.reads_around_streams
            and stream_D.dtype == sources[0].dtype
            and self.kernel.takes((folded_QD, stream_D, *tensors_of(sources)))
        )

    def _read(
        self,
        query: Tensor,
        sources: Sequence[Tensor],
        key_weight: Tensor,
        eps: float,
        given: Given | None = None,
        split: bool = True,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        sources = of_one_dtype(sources)
        folded_QD = _fold(query, sources, key_weight)
        return read(self.kernel, folded_QD, sources, given, eps, split)


def _fold(query: Tensor, sources: Sequence[Tensor], key_weight: Tensor) -> Tensor:
    """u = query * key_weight for each query, [Q, D]: only the product acts on the logits."""
    dtype = compute_dtype(sources[:1])  # all have one
    folded = query.to(dtype) * key_weight.to(dtype)
    return folded if folded.dim() == 2 else folded.unsqueeze(0)
