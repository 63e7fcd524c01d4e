"""Does attention over depth help a pretrained model that is trained on?

    python experiments/conversion/runs.py            all runs that results.csv lacks, then a summary
    python experiments/conversion/runs.py --arm queries    those of one arm, beside another process
    python experiments/conversion/runs.py --smoke    two steps of each arm; give it other --results

Every run appends one row to results.csv; stopped at any time, the same command goes on.
"""

import argparse
import copy
import csv
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnres.experiment.paired import paired_difference
from attnres.models import convert
from attnres.models.pretrained import Pretrained, load_pretrained
from attnres.train.corpus import embedded_documents
from attnres.train.data import batch_at, pack, split_documents
from attnres.train.optim import OptimConfig, lr_factor, query_lr

HERE = Path(__file__).parent
QUERY_LR = 3e-4  # at width 256; the arms that train weights too do not tune it
LEARNING_RATES = {  # four an arm: of the weights, of the queries where nothing else is trained
    "unconverted": (1e-5, 3e-5, 1e-4, 3e-4),
    "everything": (1e-5, 3e-5, 1e-4, 3e-4),
    "queries": (1e-4, 3e-4, 1e-3, 3e-3),
    "lora and queries": (3e-4, 1e-3, 3e-3, 1e-2),
}
REFERENCE = "unconverted"
SEEDS = (0, 1, 2)
TUNING_SEED = 100
SETTINGS = OptimConfig(weight_decay=0.0, warmup_steps=3, min_lr_fraction=0.1)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What decides a run."""

    arm: str
    lr: float
    seed: int  # of the order of the text, and of LoRA's weights
    n_steps: int = 24
    batch_size: int = 2  # sequences
    seq_len: int = 128  # tokens
    n_validation: int = 16  # sequences: the first half chooses the rate, the second is reported


@dataclass(frozen=True, kw_only=True)
class Row(Setting):
    """A run and what came out of it; losses in nats a token."""

    phase: str  # tuning or final
    n_trained: int  # parameters
    tuning_before: float
    tuning_after: float
    report_before: float
    report_after: float
    train_loss_last: float  # of the last step, before it
    seconds: float
    torch_version: str


class Text:
    """Moby Dick in tokens of the model; every tenth chapter is held out."""

    def __init__(self, tokenizer: Any, setting: Setting):
        documents = [d.text for d in embedded_documents() if "moby" in d.source.lower()]
        train, held_out = split_documents(documents, 0.1)
        self.train_RT = pack(_tokens(tokenizer, train), setting.seq_len)
        held_out_RT = pack(_tokens(tokenizer, held_out), setting.seq_len)
        stride = len(held_out_RT) // setting.n_validation
        self.validation_RT = held_out_RT[::stride][: setting.n_validation].long()


def _tokens(tokenizer: Any, documents: list[str]) -> Tensor:
    ids = [i for text in documents for i in (*tokenizer(text)["input_ids"], tokenizer.eos_token_id)]
    return torch.tensor(ids, dtype=torch.int32)


def build(arm: str, loaded: Pretrained, seed: int) -> nn.Module:
    """A model of its own for an arm; what is not trained is frozen."""
    if arm == "unconverted":
        return copy.deepcopy(loaded.model)
    model = convert(loaded.model, n_blocks=8, copy_weights=True)
    if arm == "everything":
        return model
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if arm == "lora and queries":
        from peft import LoraConfig, inject_adapter_in_model

        torch.manual_seed(seed)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        inject_adapter_in_model(LoraConfig(r=8, lora_alpha=16, target_modules=targets), model)
    for parameter in model.residual.parameters():
        parameter.requires_grad_(True)
    return model


def groups(model: nn.Module, setting: Setting) -> list[dict[str, Any]]:
    """Parameters with their peak rate: readers at that of a query, all else at the tuned one."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    readers = [p for name, p in named if name.startswith("residual.")]
    others = [p for name, p in named if not name.startswith("residual.")]
    base = QUERY_LR if others else setting.lr
    dim = readers[0].shape[0] if readers else 1
    both = [(others, setting.lr), (readers, query_lr(base, dim))]
    return [{"params": params, "peak_lr": lr} for params, lr in both if params]


def train(model: nn.Module, text: Text, setting: Setting, device: str) -> float:
    """The loss of the last step."""
    optimizer = torch.optim.AdamW(groups(model, setting), weight_decay=0.0, betas=(0.9, 0.95))
    model.train()
    loss = float("nan")
    for step in range(setting.n_steps):
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * lr_factor(SETTINGS, step, setting.n_steps)
        tokens_BT = batch_at(text.train_RT, step, setting.batch_size, setting.seed).to(device)
        output = model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False)
        output.loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = output.loss.item()
    return loss


