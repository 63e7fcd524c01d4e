"""Loss by place of the study's last models, over sequences longer than they were trained on.

    python experiments/kimi_linear/lengths.py [--runs runs] [--length 1024] [--sequences 16]

No setting of a model is changed: it has no positions. Writes lengths.csv: the mean loss of the
places from one power of two to the next, nats a token, mean over seeds.
"""

import argparse
import csv
import math
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from attnres.experiment.folder import load_study
from attnres.experiment.runner import runs_folder
from attnres.experiment.study import Study
from attnres.models import AttnResForCausalLM
from attnres.train.data import load_data, pack

HERE = Path(__file__).parent


@torch.no_grad()
def loss_by_place(model: AttnResForCausalLM, tokens_RT: Tensor) -> Tensor:
    """Mean over sequences, nats, [T - 1]: place t predicts token t + 1."""
    total_T = torch.zeros(tokens_RT.shape[1] - 1, dtype=torch.float64)
    for tokens_BT in tokens_RT.long().split(2):
        logits_BVT = model(input_ids=tokens_BT, use_cache=False).logits[:, :-1].transpose(1, 2)
        each_BT = torch.nn.functional.cross_entropy(logits_BVT, tokens_BT[:, 1:], reduction="none")
        total_T += each_BT.sum(0).double()
    return total_T / len(tokens_RT)


def bins(length: int, trained: int) -> list[tuple[int, int]]:
    """[0, trained) in halves from the right end, then doubling to `length`."""
    edges = [0, trained // 4, trained // 2, trained]
    while edges[-1] < length:
        edges.append(min(2 * edges[-1], length))
    return list(pairwise(edges))


def models_of(study: Study, runs: Path) -> dict[str, list[Path]]:
    """The saved models of each arm; ValueError where an arm has none."""
    found = {}
    for arm in study.arms:
        found[arm] = sorted(runs_folder(study, runs).glob(f"final-{arm}-lr*-seed*/model"))
        if not found[arm]:
            raise ValueError(
                f"no final model of {arm} below {runs}: attnres experiment kimi_linear"
            )
    return found


def rows(runs: Path, length: int, n_sequences: int, is_quick: bool) -> list[tuple[Any, ...]]:
    """One a range of places of each arm."""
    study, found = load_study(HERE, is_quick), []
    folders = models_of(study, runs)
    tokens_RT = pack(load_data(study.base.data).validation_tokens, length)[:n_sequences]
    for arm, saved in folders.items():
        models = (AttnResForCausalLM.from_pretrained(folder).eval() for folder in saved)
        losses = [loss_by_place(model, tokens_RT) for model in models]
        for first, last in bins(length - 1, study.base.seq_len):
            loss = mean(losses_T[first:last].mean().item() for losses_T in losses)
            place = (arm, len(losses), study.base.seq_len, first, last)
            found.append((*place, f"{loss:.4f}", f"{math.exp(loss):.2f}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="of the quick study")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = rows(chosen.runs, chosen.length, chosen.sequences, chosen.quick)
    with (HERE / "lengths.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ("arm", "n_seeds", "trained_on", "from_place", "to_place", "loss", "perplexity")
        )
        writer.writerows(found)


if __name__ == "__main__":
    main()
