"""What transformers' kimi_linear needs besides an adapter.

Its delta attention is taken by the device of the tensors, each time it is called; transformers
chooses once, when it is imported, by which packages there are, so that with flash-linear-attention
on a machine without a GPU nothing runs. Its config takes what it does not implement without a word;
that is refused here.
"""

import inspect
import warnings
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from attnres.models.front import Front, in_front
from attnres.ops.kda import decay_of_gate, kda, kda_by_token, unit_norm

MODULE = "transformers.models.kimi_linear.modeling_kimi_linear"
KDA = {"chunk_kimi_delta_attention": kda, "recurrent_kimi_delta_attention": kda_by_token}
CONVOLUTIONS = ("causal_conv1d_fn", "causal_conv1d_update")
FULL_EVERY = 4  # layers: three of KDA, then one of full attention (arXiv:2510.26692)
ONLY = {  # what transformers implements, whatever a config says
    "moe_router_activation_func": "sigmoid",
    "moe_layer_freq": 1,
    "mla_use_nope": True,
    "mla_use_output_gate": False,
    "routed_expert_hidden_size": None,
    "num_nextn_predict_layers": 0,
}


def layer_types(n_layers: int) -> list[str]:
    """Full attention in every fourth layer and in the last, as in the released models."""
    full, linear = "full_attention", "linear_attention"
    is_full = ((i + 1) % FULL_EVERY == 0 or i + 1 == n_layers for i in range(n_layers))
    return [full if each else linear for each in is_full]


def check_config(text: Any) -> None:
    """ValueError for what would be another model than the config says; see the module."""
    linear = getattr(text, "linear_attn_config", None) or {}
    for name, allowed in ONLY.items():
        value = getattr(text, name, allowed)
        if value != allowed and value is not None:
            raise ValueError(
                f"{name}={value!r}: transformers' kimi_linear has {allowed!r} and ignores it"
            )
    if linear.get("use_full_rank_gate"):
        raise ValueError("use_full_rank_gate=True: transformers' kimi_linear ignores it")
    _check_layers(text, linear)


def _check_layers(text: Any, linear: dict[str, Any]) -> None:
    n_layers, kinds = text.num_hidden_layers, list(text.layer_types)
    full, delta = linear.get("full_attn_layers"), linear.get("kda_layers")
    if full is not None and delta is not None:
        if sorted([*full, *delta]) != list(range(1, n_layers + 1)):
            raise ValueError(
                f"full_attn_layers={full} and kda_layers={delta} must name each layer from 1 to "
                f"{n_layers} once: they count from 1"
            )
        if [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"] != sorted(full):
            raise ValueError(f"full_attn_layers={full} (from 1) are not those of {kinds}")
    elif full is not None or delta is not None:
        raise ValueError("full_attn_layers and kda_layers are given together or not at all")
    by_default = ["full_attention" if i and i % FULL_EVERY == 0 else "linear_attention"
                  for i in range(n_layers)]  # fmt: skip
    if kinds == by_default and n_layers > FULL_EVERY:
        warnings.warn(
            "layer_types are the default of transformers' kimi_linear, full attention in layers "
            "5, 9, ... counted from 1; released models have it in 4, 8, ... and the last: "
            "attnres.models.kimi_linear.layer_types",
            stacklevel=5,
        )


def prepare(model: nn.Module, text: Any) -> None:
    """Let a model choose by device, and bound its decays where its config says so."""
    choose_by_device()
    linear = getattr(text, "linear_attn_config", None) or {}
    if (bound := linear.get("gate_lower_bound")) is None:
        return
    for layer in model.get_submodule("layers").children():
        gate: Any = getattr(layer.self_attn, "forget_gate", None)
        if gate is not None and not isinstance(gate, BoundedGate):
            gate.__class__ = in_front(BoundedGate, type(gate))
            gate.lower_bound = bound
            nn.init.zeros_(gate.A_log)  # as Kimi K3 starts


class BoundedGate(Front):
    """Put before a forget gate's own class: the decay of Kimi K3, at least `lower_bound`."""

    lower_bound: float
    f_a_proj: nn.Module
    f_b_proj: nn.Module
    dt_bias: Tensor
    A_log: Tensor
    head_dim: int

    def forward(self, h_BTD: Tensor) -> Tensor:
        gate = self.f_b_proj(self.f_a_proj(h_BTD)).float() + self.dt_bias.float()
        gate_BTHK = gate.unflatten(-1, (-1, self.head_dim))
        return decay_of_gate(gate_BTHK, self.A_log.flatten(), self.lower_bound)


@cache
def choose_by_device() -> None:
    """In place of the functions of transformers, once a process, ones that look at the device."""
    module = import_module(MODULE)
    for name, ours in KDA.items():
        setattr(module, name, _delta_attention(getattr(module, name), ours))
    for name in CONVOLUTIONS:
        setattr(module, name, _convolution(getattr(module, name)))


def _delta_attention(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    plain = inspect.unwrap(theirs)

    @wraps(plain)
    def chosen(query: Tensor, *arguments: Any, **keywords: Any) -> Any:
        if query.is_cuda:
            return theirs(query, *arguments, **keywords)
        return _run(ours, query, *arguments, **keywords)

    return chosen


def _run(
    ours: Callable[..., tuple[Tensor, Tensor]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """With the arguments of transformers; all but the last two are BTH..."""
    if any(others.get(name) is not None for name in ("cu_seqlens", "seq_idx")):
        raise ValueError("packed sequences are kept apart by flash-linear-attention alone, on CUDA")
    dtype = query.dtype
    if use_qk_l2norm_in_kernel:
        query, key = unit_norm(query), unit_norm(key)
    scaled_BTHK = query * query.shape[-1] ** -0.5
    out_BTHP, state_BHKP = ours(scaled_BTHK, key, value, g, beta, initial_state)
    return out_BTHP.to(dtype), state_BHKP if output_final_state else None


def _convolution(theirs: Callable[..., Any]) -> Callable[..., Any]:
    plain = inspect.unwrap(theirs)

    @wraps(plain)
    def chosen(x: Tensor, *arguments: Any, **keywords: Any) -> Any:
        return (theirs if x.is_cuda else plain)(x, *arguments, **keywords)

    return chosen
