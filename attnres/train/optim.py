"""Which optimizer, learning rate and decay every parameter of a model gets.

matrices    2-D weights of hidden layers   Muon when chosen, decayed
stacks      3-D and more: experts          AdamW, decayed
embeddings  nn.Embedding and the head      AdamW, decayed
vectors     norm gains, biases, scalars    AdamW, not decayed
depth       all that a Residual holds      AdamW, each at its share of the learning rate, and
                                           decayed or not, as `Residual.tuning` says
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from attnres.residual import Residual

GroupName = Literal["matrices", "stacks", "embeddings", "vectors", "depth"]
OptimizerName = Literal["adamw", "muon"]
Schedule = Literal["cosine", "wsd"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Optimizer, decay and learning-rate schedule of a run.

    Args:
        lr: peak learning rate of both optimizers; Muon's update is scaled to the RMS of AdamW's.
        weight_decay: decay of matrices, stacks, embeddings and head; vectors are never decayed.
        clip_norm: largest norm of the whole gradient; 0 does not clip.
        schedule: "cosine" falls from the warmup on; "wsd" stays constant, then falls in a line.
        decay_fraction: share of the steps in which "wsd" falls.
        min_lr_fraction: share of `lr` left at the end.
        depth_weight_decay: decay of what a residual method learns and does not ask to be decayed as
            a matrix is. 0, since a decayed query is pulled back to zero, which mixes all sources
            alike; implementations that know no depth parameters decay them as any other.
        depth_lr_scale: multiplies the learning rate of all that a residual method learns, over the
            share that the method itself takes; a method is tuned by it.
    """

    optimizer: OptimizerName = "adamw"
    lr: float = 3e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip_norm: float = 1.0
    schedule: Schedule = "cosine"
    warmup_steps: int = 20
    decay_fraction: float = 0.2
    min_lr_fraction: float = 0.1
    muon_momentum: float = 0.95
    depth_weight_decay: float = 0.0
    depth_lr_scale: float = 1.0

    def __post_init__(self):
        for name, allowed in {"optimizer": OptimizerName, "schedule": Schedule}.items():
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name} {getattr(self, name)!r} is not in {get_args(allowed)}")
        for name in ("lr", "eps", "depth_lr_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)!r} is not positive and finite")
        for name in ("weight_decay", "depth_weight_decay", "clip_norm", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)!r} is not finite and at least 0")
        for name in ("beta1", "beta2", "muon_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)!r} is not in [0, 1)")
        for name in ("decay_fraction", "min_lr_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)!r} is not in [0, 1]")


@dataclass(frozen=True)
class ParamGroup:
    """Parameters of one kind, which share an optimizer, a weight decay and a learning rate."""

    name: GroupName
    params: tuple[nn.Parameter, ...]
    param_names: tuple[str, ...]
    weight_decay: float
    optimizer: OptimizerName
    lr_scale: float = 1.0  # over the learning rate of the step


class Kind(NamedTuple):
    """What the parameters of a group have in common."""

    name: GroupName
    is_decayed: bool
    lr_scale: float = 1.0


KINDS: tuple[Kind, ...] = (
    Kind("matrices", is_decayed=True),
    Kind("stacks", is_decayed=True),
    Kind("embeddings", is_decayed=True),
    Kind("vectors", is_decayed=False),
)


def param_groups(model: nn.Module, config: OptimConfig) -> list[ParamGroup]:
    """Every trainable parameter of the model in exactly one group; no group is empty.

    A tied parameter counts once, under its first name. The head is the nn.Linear that the model's
    `get_output_embeddings()` returns, or any module tied to an embedding. There is a group
    "depth" for each way in which a residual method has its parameters trained.

    Raises:
        ValueError: a residual method whose `tuning` names a parameter twice, none of its own, or
            leaves a trainable one out.
    """
    members: dict[Kind, dict[str, nn.Parameter]] = {kind: {} for kind in KINDS}
    embeddings, depth = _embedding_ids(model), _depth_kinds(model)
    for name, param in model.named_parameters():
        if param.requires_grad:
            kind = _kind(param, embeddings, depth)
            members.setdefault(kind, {})[name] = param
    return [
        ParamGroup(
            name=kind.name,
            params=tuple(params.values()),
            param_names=tuple(params),
            weight_decay=_weight_decay(kind, config),
            optimizer=config.optimizer if kind.name == "matrices" else "adamw",
            lr_scale=kind.lr_scale * (config.depth_lr_scale if kind.name == "depth" else 1.0),
        )
        for kind, params in members.items()
        if params
    ]


def _embedding_ids(model: nn.Module) -> set[int]:
    ids = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    get_head = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head else None
    return ids | {id(head.weight)} if isinstance(head, nn.Linear) else ids


