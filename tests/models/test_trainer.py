"""The Trainer of transformers trains, saves and resumes a model."""

import pytest
import torch
from tiny_models import build, tokens
from transformers import Trainer, TrainingArguments

from attnres.models import AttnResForCausalLM


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trainer_runs_three_steps(checkpointing, tmp_path):
    model = build(trained=False)
    rows = [{"input_ids": row_T, "labels": row_T} for row_T in tokens(batch=6)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        gradient_checkpointing=checkpointing,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)  # pyright: ignore
    trainer.train()
    assert trainer.state.global_step == 3
    reader = model.residual.readers[-1]
    assert reader.query.any()
    loaded = AttnResForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