@torch.no_grad()
def validate(model: nn.Module, text: Text, device: str) -> tuple[float, float]:
    """Mean loss of the half that chooses the rate, and of the half that is reported."""
    model.eval()
    losses = []
    for tokens_T in text.validation_RT.to(device):
        batch_BT = tokens_T.unsqueeze(0)
        losses.append(model(input_ids=batch_BT, labels=batch_BT, use_cache=False).loss.item())
    return statistics.fmean(losses[::2]), statistics.fmean(losses[1::2])


class Experiment:
    """Runs that a results file lacks, one row each."""

    def __init__(self, file: Path, device: str):
        self.file, self.device = file, device
        self.loaded = load_pretrained("smollm2", "float32")
        self.loaded.model.to(device)
        self.texts: dict[tuple, tuple[Text, tuple[float, float]]] = {}

    def run(self, setting: Setting, phase: str) -> Row:
        for row in read_rows(self.file):
            if (row.phase, _key(row)) == (phase, _key(setting)):
                return row
        text, before = self._text(setting)
        start = time.perf_counter()
        model = build(setting.arm, self.loaded, setting.seed)
        last = train(model, text, setting, self.device)
        after = validate(model, text, self.device)
        row = Row(
            **asdict(setting),
            phase=phase,
            n_trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
            tuning_before=before[0],
            tuning_after=after[0],
            report_before=before[1],
            report_after=after[1],
            train_loss_last=last,
            seconds=round(time.perf_counter() - start, 1),
            torch_version=torch.__version__,
        )
        append(self.file, row)
        said = f"{phase} {setting.arm} lr {setting.lr} seed {setting.seed}"
        print(f"{said}: {after} ({row.seconds} s)", flush=True)
        return row

    def _text(self, setting: Setting) -> tuple[Text, tuple[float, float]]:
        """The text, and the loss before training: one for all arms, since conversion is exact."""
        key = (setting.seq_len, setting.n_validation)
        if key not in self.texts:
            text = Text(self.loaded.tokenizer, setting)
            self.texts[key] = text, validate(self.loaded.model, text, self.device)
        return self.texts[key]


def run_all(
    experiment: Experiment, base: Setting, arms: list[str], seeds: tuple[int, ...] = SEEDS
) -> list[Row]:
    """Four rates an arm with a seed of their own, then every seed at the best one."""
    rows = []
    for arm in arms:
        rates = LEARNING_RATES[arm]
        settings = [replace(base, arm=arm, lr=lr, seed=TUNING_SEED) for lr in rates]
        tried = [experiment.run(setting, "tuning") for setting in settings]
        best = min(tried, key=lambda row: row.tuning_after).lr
        for seed in seeds:
            rows.append(experiment.run(replace(base, arm=arm, lr=best, seed=seed), "final"))
    return rows


def read_rows(file: Path) -> list[Row]:
    if not file.exists():
        return []
    kinds: dict[str, Any] = {field.name: field.type for field in fields(Row)}
    with file.open(newline="") as stream:
        return [
            Row(**{name: kinds[name](value) for name, value in row.items()})
            for row in csv.DictReader(stream)
        ]


def append(file: Path, row: Row) -> None:
    is_new = not file.exists()
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))


def _key(setting: Setting) -> tuple:
    return tuple(getattr(setting, field.name) for field in fields(Setting))


def summary(rows: list[Row]) -> Iterator[str]:
    """One line an arm: mean and deviation over seeds, and the difference paired by seed."""
    yield f"{'arm':18} {'lr':>8} {'before':>8} {'after':>8} {'sd':>7}  less unconverted, 95 %"
    losses: dict[str, list[float]] = {}
    for arm in dict.fromkeys(row.arm for row in rows):
        own = [row for row in rows if row.arm == arm]
        after = losses[arm] = [row.report_after for row in own]
        sd = statistics.stdev(after) if len(after) > 1 else float("nan")
        line = f"{arm:18} {own[0].lr:8g} {own[0].report_before:8.4f} "
        line += f"{statistics.fmean(after):8.4f} {sd:7.4f}"
        if arm != REFERENCE and REFERENCE in losses:
            difference = paired_difference(after, losses[REFERENCE])
            line += f"  {difference.mean:+.4f} +- {difference.half_width or float('nan'):.4f}"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="two steps a run, one seed")
    parser.add_argument("--arm", action="append", choices=list(LEARNING_RATES), dest="arms")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=HERE / "results.csv")
    chosen = parser.parse_args()
    base = Setting(arm="", lr=1.0, seed=0)
    if chosen.smoke:
        base = replace(base, n_steps=2, batch_size=1, seq_len=16, n_validation=2)
    experiment = Experiment(chosen.results, chosen.device)
    arms = chosen.arms or list(LEARNING_RATES)
    rows = run_all(experiment, base, arms, SEEDS[:1] if chosen.smoke else SEEDS)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
