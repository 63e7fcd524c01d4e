"""A pipeline's steps beside those of one process, on every rank of a group."""

import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tiny_models import text_config
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from attnres.distributed import world
from attnres.distributed.data_parallel import own_rows, whole
from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.train.optim import OptimConfig, build_optimizers

N_STEPS, N_SEQUENCES, SEQ_LEN = 3, 8, 7  # sequences of a step
BLOCKS = "attn_res:sublayers_per_block=4"  # 10 sublayers in blocks of 4, 4 and 2
OPTIM = OptimConfig(lr=1e-2)


@dataclass(frozen=True)
class Case:
    schedule: str = "interleaved"
    cuts: tuple[int, ...] = (3, 5, 7)  # each inside a block, and inside a layer
    n_virtual: int = 2
    keep: Any = "all"
    residual: str = BLOCKS
    checkpointed: bool = False
    tied: bool = True
    dtype: torch.dtype = torch.float64
    autocast: torch.dtype | None = None
    n_microbatches: int = 4
    n_data: int = 1  # ranks that share a stage, whose parameters are sharded over them

    @property
    def n_stages(self) -> int:
        return (len(self.cuts) + 1) // self.n_virtual

    @property
    def n_ranks(self) -> int:
        return self.n_stages * self.n_data

    @property
    def n_accumulations(self) -> int:
        return N_SEQUENCES // self.n_microbatches // self.n_data


@dataclass
class Step:
    loss: float
    norm: float
    gradients: dict[str, Tensor]


@dataclass
class Run:
    """What a rank found; `expected` is what one process finds."""

    case: Case
    steps: list[Step]
    expected: list[Step]
    sent: tuple[int, int]
    planned: tuple[int, int]  # of one pass
    n_kept: list[int]  # after each call
    losses: tuple[float, float]  # of a validation after the first step, and of one in one process


def config(case: Case) -> AttnResCausalLMConfig:
    text = text_config(num_hidden_layers=5, tie_word_embeddings=case.tied)
    return AttnResCausalLMConfig(text_config=text, residual=case.residual)


def train(module: nn.Module) -> None:
    """Away from zero queries, each parameter by its name, and into training mode."""
    for name, parameter in module.named_parameters():
        if name.startswith("residual."):
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = (0.2 * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)
            if isinstance(parameter, DTensor):
                noise = distribute_tensor(noise, parameter.device_mesh, parameter.placements)
            parameter.data += noise
    module.train()


def tokens(n_sequences: int = N_STEPS * N_SEQUENCES) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(3, 97, (n_sequences, SEQ_LEN), generator=generator)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    found = module.named_parameters()
    return {name: whole(p.grad).clone() for name, p in found if p.grad is not None}


@cache
def one_process(
    residual: str, tied: bool, dtype: torch.dtype, autocast: torch.dtype | None
) -> tuple[list[Step], float]:
    """Its steps, and the loss of five sequences after the first."""
    torch.manual_seed(0)
    model: Any = AttnResForCausalLM(config(Case(residual=residual, tied=tied)))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    train(model)
    optimizers, steps, validation = build_optimizers(model, OPTIM), [], []

    def loss_of(tokens_BT: Tensor) -> Tensor:
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            return model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss

    for tokens_BT in tokens().chunk(N_STEPS):
        total = 0.0
        for sequence_BT in tokens_BT.split(1):
            loss = loss_of(sequence_BT) / N_SEQUENCES
            loss.backward()
            total += loss.item()
        found = gradients(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        steps.append(Step(total, norm, found))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            validation.append(sum(loss_of(x_BT).item() for x_BT in tokens(5).split(1)) / 5)
    return steps, validation[0]


def run_case(case: Case) -> Run:
    from attnres.distributed import Pipeline, plan_for

    made = config(case)
    plan = plan_for(made, case.n_stages, case.n_virtual, case.cuts, case.keep)
    mesh = world.mesh_of("cpu", case.n_stages, timeout_s=120)
    torch.manual_seed(0)
    pipeline = Pipeline(
        made,
        plan,
        schedule=case.schedule,
        n_microbatches=case.n_microbatches,
        seq_len=SEQ_LEN,
        group=mesh["pipeline"].get_group(),
        dtype=case.dtype,
        autocast=case.autocast,
        shard_over=mesh["data"] if case.n_data > 1 else None,
    )
    train(pipeline.module)
    if case.checkpointed:
        pipeline.module.activation_checkpointing_enable()
    optimizers, steps, n_kept = build_optimizers(pipeline.module, OPTIM), [], []
    sent, validation = torch.zeros(2, dtype=torch.long), []
    for tokens_BT in tokens().chunk(N_STEPS):
        before = torch.tensor(pipeline.sent_bytes)
        own_BT = own_rows(tokens_BT, mesh["data"])
        losses = [
            pipeline.backward(part_BT, case.n_accumulations)
            for part_BT in own_BT.chunk(case.n_accumulations)
        ]
        n_kept.append(pipeline.n_kept)
        sent += torch.tensor(pipeline.sent_bytes) - before
        found = gradients(pipeline.module)
        norm = pipeline.clip_grad_norm_(1.0)
        loss = sum(world.gathered(sum(losses), mesh["data"].get_group()))
        steps.append(Step(loss / case.n_accumulations / case.n_data, norm, found))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if not validation:
            validation.append(pipeline.loss(tokens(5)))
            n_kept.append(pipeline.n_kept)
            assert pipeline.module.training
        are_sharded = {isinstance(p, DTensor) for p in pipeline.module.parameters()}
        assert are_sharded == {case.n_data > 1}  # nothing gathered stays between passes
    expected, expected_loss = one_process(case.residual, case.tied, case.dtype, case.autocast)
    losses = validation[0], expected_loss
    sent_bytes = int(sent[0]), int(sent[1])
    return Run(case, steps, expected, sent_bytes, pipeline.planned_bytes, n_kept, losses)


def run_cases(rank: int, cases: list[Case]) -> list[Run]:
    return [run_case(case) for case in cases]
