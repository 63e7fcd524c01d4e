"""Who is timed: our implementations, the paper's form, and peers that run on a CPU.

Each gets the inputs in the form in which its own model holds them, and what its own model does at
every read (a stack of the list, say) is in its time.
"""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnres import depth_attention
from attnres.ops import backends

EPS = 1e-6
PAPER = "paper form, eager"
COMPILED = "list form, torch.compile"
Inputs = dict[str, Tensor]  # leaves by name; sources are "source 0", "source 1", ... each BTD


@dataclass(frozen=True)
class Contestant:
    """One way of reading.

    Args:
        prepare: from the inputs (in its own form) to the call that is timed.
        takes: its own form of the inputs.
        definition: what it computes, of inputs in any precision.
        rounds_each_step: it computes in the dtype of the sources, not in float32.
        is_peer: a package that a user could take in the place of this one.
    """

    name: str
    prepare: Callable[[Inputs], Callable[[], Tensor]]
    takes: Callable[[Inputs], Inputs] = dict
    definition: Callable[[Inputs], Tensor] = lambda inputs: _ours("reference", inputs)()
    rounds_each_step: bool = False
    is_peer: bool = False


def random_inputs(n_rows: int, dim: int, n_sources: int, dtype: torch.dtype) -> Inputs:
    """Sources of unequal size and logits of order one; B = 1, T = `n_rows`."""
    generator = torch.Generator().manual_seed(n_sources)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    inputs = {"query": normal(dim) * 2 / dim**0.5, "key_weight": 1 + normal(dim) / 4}
    for i in range(n_sources):
        inputs[f"source {i}"] = normal(1, n_rows, dim) * (1 + i % 3)
    return {name: x.to(dtype) for name, x in inputs.items()}


def sources_of(inputs: Inputs) -> list[Tensor]:
    return [x for name, x in inputs.items() if name.startswith("source ")]


def contestants(compiled: bool) -> tuple[list[Contestant], list[str]]:
    """All that run here, ours first; and a line for each that does not."""
    found = [
        Contestant(backend.name, lambda inputs, name=backend.name: _ours(name, inputs))
        for backend in backends()
        if backend.runs and backend.name != "triton"
    ]
    found.sort(key=lambda contestant: contestant.name != "cpu")
    found.append(Contestant(PAPER, _paper_form, rounds_each_step=True))
    if compiled:
        found.append(Contestant(COMPILED, _compiled_list_form))
    missing = []
    for peer in (_fla, _attn_res, _inkling2):
        try:
            found.append(peer())
        except ImportError as error:
            missing.append(f"{peer.__name__.strip('_')} is not timed: {error}")
    return found, missing


def _ours(impl: str, inputs: Inputs) -> Callable[[], Tensor]:
    query, key_weight, sources = inputs["query"], inputs["key_weight"], sources_of(inputs)
    return lambda: depth_attention(query, sources, key_weight, eps=EPS, impl=impl)


def _paper_form(inputs: Inputs) -> Callable[[], Tensor]:
    """Stack, RMSNorm, product, softmax, product, as the paper's pseudocode has it (figure 2)."""
    query_D, sources = inputs["query"], sources_of(inputs)
    norm = nn.RMSNorm(query_D.shape[-1], eps=EPS, dtype=query_D.dtype)
    del norm.weight
    norm.weight = inputs["key_weight"]  # type: ignore[assignment]  a leaf of the benchmark

    def run() -> Tensor:
        value_SBTD = torch.stack(sources)
        logits_SBT = torch.einsum("d,sbtd->sbt", query_D, norm(value_SBTD))
        return torch.einsum("sbt,sbtd->btd", logits_SBT.softmax(dim=0), value_SBTD)

    return run