def _depth_kinds(model: nn.Module) -> dict[int, Kind]:
    """The kind of every parameter of every residual method, by id."""
    kinds: dict[int, Kind] = {}
    for residual in [module for module in model.modules() if isinstance(module, Residual)]:
        by_name = _kinds_by_name(residual)
        for name, param in residual.named_parameters():
            if param.requires_grad and name not in by_name:
                method = type(residual).__name__
                raise ValueError(f"{method} does not say how its parameter {name} is trained")
            if name in by_name:
                kinds.setdefault(id(param), by_name[name])  # of the outer, where one holds another
    return kinds


def _kinds_by_name(residual: Residual[Any]) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    own = {name for name, _ in residual.named_parameters()}
    for names, lr_scale, is_decayed in residual.tuning():
        for name in names:
            if name in kinds or name not in own:
                wrong = "twice" if name in kinds else "but has it not"
                raise ValueError(f"{type(residual).__name__}.tuning names {name} {wrong}")
            kinds[name] = Kind("depth", is_decayed, lr_scale)
    return kinds


def _kind(param: nn.Parameter, embeddings: set[int], depth: dict[int, Kind]) -> Kind:
    matrices, stacks, embedding, vectors = KINDS
    if id(param) in embeddings:
        return embedding
    if id(param) in depth:
        return depth[id(param)]
    if param.ndim < 2:
        return vectors
    return matrices if param.ndim == 2 else stacks


def _weight_decay(kind: Kind, config: OptimConfig) -> float:
    if kind.is_decayed:
        return config.weight_decay
    return config.depth_weight_decay if kind.name == "depth" else 0.0


def build_optimizers(model: nn.Module, config: OptimConfig) -> list[Optimizer]:
    """AdamW, then Muon; one that would have nothing to train is not made."""
    groups: dict[OptimizerName, list[dict]] = {"adamw": [], "muon": []}
    for group in param_groups(model, config):
        named = list(zip(group.param_names, group.params, strict=True))
        groups[group.optimizer].append(
            {
                "params": named,
                "name": group.name,
                "weight_decay": group.weight_decay,
                "lr_scale": group.lr_scale,
                "lr": config.lr * group.lr_scale,
            }
        )
    optimizers: list[Optimizer] = []
    if groups["adamw"]:
        optimizers.append(_build_adamw(groups["adamw"], config))
    if groups["muon"]:
        optimizers.append(_build_muon(groups["muon"], config))
    return optimizers


def _build_adamw(groups: list[dict], config: OptimConfig) -> Optimizer:
    betas = (config.beta1, config.beta2)
    # Fused: one pass over a parameter, element by element, so the same bits for any thread count.
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def _build_muon(groups: list[dict], config: OptimConfig) -> Optimizer:
    return torch.optim.Muon(
        groups,
        lr=config.lr,
        momentum=config.muon_momentum,
        adjust_lr_fn="match_rms_adamw",  # lr * 0.2 sqrt(max(rows, columns)): arXiv:2502.16982
    )


def query_lr(base_lr: float, dim: int) -> float:
    """Learning rate for the queries of a pretrained model: base_lr * min(1, 256 / dim).

    A key has norm sqrt(dim), so one step of AdamW, which moves every entry of a query by about the
    learning rate, moves a logit over depth by up to learning rate * dim. From 256 on the step of a
    logit is held at that of width 256, at most 256 * base_lr nats; a pretrained model, whose
    weights expect what it reads, is thrown off by more.
    """
    if not 0 < base_lr < math.inf or dim < 1:
        raise ValueError(f"base_lr and dim are positive, got {base_lr} and {dim}")
    return base_lr * min(1.0, 256 / dim)


def lr_factor(config: OptimConfig, step: int, n_steps: int) -> float:
    """Share of the peak learning rate in `step`, counted from 0, of a run of `n_steps`.

    The warmup rises from 1 / warmup_steps to 1; a run that is no longer than its warmup ends in it.
    The minimum is reached at step n_steps, the first beyond the run, and kept from there on.
    """
    if step < 0 or n_steps < 1:
        raise ValueError(f"step {step} of {n_steps}: a run has a step 0 and at least one step")
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = _decay_progress(config, step, n_steps)
    cosine = config.schedule == "cosine"
    left = (1 + math.cos(math.pi * progress)) / 2 if cosine else 1 - progress
    return config.min_lr_fraction + (1 - config.min_lr_fraction) * left


def _decay_progress(config: OptimConfig, step: int, n_steps: int) -> float:
    start = config.warmup_steps
    if config.schedule == "wsd":
        start = max(start, n_steps * (1 - config.decay_fraction))
    if step >= n_steps:
        return 1.0
    return (step - start) / (n_steps - start) if step > start else 0.0


def set_lr(optimizers: Sequence[Optimizer], config: OptimConfig, step: int, n_steps: int) -> float:
    """Give every group its share of the learning rate of this step, and return the whole."""
    lr = config.lr * lr_factor(config, step, n_steps)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
    return lr
