"""Muon: steps along the orthogonal factor of a matrix's momentum (arXiv:2502.16982, section 2.2).

    momentum_MN = 0.95 momentum_MN + 0.05 gradient_MN
    update_MN   = orthogonal(0.05 gradient_MN + 0.95 momentum_MN)       Nesterov's look ahead
    weight_MN   = (1 - lr decay) weight_MN - lr 0.2 sqrt(max(M, N)) update_MN

`torch.optim.Muon` takes one matrix a parameter and works in bfloat16. Here a parameter may be a
stack of matrices, as the experts of a layer are, or one matrix over several, and the arithmetic is
in float32 on a processor, where bfloat16 has no unit of its own on most and takes ten times as
long. On one matrix in bfloat16 the two are equal bit for bit. Small matrices of one shape, as those
of the layers are, go through the iteration together. A sharded matrix is gathered, every rank
iterates on the whole, and keeps its own rows of the update.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic: arXiv:2502.16982, section 2.1
N_ITERATIONS = 5
SMALLEST_NORM = 1e-7  # below it a gradient stays small
SMALL = 2**14  # entries of a parameter up to which a stack of them was faster
STACKED = 2**21  # entries that are copied into one stack at most


class Muon(Optimizer):
    """Muon for parameters of two axes and more: the last two are those of a matrix.

    Args:
        params: parameters, named or not, or groups; a group may set `n_parts`.
        lr: learning rate, as for AdamW: the update has about its size, 0.2 an entry.
        momentum: share of the momentum that a step keeps.
        weight_decay: share of the weight, times `lr`, that a step takes away.
        n_parts: equal runs of rows that are matrices of their own: 2 where gate and up projection
            are fused, the number of heads for a Muon a head.
        dtype: of the iteration; None is bfloat16 on a GPU and float32, or the parameter's own where
            that is wider, elsewhere.

    Raises:
        ValueError: a parameter that is no matrix, or whose rows do not divide.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        n_parts: int = 1,
        dtype: torch.dtype | None = None,
    ):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"n_parts": n_parts, "dtype": dtype})
        for group in self.param_groups:
            for param in group["params"]:
                _check_matrix(param, group["n_parts"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step for every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in _stacks([param for param in group["params"] if param.grad is not None]):
                self._move(params, group)
        return loss

    def _move(self, params: list[Tensor], group: dict) -> None:
        """One step of parameters of one shape, dtype and device."""
        aheads = [self._ahead(param, group) for param in params]
        stack = torch.stack(aheads) if len(aheads) > 1 else aheads[0][None]
        updates = orthogonal(stack, group["dtype"] or _dtype_for(params[0])).flatten(-3, -2)
        size = 0.2 * math.sqrt(max(stack.shape[-2:]))
        for param, update in zip(params, updates, strict=True):
            param.mul_(1 - group["lr"] * group["weight_decay"])
            param.add_(_part_of(update, param), alpha=-group["lr"] * size)

    def _ahead(self, param: Tensor, group: dict) -> Tensor:
        """The whole momentum after this gradient, a step on: [..., n_parts, M, N]."""
        grad = param.grad
        assert grad is not None  # `step` takes no other
        state = self.state[param]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        momentum = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
        ahead = _whole(grad.lerp(momentum, group["momentum"]))
        return ahead.unflatten(-2, (group["n_parts"], -1))


def _stacks(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """The parameters, small ones of one kind together: the same runs for the same parameters."""
    alike: dict[tuple, list[Tensor]] = {}
    for param in params:
        if isinstance(param, DTensor) or param.numel() > SMALL:
            yield [param]  # gathered one at a time, or busy by itself
        else:
            assert param.grad is not None  # `step` takes no other
            kind = (param.shape, param.dtype, param.grad.dtype, param.device)
            alike.setdefault(kind, []).append(param)
    for stack in alike.values():
        n_together = STACKED // max(1, stack[0].numel())
        yield from (stack[i : i + n_together] for i in range(0, len(stack), n_together))


def orthogonal(matrix_MN: Tensor, dtype: torch.dtype) -> Tensor:
    """About U V^T of each matrix U S V^T, in `dtype`: singular values end between 0.7 and 1.2.

    Args:
        matrix_MN: [..., M, N]; a zero matrix stays zero.
        dtype: of the arithmetic and of what is returned.
    """
    a, b, c = COEFFICIENTS
    wide = matrix_MN.to(dtype)
    is_tall = wide.shape[-2] > wide.shape[-1]
    wide = wide.mT if is_tall else wide
    wide = wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(N_ITERATIONS):
        gram = wide @ wide.mT
        wide = _add_product(wide, _add_product(gram, gram, gram, b, c), wide, a, 1.0)
    return wide.mT if is_tall else wide


def _add_product(term: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * term + alpha * left @ right for matrices or stacks of them, rounded once."""
    if math.prod(term.shape[:-2]) == 1:
        matrices = (each.reshape(each.shape[-2:]) for each in (term, left, right))
        return torch.addmm(*matrices, beta=beta, alpha=alpha).view(term.shape)
    stacks = (each.flatten(0, -3) for each in (term, left, right))
    return torch.baddbmm(*stacks, beta=beta, alpha=alpha).view(term.shape)


def _whole(matrix: Tensor) -> Tensor:
    """Gathered where it is sharded: the rows of a shard alone are not orthogonal to the others."""
    return matrix.full_tensor() if isinstance(matrix, DTensor) else matrix


def _part_of(matrix: Tensor, param: Tensor) -> Tensor:
    """This rank's shard of a matrix that every rank has whole; nothing is sent."""
    if not isinstance(param, DTensor):
        return matrix
    everywhere = [Replicate()] * param.device_mesh.ndim
    matrix = DTensor.from_local(matrix, param.device_mesh, everywhere, run_check=False)
    return matrix.redistribute(placements=param.placements)


def _dtype_for(param: Tensor) -> torch.dtype:
    if param.device.type == "cuda":
        return torch.bfloat16
    return torch.promote_types(param.dtype, torch.float32)


def _check_matrix(param: Tensor, n_parts: int) -> None:
    shape = tuple(param.shape)
    if len(shape) < 2:
        raise ValueError(
            f"Muon takes matrices and stacks of them, got a parameter of shape {shape}"
        )
    if n_parts < 1 or shape[-2] % n_parts:
        raise ValueError(f"{shape[-2]} rows are not {n_parts} equal parts: shape {shape}")
