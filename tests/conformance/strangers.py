"""Implementations as strangers hand them in: each is asked by name, also in another process."""

import os
import time

import numpy as np
import torch

NOT_CALLABLE = 3


def plain(query, sources, key_weight, eps):
    source = torch.stack(sources).float()
    key = source * (source.square().mean(-1, keepdim=True) + eps).rsqrt() * key_weight.float()
    alpha = (key @ query.float()).softmax(0)
    return (alpha[..., None] * source).sum(0).to(sources[0].dtype)


def by_name(query, sources, key_weight, *, eps=1e-6):
    return plain(query, sources, key_weight, eps)


def of_arrays(query, sources, key_weight, eps):
    source = np.stack(sources)
    key = source / np.sqrt((source**2).mean(-1, keepdims=True) + eps) * key_weight
    logits = key @ query
    e = np.exp(logits - logits.max(0))
    return (e[..., None] * source).sum(0) / e.sum(0)[..., None]


def in_the_dtype_of_the_sources(query, sources, key_weight, eps):
    source = torch.stack(sources)
    key = torch.nn.functional.rms_norm(source, source.shape[-1:], key_weight, eps)
    alpha = torch.einsum("d,sbtd->sbt", query, key).softmax(0)
    return torch.einsum("sbt,sbtd->btd", alpha, source)


def without_gradient(*arguments):
    with torch.no_grad():
        return plain(*arguments)


def in_float32(*arguments):
    return plain(*arguments).float()


def without_first_axis(*arguments):
    return plain(*arguments)[0]


def as_a_list(*arguments):
    return [plain(*arguments)]


def of_integers(*arguments):
    return plain(*arguments).long()


def raising(query, sources, key_weight, eps):
    if len(sources) > 32:
        raise NotImplementedError("more than 32 sources\nand more words")
    return plain(query, sources, key_weight, eps)


def not_a_number(query, sources, key_weight, eps):
    return plain(query, sources, key_weight, eps) / 0 * 0


def losing(query, sources, key_weight, eps):
    """Hangs on one question and dies on another."""
    print("what it prints disturbs nothing")
    if sources[0].numel() == 0:
        time.sleep(1000)
    if len(sources) == 40:
        os._exit(7)
    return plain(query, sources, key_weight, eps)


def skipping(embed, sublayers, queries, key_weights, size, eps):
    return sublayers[1](embed)


def few_reads(embed, outputs, queries, key_weights, eps):
    return [embed]