def _list_form(query_D: Tensor, key_weight_D: Tensor, sources: list[Tensor]) -> Tensor:
    """Eager without a stack, in float32: what a compiler makes most of."""
    folded_D = query_D.float() * key_weight_D.float()
    values = [source.float() for source in sources]
    logits = [(x * folded_D).sum(-1) * torch.rsqrt(x.square().mean(-1) + EPS) for x in values]
    alpha_SBT = torch.stack(logits).softmax(dim=0)
    mix_BTD = values[0] * alpha_SBT[0].unsqueeze(-1)
    for alpha_BT, value_BTD in zip(alpha_SBT[1:], values[1:], strict=True):
        mix_BTD = mix_BTD + value_BTD * alpha_BT.unsqueeze(-1)
    return mix_BTD.to(sources[0].dtype)


def _compiled_list_form(inputs: Inputs) -> Callable[[], Tensor]:
    torch.compiler.reset()  # one graph a shape, however many were timed before
    compiled = torch.compile(_list_form, fullgraph=True, dynamic=False)
    query, key_weight, sources = inputs["query"], inputs["key_weight"], sources_of(inputs)
    return lambda: compiled(query, key_weight, sources)


def _module(name: str) -> Any:
    """Without the warnings that a peer has at its import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _fla() -> Contestant:
    naive_attnres = _module("fla.ops.attnres").naive_attnres

    def prepare(inputs: Inputs) -> Callable[[], Tensor]:
        query, key_weight, sources = inputs["query"], inputs["key_weight"], sources_of(inputs)
        return lambda: naive_attnres(query, sources, key_weight, rms_eps=EPS)

    return Contestant("fla-core naive_attnres", prepare, is_peer=True)


def _attn_res() -> Contestant:
    """Its keys have no weight: its query is ours times the weight, which is all the same."""
    operator_class = _module("attn_res").AttnResOperator

    def prepare(inputs: Inputs) -> Callable[[], Tensor]:
        query, key_weight, sources = inputs["query"], inputs["key_weight"], sources_of(inputs)
        operator = operator_class(query.shape[-1], eps=EPS)
        del operator.pseudo_query

        def run() -> Tensor:
            operator.pseudo_query = query * key_weight
            return operator(torch.stack(sources))

        return run

    return Contestant("attn-res AttnResOperator", prepare, rounds_each_step=True, is_peer=True)


def _inkling2() -> Contestant:
    """A relative of the method: it mixes normalised values, and scales the logits by D**-0.5."""
    config = _module("transformers.models.inkling2.configuration_inkling2").Inkling2TextConfig
    kind = _module("transformers.models.inkling2.modeling_inkling2").Inkling2BlockAttentionResidual

    def prepare(inputs: Inputs) -> Callable[[], Tensor]:
        settings = config(hidden_size=inputs["query"].shape[-1])
        settings._attn_implementation = "sdpa"
        module = kind(settings)
        del module.query
        module.query = inputs["query"]
        return lambda: module(inputs["bank"], inputs["partial"])[0]

    def takes(inputs: Inputs) -> Inputs:
        *blocks, partial = sources_of(inputs)
        bank_BTSD = torch.stack(blocks, dim=-2)
        return {"query": inputs["query"].float(), "bank": bank_BTSD, "partial": partial}

    name = "transformers Inkling-2 mix"
    return Contestant(name, prepare, takes, _inkling2_definition, is_peer=True)


def _inkling2_definition(inputs: Inputs) -> Tensor:
    dtype = torch.promote_types(inputs["bank"].dtype, torch.float32)
    value_BTSD = torch.cat([inputs["bank"], inputs["partial"].unsqueeze(-2)], dim=-2).to(dtype)
    dim = value_BTSD.shape[-1]
    value_BTSD = F.rms_norm(value_BTSD, (dim,), eps=EPS)
    logits_BTS = torch.einsum("d,btsd->bts", inputs["query"].to(dtype), value_BTSD) / dim**0.5
    return torch.einsum("bts,btsd->btd", logits_BTS.softmax(dim=-1), value_BTSD)
