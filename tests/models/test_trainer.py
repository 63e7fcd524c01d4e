"""The Trainer of transformers trains, saves and resumes a model, also a converted one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import assert_same, build, plain, tokens
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from attnres.models import AttnResForCausalLM, convert

pytestmark = pytest.mark.slow


def trainer_of(model: Any, folder: Path, *, n_steps: int = 3, **settings: Any) -> Trainer:
    rows = [{"input_ids": row_T, "labels": row_T} for row_T in tokens(batch=6)]
    arguments: Any = {
        "output_dir": str(folder),
        "max_steps": n_steps,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(**{**arguments, **settings})
    return Trainer(model=model, args=arguments, train_dataset=rows)  # pyright: ignore  a list will do


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trainer_runs_three_steps(checkpointing, tmp_path):
    model = build(trained=False)
    trainer = trainer_of(model, tmp_path, gradient_checkpointing=checkpointing)
    trainer.train()
    assert trainer.state.global_step == 3
    reader = model.residual.readers[-1]
    assert reader.query.any()
    loaded = AttnResForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    assert_same(loaded.state_dict(), model.state_dict())


def converted(trains: str = "everything") -> Any:
    model: Any = convert(plain(), n_blocks=3)
    if trains == "queries":
        model.requires_grad_(False)
        for reader in list(model.residual.readers)[1:]:
            reader.query.requires_grad_(True)
    return model


def tensors(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


class StopAfter(TrainerCallback):
    """Ends training as an interruption would: between two steps."""

    def __init__(self, n_steps: int):
        self.n_steps = n_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.n_steps


@pytest.mark.parametrize("trains", ["everything", "queries"])
def test_a_converted_model_resumes_to_the_same_weights(trains, tmp_path):
    before, whole = tensors(converted()), converted(trains)
    trainer_of(whole, tmp_path / "whole", n_steps=6).train()

    cut = {"n_steps": 6, "save_strategy": "steps", "save_steps": 3}
    first = trainer_of(converted(trains), tmp_path / "cut", **cut)
    first.add_callback(StopAfter(3))
    first.train()
    resumed = converted(trains)
    second = trainer_of(resumed, tmp_path / "cut", **cut)
    second.train(resume_from_checkpoint=True)

    assert second.state.global_step == 6
    assert_same(tensors(resumed), tensors(whole))
    moved = {name for name, value in before.items() if not torch.equal(value, tensors(whole)[name])}
    queries = {name for name in before if name.endswith(".query")}
    assert len(queries) == 6
    assert moved == (queries if trains == "queries" else set(before))
