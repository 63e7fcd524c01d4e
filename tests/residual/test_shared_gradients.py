"""Gradients that a source's readers share are those of autograd, in a stack and around it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from attnres import AttnRes, BlockLayout
from attnres.residual import Residual, TwoPhase

DIM, N_SUBLAYERS = 8, 6
Tensors = dict[str, Tensor]
METHODS = {
    f"{kind.__name__}, {name}": (kind, layout)
    for kind in (AttnRes, TwoPhase)
    for name, layout in {
        "full": BlockLayout.full(N_SUBLAYERS),
        "block": BlockLayout.of(N_SUBLAYERS, sublayers_per_block=2),
    }.items()
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


class Layer(nn.Module):
    """Two sublayers; the state goes through a module as a whole, or leaf by leaf."""

    def __init__(self, residual: Residual[Any], first_depth: int):
        super().__init__()
        self.residual = (residual,)
        self.first_depth = first_depth
        self.sublayers = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(DIM), nn.Linear(DIM, DIM), nn.GELU()) for _ in range(2)
        )

    def forward(self, state: Any) -> Any:
        (residual,) = self.residual
        for depth, sublayer in enumerate(self.sublayers, self.first_depth):
            h_BTD, state = residual.read(state, depth)
            state = residual.write(state, depth, sublayer(h_BTD))
        return state


class Stack(nn.Module):
    def __init__(self, method, share_gradients: bool):
        super().__init__()
        torch.manual_seed(0)
        kind, layout = method
        self.residual: Residual[Any] = kind(DIM, layout, share_gradients=share_gradients)
        self.layers = nn.ModuleList(Layer(self.residual, d) for d in range(0, N_SUBLAYERS, 2))
        for parameter in self.residual.parameters():
            nn.init.normal_(parameter, std=0.3)
        self.run_layer: Callable[[Layer, Any], Any] = lambda layer, state: layer(state)

    def forward(self, embed_BTD: Tensor) -> Tensor:
        state = self.residual.start(torch.sin(embed_BTD))
        for layer in self.layers:
            state = self.run_layer(layer, state)  # type: ignore[arg-type]  a state of tensors
        return self.residual.finish(state)


def _embed() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, DIM, generator=generator, dtype=torch.float64).requires_grad_()


def _backward(stack: nn.Module, call: Callable[[Tensor], Tensor] | None = None) -> Tensors:
    embed_BTD = _embed()
    stack.zero_grad()
    out_BTD = (call or stack)(embed_BTD)
    (out_BTD * torch.arange(DIM, dtype=torch.float64)).sum().backward()
    named = {"embed": embed_BTD, **dict(stack.named_parameters())}
    return {n: x.grad.clone() for n, x in named.items() if x.grad is not None}


def _pair(method) -> tuple[Stack, Tensors]:
    stack = Stack(method, share_gradients=True).double()
    return stack, _backward(Stack(method, share_gradients=False).double())


def _assert_equal(actual: Tensors, expected: Tensors) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, atol=1e-12, rtol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


@every_method
def test_a_stack_has_the_gradients_of_autograd(method, filled):
    stack, expected = _pair(method)
    assert not filled
    _assert_equal(_backward(stack), expected)
    assert True in filled
    assert len(expected) == 1 + len(list(stack.parameters()))


@every_method
def test_a_finished_source_gets_one_gradient_a_group_of_readers(method, filled):
    stack = Stack(method, share_gradients=True).double()
    _backward(stack)
    n_blocks = stack.residual.layout.n_blocks  # type: ignore[union-attr]  it has one
    assert filled.count(False) == 1 + n_blocks  # type: ignore[operator]  a number
    if isinstance(stack.residual, AttnRes):
        layout = stack.residual.layout
        n_finished = [1 + sum(end < d for end in layout.ends) for d in range(1, N_SUBLAYERS + 1)]
        assert len(filled) == sum(n_finished)
    elif n_blocks == 3:  # readers 1; then 2, 3 over two; then 4, 5 and the output over three
        assert len(filled) == 1 + 2 + 3 + 1  # the output read goes on to the last block


@every_method
def test_checkpointing_each_layer_without_reentry(method, filled):
    stack, expected = _pair(method)
    stack.run_layer = lambda layer, state: checkpoint(layer, state, use_reentrant=False)
    _assert_equal(_backward(stack), expected)
    assert True in filled


def _reentrant(layer: Layer, state: Any) -> Any:
    """Re-entrant checkpointing sees tensors among its arguments alone."""
    leaves, structure = tree_flatten(state)
    found: list[Any] = []

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        out, out_structure = tree_flatten(layer(tree_unflatten(tensors, structure)))
        found.append((out_structure, [x is None for x in out]))
        return tuple(x for x in out if x is not None)

    out = iter(checkpoint(run, *leaves, use_reentrant=True))
    out_structure, absent = found[0]
    return tree_unflatten([None if a else next(out) for a in absent], out_structure)


@every_method
def test_reentrant_checkpointing_of_each_layer(method, filled):
    stack, expected = _pair(method)
    stack.run_layer = _reentrant
    _assert_equal(_backward(stack), expected)
    _, layout = method
    assert bool(filled) == (layout.n_blocks == N_SUBLAYERS)  # where a layer reads its own sources


@every_method
@pytest.mark.parametrize("cut", range(N_SUBLAYERS // 2 + 1))
def test_a_pipeline_cut_with_its_own_backward_on_each_side(method, cut, filled):
    """The second stage sends back the gradient of every tensor that it received."""
    stack, expected = _pair(method)
    embed_BTD = _embed()
    state = stack.residual.start(torch.sin(embed_BTD))
    for layer in list(stack.layers)[:cut]:
        state = layer(state)
    sent, structure = tree_flatten(state)
    received = [None if x is None else x.detach().requires_grad_(x.requires_grad) for x in sent]
    state = tree_unflatten(received, structure)
    for layer in list(stack.layers)[cut:]:
        state = layer(state)
    out_BTD = stack.residual.finish(state)
    (out_BTD * torch.arange(DIM, dtype=torch.float64)).sum().backward()
    pairs = [
        (x, r.grad)
        for x, r in zip(sent, received, strict=True)
        if r is not None and r.grad is not None
    ]
    torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])
    named = {"embed": embed_BTD, **dict(stack.named_parameters())}
    _assert_equal({n: x.grad for n, x in named.items() if x.grad is not None}, expected)


@every_method
def test_full_backward_hooks_on_layers_and_sublayers(method, filled):
    seen: dict[bool, list[Tensor]] = {True: [], False: []}
    found = {}
    for share, gradients in seen.items():
        stack = Stack(method, share_gradients=share).double()
        for module in (*stack.layers, *(s for layer in stack.layers for s in layer.sublayers)):  # type: ignore  modules
            module.register_full_backward_hook(
                lambda _, grads_in, grads_out, gradients=gradients: gradients.extend(
                    g.clone() for g in (*grads_in, *grads_out) if isinstance(g, Tensor)
                )
            )
            module.register_full_backward_pre_hook(lambda _, grads: None)
        found[share] = _backward(stack)
    _assert_equal(found[True], found[False])
    assert len(seen[True]) == len(seen[False]) > 0
    for actual, expected in zip(seen[True], seen[False], strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert filled


@every_method
def test_accumulated_gradients_of_two_batches(method):
    stack, expected = _pair(method)
    embeds = [_embed(), _embed()]
    for embed_BTD in embeds:
        (stack(embed_BTD) * torch.arange(DIM, dtype=torch.float64)).sum().backward()
    for name, parameter in stack.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * expected[name], atol=1e-12, rtol=1e-12)


@every_method
def test_gradients_of_sources_in_a_state(method):
    """As a probe asks for them: by name, and by `retain_grad`."""
    found = []
    for share in (True, False):
        stack = Stack(method, share_gradients=share).double()
        state = stack.residual.start(torch.sin(_embed()))
        sources = [state.blocks[0]]
        for layer in stack.layers:
            state = layer(state)
            sources.append(state.blocks[-1])
        out_BTD = stack.residual.finish(state)
        gradients = torch.autograd.grad(out_BTD.square().sum(), sources, retain_graph=True)
        for source in sources:
            source.retain_grad()
        out_BTD.square().sum().backward()
        found.append([*gradients, *(source.grad for source in sources)])
    for value, other in zip(*found, strict=True):
        torch.testing.assert_close(value, other, atol=1e-12, rtol=1e-12)


@every_method
def test_a_frozen_residual_or_branch(method, filled):
    for frozen in ("residual", "layers"):
        found = []
        for share in (True, False):
            stack = Stack(method, share_gradients=share).double()
            getattr(stack, frozen).requires_grad_(False)
            found.append(_backward(stack))
        _assert_equal(*found)
    assert filled


@every_method
def test_a_deep_copy_shares_no_buffer_with_its_original(method):
    stack, expected = _pair(method)
    twin = copy.deepcopy(stack)
    loss = (stack(_embed()) + twin(_embed())) * torch.arange(DIM, dtype=torch.float64)
    loss.sum().backward()
    for model in (stack, twin):
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        _assert_equal(gradients, {n: g for n, g in expected.items() if n != "embed"})


def test_an_implementation_without_a_kernel_takes_function_transforms():
    residual = AttnRes(DIM, BlockLayout.full(2), impl="reference")
    for parameter in residual.parameters():
        nn.init.normal_(parameter)

    def loss(embed_TD: Tensor) -> Tensor:
        state = residual.start(embed_TD)
        for depth in range(2):
            h_TD, state = residual.read(state, depth)
            state = residual.write(state, depth, torch.sin(h_TD))
        return residual.finish(state).sum()

    embed_TD = torch.randn(3, DIM)
    gradient = torch.func.grad(loss)(embed_TD)
    expected = torch.autograd.grad(loss(embed_TD.requires_grad_()), embed_TD)[0]
    torch.testing.assert_close(gradient, expected)
