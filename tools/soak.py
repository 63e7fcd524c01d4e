"""Train a tiny model for 10,000 steps and see that memory stays flat.

    make soak

Prints the resident memory every thousand steps. Exits with 1 where it grows by more than 16 MiB
from the first quarter to the end: what a step keeps, even a kilobyte, shows by then.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch

from attnres.residual import AttnResConfig
from attnres.train.data import DataConfig
from attnres.train.loop import train
from attnres.train.optim import OptimConfig
from attnres.train.recipe import ModelConfig, Recipe

MOST_GROWTH_MIB = 16.0  # the allocator's own ups and downs are a few


def recipe(n_steps: int, text: Path) -> Recipe:
    """Validates, probes and saves all along, so that what these keep shows as well."""
    return Recipe(
        name="soak",
        model=ModelConfig(
            dim=32,
            n_layers=2,
            n_heads=2,
            n_kv_heads=2,
            mlp_dim=64,
            residual=AttnResConfig(n_blocks=2),
        ),
        data=DataConfig(path=str(text), tokenizer="bytes"),
        optim=OptimConfig(optimizer="adamw", lr=1e-3),
        n_steps=n_steps,
        batch_size=2,
        seq_len=32,
        device="cpu",
        n_validation_sequences=4,
        n_probe_sequences=2,
        log_every=10,
        validate_every=100,
        probe_every=100,
        save_every=max(n_steps // 50, 1),
    )


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(n_steps: int, folder: Path) -> list[tuple[int, float]]:
    """Steps and the resident memory after them, ten times over the run."""
    text = folder / "text.txt"
    text.write_text("".join(f"Line {i} of the text is as good as {i * 7}.\n" for i in range(2000)))
    found: list[tuple[int, float]] = []

    def look(step: int, figures: dict[str, float]) -> None:
        if step % max(n_steps // 10, 1) == 0 and (not found or found[-1][0] < step):
            found.append((step, resident_mib()))
            print(f"step {step:6,}: {found[-1][1]:7.1f} MiB", flush=True)

    train(recipe(n_steps, text), folder / "run", look)
    return found


def growth(found: list[tuple[int, float]]) -> float:
    """MiB from the mean of the first quarter, its very first look apart, to that of the last."""
    sizes = [mib for _, mib in found[1:]]
    part = max(len(sizes) // 4, 1)
    return sum(sizes[-part:]) / part - sum(sizes[:part]) / part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-steps", type=int, default=10_000)
    n_steps = parser.parse_args().n_steps
    torch.set_num_threads(1)  # for so small a model others would only wait
    with tempfile.TemporaryDirectory() as folder:
        grown = growth(soak(n_steps, Path(folder)))
    print(f"grown by {grown:+.1f} MiB; at most {MOST_GROWTH_MIB:.0f} is flat")
    sys.exit(grown > MOST_GROWTH_MIB)


if __name__ == "__main__":
    main()
