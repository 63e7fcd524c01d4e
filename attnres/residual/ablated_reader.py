"""The read of an ablated AttnRes, in plain PyTorch: norm, logits, weights, mix.

S sources, H heads, K key width of a head, P value width of a head; `...` is any leading shape.
Sources may be wider than D: what is beyond, such as coordinates, is mixed by the mean over heads.
"""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnres.ops.precision import compute_dtype, result_dtype, without_autocast
from attnres.residual.ablations import Ablations


class AblatedReader(nn.Module):
    """One reader of sources that sum `counts` outputs each.

    Args:
        dim: width of the hidden state.
        counts: outputs in each source, the embedding being one.
        eps: RMSNorm epsilon of the keys.
        ablations: what differs from `DepthReader`.
        has_ways: whether the values have a query of their own.
    """

    query: nn.Parameter | None  # [K], or [K, D] where it projects the mix of the read before
    value_query: nn.Parameter | None  # [K]
    key_weight: nn.Parameter | None  # [K]
    scalars: nn.Parameter | None  # [S], logits where there is no query
    null_logit: nn.Parameter | None  # [H]

    def __init__(
        self, dim: int, counts: tuple[int, ...], eps: float, ablations: Ablations, has_ways: bool
    ):
        super().__init__()
        self.dim, self.counts, self.eps, self.ablations = dim, counts, eps, ablations
        self.n_heads = ablations.n_heads or 1
        self.rank = rank = ablations.key_rank or dim
        has_query, is_projected = ablations.weights is None, ablations.query == "input"
        has_gain = has_query and ablations.key_norm is not False
        sizes = {
            "query": ((rank, dim) if is_projected else (rank,)) if has_query else None,
            "value_query": (rank,) if has_ways else None,
            "key_weight": (rank,) if has_gain else None,
            "scalars": None if has_query else (len(counts),),
            "null_logit": (self.n_heads,) if ablations.null_source else None,
        }
        for name, size in sizes.items():
            parameter = None if size is None else nn.Parameter(torch.empty(size))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if name == "key_weight":
                nn.init.ones_(parameter)
            elif name.endswith("query") and self.ablations.query_std is not None:
                nn.init.normal_(parameter, std=self.ablations.query_std)
            else:
                nn.init.zeros_(parameter)

    def is_untrained(self) -> bool:
        learned = (self.query, self.value_query, self.scalars)
        return not any(x is not None and x.detach().any() for x in learned)

    def forward(self, sources: Sequence[Tensor], before_BTD: Tensor | None) -> tuple[Tensor, ...]:
        """The mix of each route: that of everything, or that of query and key, and of values."""
        with without_autocast(sources[0].device):
            source_SD = self._values(sources)
            alphas = self._alphas(source_SD, before_BTD)
            mixes = [mix(alpha_SH, source_SD, self.dim) for alpha_SH in alphas]
        return tuple(mix_D.to(result_dtype(sources)) for mix_D in mixes)

    def weights(self, sources: Sequence[Tensor], before_BTD: Tensor | None) -> Tensor:
        """Those of the last route, mean over heads, [S, ...]."""
        with without_autocast(sources[0].device):
            return self._alphas(self._values(sources), before_BTD)[-1].mean(dim=1)

    def _values(self, sources: Sequence[Tensor]) -> Tensor:
        source_SD = torch.stack([source.to(compute_dtype(sources)) for source in sources])
        if self.ablations.alpha == 0:
            return source_SD
        sizes_S = source_SD.new_tensor([n**self.ablations.alpha for n in self.counts])
        return source_SD / over(sizes_S, source_SD)

    def _alphas(self, source_SD: Tensor, before_D: Tensor | None) -> list[Tensor]:
        """Weights of each route, [S, H, ...]."""
        logits_SH = self._logits(source_SD, before_D)
        if self.ablations.beta != 0:
            prior_S = source_SD.new_tensor([self.ablations.beta * log(n) for n in self.counts])
            logits_SH = [each_SH + over(prior_S, each_SH) for each_SH in logits_SH]
        kernel, null_logit = self.ablations.kernel, self.null_logit
        return [weights(each_SH, kernel, null_logit) for each_SH in logits_SH]

    def _logits(self, source_SD: Tensor, before_D: Tensor | None) -> list[Tensor]:
        if self.scalars is not None:
            shape = source_SD[..., 0].unsqueeze(1).shape
            return [over(self.scalars.to(source_SD.dtype), source_SD).expand(shape)]
        key_SK = source_SD[..., self.dim - self.rank : self.dim]
        queries = [self._query(before_D), self.value_query]
        return [self._logits_of(q_K, key_SK) for q_K in queries if q_K is not None]

    def _logits_of(self, query_K: Tensor, key_SK: Tensor) -> Tensor:
        if self.key_weight is None:
            return logits(query_K, key_SK, self.n_heads)
        scaled_K = query_K * self.key_weight.to(key_SK.dtype)
        norm_S = inverse_rms(key_SK, self.eps).unsqueeze(1)
        return norm_S * logits(scaled_K, key_SK, self.n_heads)

    def _query(self, before_D: Tensor | None) -> Tensor | None:
        if before_D is None or self.query is None:
            return self.query
        dtype = torch.promote_types(before_D.dtype, torch.float32)
        return F.linear(before_D[..., : self.dim].to(dtype), self.query.to(dtype))


def inverse_rms(key_SK: Tensor, eps: float) -> Tensor:
    """The norm of keys as a factor of logits, [S, ...]; F.rms_norm takes longer backwards."""
    return (key_SK.square().mean(dim=-1) + eps).rsqrt()


def logits(query_K: Tensor, key_SK: Tensor, n_heads: int) -> Tensor:
    """Of one query, or of one a token, [S, H, ...]; K is split into heads."""
    query_HK = query_K.to(key_SK.dtype).unflatten(-1, (n_heads, -1))
    key_SHK = key_SK.unflatten(-1, (n_heads, -1))
    return torch.einsum("...hk,s...hk->sh...", query_HK, key_SHK)


def weights(logits_SH: Tensor, kernel: str | None, null_logit_H: Tensor | None) -> Tensor:
    """Of each source, [S, H, ...]; a null source takes its share and is left out."""
    if kernel == "sigmoid":
        return logits_SH.sigmoid()
    if null_logit_H is None:
        return logits_SH.softmax(dim=0)
    null_H = over(null_logit_H.to(logits_SH.dtype), logits_SH[0]).expand_as(logits_SH[0])
    return torch.cat([null_H.unsqueeze(0), logits_SH]).softmax(dim=0)[1:]


def mix(alpha_SH: Tensor, source_SD: Tensor, dim: int) -> Tensor:
    """Sum of the sources by the weights of their heads, [..., D]."""
    value_SHP = source_SD[..., :dim].unflatten(-1, (alpha_SH.shape[1], -1))
    mix_D = (alpha_SH.movedim(1, -1).unsqueeze(-1) * value_SHP).sum(dim=0).flatten(-2)
    rest_SD = source_SD[..., dim:]
    rest_D = torch.einsum("s...,s...d->...d", alpha_SH.mean(dim=1), rest_SD)
    return torch.cat([mix_D, rest_D], dim=-1) if rest_SD.shape[-1] else mix_D


def over(first: Tensor, like: Tensor) -> Tensor:
    """A vector along the first axis of another tensor."""
    return first.view(-1, *[1] * (like.dim() - 1))
