"""Wrong steps of the op, one a mistake; `op_mistakes.py` says what each is."""

import torch
from torch import Tensor
from torch.nn import functional as F

from attnres.conformance.cases import EPS
from attnres.conformance.op_steps import Read, right_keys, right_logits, right_mix, unit


def narrow(dtype: torch.dtype) -> torch.dtype:
    return dtype


def float32_arithmetic(dtype: torch.dtype) -> torch.dtype:
    return torch.float32


def first_32(source_SD: Tensor) -> Tensor:
    return source_SD[:32]


def raw_keys(read: Read) -> Tensor:
    return read.source_SD * read.key_weight_D


def l2_keys(read: Read) -> Tensor:
    square = read.source_SD.square().sum(-1, keepdim=True)
    return read.source_SD * (square + read.eps).rsqrt() * read.key_weight_D


def layer_norm_keys(read: Read) -> Tensor:
    return F.layer_norm(read.source_SD, read.query_D.shape, read.key_weight_D, None, read.eps)


def unweighted_keys(read: Read) -> Tensor:
    return unit(read)


def one_plus_weight(read: Read) -> Tensor:
    return unit(read) * (1 + read.key_weight_D)


def eps_outside_root(read: Read) -> Tensor:
    size = read.source_SD.square().mean(-1, keepdim=True).sqrt()
    return read.source_SD / (size + read.eps) * read.key_weight_D


def own_eps(read: Read) -> Tensor:
    return right_keys(read._replace(eps=EPS))


def padded_mean(read: Read) -> Tensor:
    dim = read.query_D.shape[-1]
    padded = 1 << (dim - 1).bit_length()
    square = read.source_SD.square().sum(-1, keepdim=True) / padded
    return read.source_SD * (square + read.eps).rsqrt() * read.key_weight_D


def detached_keys(read: Read) -> Tensor:
    return right_keys(read._replace(source_SD=read.source_SD.detach()))


def cast_before_weight(read: Read) -> Tensor:
    return unit(read).to(read.dtype).to(read.source_SD.dtype) * read.key_weight_D


def scaled_logits(read: Read, key_SD: Tensor) -> Tensor:
    return right_logits(read, key_SD) * read.query_D.shape[-1] ** -0.5


def zero_logits(read: Read, key_SD: Tensor) -> Tensor:
    return 0 * right_logits(read, key_SD)


def recent_logits(read: Read, key_SD: Tensor) -> Tensor:
    logits_S = right_logits(read, key_SD)
    return torch.cat([logits_S[:-1], logits_S[-1:] + 3])


def overflowing(logits_S: Tensor) -> Tensor:
    e_S = logits_S.exp()
    return e_S / e_S.sum(0)


def sigmoids(logits_S: Tensor) -> Tensor:
    return logits_S.sigmoid()


def over_tokens(logits_S: Tensor) -> Tensor:
    return logits_S.softmax(-1)


def without_mean_slope(logits_S: Tensor) -> Tensor:
    return (logits_S - logits_S.detach().logsumexp(0)).exp()


def detached_weights(logits_S: Tensor) -> Tensor:
    return logits_S.detach().softmax(0)


def unit_values(read: Read, key_SD: Tensor) -> Tensor:
    return unit(read)


def key_values(read: Read, key_SD: Tensor) -> Tensor:
    return key_SD


def detached_values(read: Read, key_SD: Tensor) -> Tensor:
    return read.source_SD.detach()


def summed(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return len(value_SD) * right_mix(alpha_S, value_SD)


def with_residual(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return right_mix(alpha_S, value_SD) + value_SD[-1]


def last_value(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return value_SD[-1]


def plain_sum(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    return value_SD.sum(0)


def without_tail(alpha_S: Tensor, value_SD: Tensor) -> Tensor:
    n_copied = value_SD.shape[-1] // 8 * 8
    copied = torch.arange(value_SD.shape[-1], device=value_SD.device) < n_copied
    return right_mix(alpha_S, value_SD) * copied
