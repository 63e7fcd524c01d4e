"""The optimizers of a run, and the learning rate of every step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn
from torch.optim import Optimizer

from attnres.train.kinds import GroupName, Kind, kinds
from attnres.train.muon import Muon

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
        expert_bias_rate: step of the bias by which a router's experts are used alike, where a
            family has one (`attnres.train.moe`).
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
    expert_bias_rate: float = 1e-3

    def __post_init__(self):
        for name, allowed in {"optimizer": OptimizerName, "schedule": Schedule}.items():
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name} {getattr(self, name)!r} is not in {get_args(allowed)}")
        for name in ("lr", "eps", "depth_lr_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)!r} is not positive and finite")
        for name in ("weight_decay", "depth_weight_decay", "clip_norm", "warmup_steps",
                     "expert_bias_rate"):  # fmt: skip
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
    n_parts: int = 1  # equal runs of rows that are matrices of their own


BY_MUON = ("matrices", "stacks")


def param_groups(model: nn.Module, config: OptimConfig) -> list[ParamGroup]:
    """Every trainable parameter of the model in exactly one group; no group is empty.

    A tied parameter counts once, under its first name. The head is the nn.Linear that the model's
    `get_output_embeddings()` returns, or any module tied to an embedding. There is a group
    "depth" for each way in which a residual method has its parameters trained, and one of two
    `n_parts` for gate and up projections in one parameter.

    Raises:
        ValueError: a residual method whose `tuning` names a parameter twice, none of its own, or
            leaves a trainable one out.
    """
    members: dict[Kind, dict[str, nn.Parameter]] = {}
    kind_of = kinds(model)
    for name, param in model.named_parameters():
        if param.requires_grad:
            members.setdefault(kind_of[id(param)], {})[name] = param
    return [
        ParamGroup(
            name=kind.name,
            params=tuple(params.values()),
            param_names=tuple(params),
            weight_decay=_weight_decay(kind, config),
            optimizer=config.optimizer if kind.name in BY_MUON else "adamw",
            lr_scale=kind.lr_scale * (config.depth_lr_scale if kind.name == "depth" else 1.0),
            n_parts=kind.n_parts,
        )
        for kind, params in members.items()
    ]


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
                "n_parts": group.n_parts,  # Muon's; AdamW looks at no entry
            }
        )
    optimizers: list[Optimizer] = []
    if groups["adamw"]:
        optimizers.append(_build_adamw(groups["adamw"], config))
    if groups["muon"]:
        optimizers.append(Muon(groups["muon"], lr=config.lr, momentum=config.muon_momentum))
    return optimizers


def _build_adamw(groups: list[dict], config: OptimConfig) -> Optimizer:
    betas = (config.beta1, config.beta2)
    # Fused: one pass over a parameter, element by element, so the same bits for any thread count.
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


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
