"""Output and gradient by transformer layer of the study's last models, beside the paper's own.

    python experiments/kimi_linear/dynamics.py [--runs runs]

Reads the last probe of every final run, writes dynamics.csv (mean over seeds) and the figure.
"""

import argparse
import csv
from pathlib import Path
from statistics import mean
from typing import Any

from attnres.analysis.runs import load_run
from attnres.experiment.folder import load_study
from attnres.experiment.runner import runs_folder

HERE = Path(__file__).parent
# arXiv:2603.15031, figure 5, by layer at the end of training: magnitude, and gradient times 10^5
PAPER_OUTPUT = {
    "standard": (0.04, 0.06, 0.10, 0.14, 0.20, 0.59, 0.63, 0.68, 0.71, 0.76, 0.81, 0.89, 0.98, 1.07,
                 1.23, 1.43, 1.66, 1.91, 2.29, 2.60, 3.12, 3.51, 5.56, 6.20, 7.10, 10.47, 12.15),
    "block": (0.07, 0.34, 0.75, 0.35, 0.67, 1.89, 0.38, 0.69, 1.30, 0.30, 0.66, 1.48, 0.21, 0.42,
              0.71, 0.28, 0.59, 1.48, 0.46, 0.75, 1.41, 0.66, 1.23, 1.50, 0.64, 1.16, 1.91),
}  # fmt: skip
PAPER_GRADIENT = {
    "standard": (2.4663, 1.8375, 1.3963, 1.1747, 0.9401, 0.7749, 0.6823, 0.5613, 0.4734, 0.4208,
                 0.3728, 0.3159, 0.2787, 0.2485, 0.2230, 0.1892, 0.1636, 0.1464, 0.1340, 0.1146,
                 0.1011, 0.0904, 0.0815, 0.0737, 0.0684, 0.0698, 0.0844),
    "block": (0.7177, 0.3159, 0.2428, 0.2136, 0.1559, 0.1346, 0.1797, 0.1404, 0.1116, 0.2345,
              0.1444, 0.0869, 0.3832, 0.2231, 0.1624, 0.2936, 0.1630, 0.0959, 0.2454, 0.1708,
              0.1221, 0.1970, 0.1694, 0.1553, 0.2260, 0.2237, 0.2859),
}  # fmt: skip
COLUMNS: tuple[str, ...] = ("arm", "layer", "n_seeds", "stream_rms", "output_rms", "grad_norm")


def by_layer(sublayers: list[float]) -> list[float]:
    """The mean square of a layer's two sublayers, as one number."""
    pairs = zip(sublayers[::2], sublayers[1::2], strict=True)
    return [((a * a + b * b) / 2) ** 0.5 for a, b in pairs]


def rows(runs: Path, is_quick: bool) -> list[dict[str, Any]]:
    """One a layer of each arm; ValueError where an arm has no final run."""
    study, found = load_study(HERE, is_quick), []
    for arm in study.arms:
        folders = runs_folder(study, runs).glob(f"final-{arm}-lr*-seed*")
        probes = [x for folder in sorted(folders) if (x := load_run(folder).last("probe"))]
        if not probes:
            raise ValueError(f"no final run of {arm} below {runs}: attnres experiment kimi_linear")
        figures = {
            # the running sum after a layer's MLP; what its two sublayers add; the gradient there
            "stream_rms": [probe["stream_rms"][1::2] for probe in probes],
            "output_rms": [by_layer(probe["output_rms"]) for probe in probes],
            "grad_norm": [by_layer(probe["grad_norm"]) for probe in probes],
        }
        for layer in range(len(figures["output_rms"][0])):
            means = {name: mean(each[layer] for each in x) for name, x in figures.items()}
            found.append({"arm": arm, "layer": layer, "n_seeds": len(probes), **means})
    return found


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Two rows (here, the paper) of two panels (magnitude, gradient) over the layers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    for arm, color in (("standard", "#767676"), ("block", "#0b6bcb")):
        here = [row for row in found if row["arm"] == arm]
        series = {
            (0, 0): [row["stream_rms"] for row in here],
            (0, 1): [row["grad_norm"] for row in here],
            (1, 0): PAPER_OUTPUT[arm],
            (1, 1): PAPER_GRADIENT[arm],
        }
        for place, values in series.items():
            panels[place].plot(range(len(values)), values, color=color, marker="o", ms=3, label=arm)
    titles = {
        (0, 0): "here: running sum after a layer (rms)",
        (0, 1): "here: gradient at a layer's outputs (norm)",
        (1, 0): "the paper: output magnitude",
        (1, 1): "the paper: gradient magnitude, 10⁻⁵",
    }
    for place, title in titles.items():
        panels[place].set_title(title, fontsize=11)
        panels[place].set_yscale("log")
        panels[place].spines[["top", "right"]].set_visible(False)
        panels[place].set_xlabel("transformer layer")
    panels[0, 0].legend(frameon=False)
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--quick", action="store_true", help="of the quick study")
    chosen = parser.parse_args()
    found = rows(chosen.runs, chosen.quick)
    with (HERE / "dynamics.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in found:
            rounded = {k: f"{x:.4g}" if isinstance(x, float) else x for k, x in row.items()}
            writer.writerow(rounded)
    draw(found, HERE / "figures" / "dynamics.svg")


if __name__ == "__main__":
    main()
