"""What a training step of a Llama is made of, for the benchmarks: models, residual paths, steps.

A step is forward, loss and backward. The optimiser is not counted: it would only add to the step
that the residual path is compared with. Gradients start as None in every step.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from contestants import Inputs
from correctness import WrongError, compare
from rounds import Case
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.ops.backends import CHOICE
from attnres.residual import RESIDUALS, residual_from_json

VOCAB_SIZE, HEAD_DIM, SUBLAYERS_PER_LAYER = 4096, 64, 2
N_BLOCKS = 8
STANDARD = "standard"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
METHODS = ("attn_res", "two_phase")  # timed where the library has them
LAYOUTS = {"Block": {"n_blocks": N_BLOCKS}, "Full": {}}
DEFINED_BY = "attn_res"  # the others have its parameters and its numbers


@dataclass(frozen=True)
class Variant:
    """A residual method in one layout; `residual` is None for the model of transformers itself."""

    name: str
    layout: str = ""
    residual: Any = None
    shares_gradients: bool = True


@dataclass(frozen=True)
class Size:
    """Of the model and of the batch."""

    dim: int
    batch: int
    dtype: torch.dtype
    n_layers: int
    n_tokens: int

    @property
    def n_sublayers(self) -> int:
        return self.n_layers * SUBLAYERS_PER_LAYER

    def llama(self) -> LlamaConfig:
        """The MLP is 8/3 of the width, up to a multiple of 64."""
        return LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=self.dim,
            intermediate_size=-(-8 * self.dim // (3 * 64)) * 64,
            num_hidden_layers=self.n_layers,
            num_attention_heads=max(1, self.dim // HEAD_DIM),
            num_key_value_heads=max(1, self.dim // HEAD_DIM),
            max_position_embeddings=self.n_tokens,
            use_cache=False,
        )


def variants() -> list[Variant]:
    """Every method and layout, and where gradients can also be added by autograd, that too."""
    found = []
    for method in METHODS:
        if method not in RESIDUALS:
            continue
        for layout, settings in LAYOUTS.items():
            residual = {"method": method, **settings}
            found.append(Variant(f"{method}, {layout}", layout, residual))
            built = residual_from_json(residual).build(8, 24)
            if hasattr(built, "share_gradients"):
                name = f"{method}, {layout}, no shared gradients"
                found.append(Variant(name, layout, residual, shares_gradients=False))
    return found


def build_residual(variant: Variant, dim: int, n_sublayers: int) -> Any:
    residual: Any = residual_from_json(variant.residual).build(dim, n_sublayers)
    if not variant.shares_gradients:
        residual.share_gradients = False
    return residual


def build_model(variant: Variant | None, size: Size) -> Any:
    """In training mode and in the size's dtype; None is the model of transformers."""
    torch.manual_seed(0)
    if variant is None:
        model: Any = LlamaForCausalLM(size.llama())
    else:
        config = AttnResCausalLMConfig(text_config=size.llama(), residual=variant.residual)
        model = AttnResForCausalLM(config)
        if not variant.shares_gradients:
            model.residual.share_gradients = False
    return model.to(size.dtype).train()


def step_case(model: Any, size: Size) -> Case:
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(VOCAB_SIZE, (size.batch, size.n_tokens), generator=generator)
    parameters = list(model.parameters())

    def case() -> None:
        for parameter in parameters:
            parameter.grad = None
        model(input_ids=tokens_BT, labels=tokens_BT).loss.backward()

    return case


def path_case(variant: Variant | None, size: Size) -> Case:
    """The residual path alone, forward and backward: each sublayer returns its input.

    None is the plain sum, x + f(x).
    """
    residual = variant and build_residual(variant, size.dim, size.n_sublayers).to(size.dtype)
    shape = (size.batch, size.n_tokens, size.dim)
    embed_BTD = torch.randn(shape).to(size.dtype).requires_grad_()
    upstream_BTD = torch.randn(shape).to(size.dtype)
    leaves = [embed_BTD, *(residual.parameters() if residual else ())]

    def case() -> None:
        for leaf in leaves:
            leaf.grad = None
        out_BTD = through(residual, embed_BTD, size.n_sublayers, lambda h_BTD, depth: h_BTD)
        out_BTD.backward(upstream_BTD)

    return case


def through(
    residual: Any, x_BTD: Tensor, n_sublayers: int, sublayer: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """The input of the final norm."""
    if residual is None:
        for depth in range(n_sublayers):
            x_BTD = x_BTD + sublayer(x_BTD, depth)
        return x_BTD
    state = residual.start(x_BTD)
    for depth in range(n_sublayers):
        h_BTD, state = residual.read(state, depth)
        state = residual.write(state, depth, sublayer(h_BTD, depth))
    return residual.finish(state)


def check_variants(found: list[Variant], dtypes: list[torch.dtype]) -> None:
    """Raises WrongError where a residual path errs, in its output or a gradient.

    It is held to Attention Residuals in float64, and may err twice as much as the same method does
    in the same dtype under the reference implementation.
    """
    findings = [
        f"{variant.name}, {dtype}: {finding}"
        for variant in found
        for dtype in dtypes
        for finding in _check(variant, dtype)
    ]
    if findings:
        raise WrongError("\n".join(findings))


def _check(variant: Variant, dtype: torch.dtype) -> list[str]:
    definition = Variant("", residual={**variant.residual, "method": DEFINED_BY})
    actual = _outputs_and_gradients(variant, dtype, dtype)
    with implementation("reference"):
        plain = _outputs_and_gradients(variant, dtype, dtype)
        exact = _outputs_and_gradients(definition, torch.float64, dtype)
    return compare(actual, plain, exact)


def _outputs_and_gradients(variant: Variant, dtype: torch.dtype, rounded: torch.dtype) -> Inputs:
    """Of 24 sublayers of an odd width, from inputs that `rounded` can hold."""
    dim, n_sublayers = 45, 24
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(rounded).to(dtype)

    residual = build_residual(variant, dim, n_sublayers).to(dtype)
    for parameter in residual.parameters():
        parameter.data.copy_(normal(dim) * 1.5 / dim**0.25)  # logits of order one
    embed_BTD, upstream_BTD = normal(2, 7, dim).requires_grad_(), normal(2, 7, dim)
    scales = [1 / (1 + depth % 3) for depth in range(n_sublayers)]  # none is like the next
    out_BTD = through(
        residual, embed_BTD, n_sublayers, lambda h_BTD, depth: scales[depth] * h_BTD.tanh()
    )
    out_BTD.backward(upstream_BTD)
    assert embed_BTD.grad is not None
    return {"output": out_BTD.detach(), "embedding": embed_BTD.grad, **_by_kind(residual)}


def _by_kind(residual: nn.Module) -> Inputs:
    """Gradients of all queries together, and of all key weights."""
    kinds: dict[str, list[Tensor]] = {}
    for name, parameter in residual.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        kinds.setdefault(name.rpartition(".")[2], []).append(parameter.grad)
    return {kind: torch.stack(gradients) for kind, gradients in kinds.items()}


@contextmanager
def implementation(name: str) -> Iterator[None]:
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[CHOICE]
        else:
            os.environ[CHOICE] = before
