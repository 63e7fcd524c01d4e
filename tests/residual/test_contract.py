"""Every residual method keeps the contract: compile, bf16, checkpointing, stage cuts, DDP."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from depth_methods import CONFIGS, ONE_OF_A_KIND, one_input
from implementations import needs_compiler
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from attnres.residual import (
    RESIDUALS,
    Residual,
    ResidualConfig,
    StandardConfig,
    format_residual,
)

DIM = 8
N_SUBLAYERS = 6
SUBLAYERS_PER_LAYER = 2
every_config = pytest.mark.parametrize("config", CONFIGS, ids=format_residual)


class Stack(nn.Module):
    """Six sublayers joined by a residual method, two a layer."""

    def __init__(self, config: ResidualConfig):
        super().__init__()
        torch.manual_seed(0)
        self.residual: Residual[Any] = config.build(DIM, N_SUBLAYERS)
        self.sublayers = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(DIM), nn.Linear(DIM, DIM), nn.GELU())
            for _ in range(N_SUBLAYERS)
        )
        for parameter in self.residual.parameters():
            nn.init.normal_(parameter)
        self.run_layer: Callable[..., Any] = lambda layer, *args: layer(*args)

    def layer(self, state: Any, first_depth: int, last_depth: int) -> Any:
        for depth in range(first_depth, last_depth):
            mix, state = self.residual.read(state, depth)
            out_BTD = self.sublayers[depth](one_input(mix))
            state = self.residual.write(state, depth, out_BTD)
        return state

    def forward(self, embed_BTD: Tensor) -> Tensor:
        state = self.residual.start(embed_BTD)
        for depth in range(0, N_SUBLAYERS, SUBLAYERS_PER_LAYER):
            state = self.run_layer(self.layer, state, depth, depth + SUBLAYERS_PER_LAYER)
        return self.residual.finish(state)


def _embed(dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, DIM, generator=generator).to(dtype)


def _forward_backward(stack: Stack, call: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    embed_BTD = _embed(next(stack.parameters()).dtype).requires_grad_()
    out_BTD = call(embed_BTD)
    parameters = dict(stack.named_parameters())
    loss = (out_BTD * torch.arange(DIM, dtype=out_BTD.dtype)).sum()
    gradients = torch.autograd.grad(loss, [embed_BTD, *parameters.values()])
    return dict(zip(["out", "embed", *parameters], [out_BTD.detach(), *gradients], strict=True))


def _assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


def test_every_method_is_tested():
    assert {type(config) for config in CONFIGS} == set(RESIDUALS.values())


@every_config
def test_traced_equals_eager(config):
    _assert_compiled_equals_eager(config, "aot_eager")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("config", ONE_OF_A_KIND, ids=format_residual)
def test_compiled_equals_eager(config):
    _assert_compiled_equals_eager(config, "inductor")


def _assert_compiled_equals_eager(config: ResidualConfig, backend: str) -> None:
    """In float64: random queries make a stack that amplifies float32 rounding to 1e-4."""
    torch._dynamo.reset()
    stack = Stack(config).double()
    compiled = torch.compile(stack, fullgraph=True, backend=backend)
    actual = _forward_backward(stack, compiled)
    for name, value in _forward_backward(stack, stack).items():
        torch.testing.assert_close(
            actual[name], value, atol=1e-10, rtol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


@every_config
def test_bfloat16_is_kept_from_the_embedding_to_every_gradient(config):
    tensors = _forward_backward(stack := Stack(config).bfloat16(), stack)
    for name, value in tensors.items():
        assert value.dtype == torch.bfloat16, name
        assert value.isfinite().all(), name


@every_config
def test_a_float32_stream_is_kept_under_autocast(config):
    stack = Stack(config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        state = stack.residual.start(_embed())
        for depth in range(N_SUBLAYERS):
            state = stack.layer(state, depth, depth + 1)
            assert {leaf.dtype for leaf in tree_flatten(state)[0] if leaf is not None} == {
                torch.float32
            }
        assert stack.residual.finish(state).dtype == torch.float32


@every_config
def test_checkpointing_each_layer_runs_it_twice_and_changes_no_bit(config):
    stack = Stack(config)
    expected = _forward_backward(stack, stack)
    calls = [0] * N_SUBLAYERS
    for depth, sublayer in enumerate(stack.sublayers):
        sublayer.register_forward_pre_hook(lambda *_, depth=depth: _count(calls, depth))
    stack.run_layer = lambda *args: checkpoint(*args, use_reentrant=False)
    _assert_equal(_forward_backward(stack, stack), expected)
    assert calls == [2] * N_SUBLAYERS


def _count(calls: list[int], depth: int) -> None:
    calls[depth] += 1


@every_config
def test_every_parameter_gets_a_gradient(config):
    stack = Stack(config)
    for name, gradient in _forward_backward(stack, stack).items():
        assert gradient.abs().max() > 0, name


@every_config
def test_flat_tensors_at_every_depth_carry_the_whole_state(config):
    """A pipeline stage receives tensors and a structure, nothing else."""
    stack = Stack(config)
    expected = _forward_backward(stack, stack)
    for cut in range(N_SUBLAYERS + 1):
        stages = copy.deepcopy([stack, stack])
        _assert_equal(_forward_backward(stack, lambda x, cut=cut: _cut(stack, x, cut)), expected)
        first, second = stages  # a stage of its own has memory of its own
        state = first.layer(first.residual.start(_embed()), 0, cut)
        leaves, structure = tree_flatten(state)
        received = tree_unflatten(
            [leaf if leaf is None else leaf.clone() for leaf in leaves], structure
        )
        state = second.layer(received, cut, N_SUBLAYERS)
        assert torch.equal(second.residual.finish(state), expected["out"])


def _cut(stack: Stack, embed_BTD: Tensor, cut: int) -> Tensor:
    state = stack.layer(stack.residual.start(embed_BTD), 0, cut)
    leaves, structure = tree_flatten(state)
    assert all(leaf is None or isinstance(leaf, Tensor) for leaf in leaves)
    return stack.residual.finish(stack.layer(tree_unflatten(leaves, structure), cut, N_SUBLAYERS))


@every_config
def test_a_failed_call_and_another_batch_size_leave_nothing_behind(config):
    stack = Stack(config)
    expected = _forward_backward(stack, stack)
    failing = stack.sublayers[4].register_forward_pre_hook(_fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        stack(_embed())
    failing.remove()
    assert stack(torch.randn(5, DIM)).shape == (5, DIM)
    _assert_equal(_forward_backward(stack, stack), expected)


def _fail(*_: object) -> None:
    raise RuntimeError("on purpose")


@every_config
def test_a_deep_copy_has_the_same_state_and_function(config):
    stack = Stack(config)
    twin = copy.deepcopy(stack)
    twin.load_state_dict(stack.state_dict())
    assert stack.residual.state_dict().keys() == twin.residual.state_dict().keys()
    _assert_equal(dict(twin.state_dict()), dict(stack.state_dict()))
    _assert_equal(_forward_backward(twin, twin), _forward_backward(stack, stack))


@every_config
def test_reset_parameters_restores_what_build_made(config):
    """From the same seed, where it draws."""
    torch.manual_seed(2)
    built = config.build(DIM, N_SUBLAYERS)
    changed = Stack(config).residual
    assert changed.n_sublayers == N_SUBLAYERS
    torch.manual_seed(2)
    changed.reset_parameters()
    _assert_equal(dict(changed.state_dict()), dict(built.state_dict()))


@every_config
def test_what_a_method_does_not_offer_is_refused_by_name(config):
    residual = config.build(DIM, N_SUBLAYERS)
    state = residual.start(_embed())
    assert residual.stream(state).shape == _embed().shape
    if isinstance(config, StandardConfig):
        with pytest.raises(NotImplementedError, match="Standard has no depth weights"):
            residual.weights(state, 0)


def test_the_contract_itself_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Residual()  # pyright: ignore[reportAbstractUsage]

    class Incomplete(Residual[Tensor]):
        def start(self, embed_BTD: Tensor) -> Tensor:
            return embed_BTD

    with pytest.raises(TypeError, match=r"finish.*read.*reset_parameters.*write"):
        Incomplete()  # pyright: ignore[reportAbstractUsage]


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{tmp_path}/rendezvous",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=20),
    )
    yield
    dist.destroy_process_group()


@every_config
def test_ddp_runs_without_find_unused_parameters(config, one_process):
    """A second step raises where a parameter of the first got no gradient."""
    stack = Stack(config).double()  # the order of additions differs
    expected = _forward_backward(stack, stack)
    parallel = DistributedDataParallel(stack)
    for _ in range(2):
        parallel.zero_grad()
        out_BTD = parallel(_embed(torch.float64))
        (out_BTD * torch.arange(DIM)).sum().backward()
    for name, parameter in stack.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, expected[name])
