"""One page that compares the runs of an experiment: nothing is loaded, no script is needed."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from attnres.analysis import canvas, heat_maps, plot, probe_words, words
from attnres.analysis.runs import Run, differing_fields, load_runs
from attnres.analysis.table import columns, summary_table
from attnres.analysis.weights import entropy_over_training, has_mixing, has_weights
from attnres.extras import require
from attnres.train.run_folder import write_atomically

PAGE_DPI = canvas.DPI // 2


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure in both themes, as data URLs, and its size in page pixels."""

    light: str
    dark: str
    alt: str
    width: int
    height: int


def write_report(folder: Path) -> Path:
    """Write `report.html` into a folder of runs, whole or not at all."""
    folder = Path(folder)
    page = render(load_runs(folder), folder.resolve().name)
    write_atomically(folder / "report.html", page)
    return folder / "report.html"


def render(runs: Sequence[Run], experiment: str) -> str:
    """The page as text."""
    require("a report", "report", "jinja2", "matplotlib")
    from jinja2 import Environment, StrictUndefined

    source = files("attnres.analysis").joinpath("report.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["json"] = _json
    return environment.from_string(source).render(
        experiment=experiment,
        runs=runs,
        compared=words.compared(runs),
        methods=words.methods(runs),
        differing=differing_fields(runs),
        seeds=words.seeds(runs),
        best=words.best(runs),
        unfinished=words.unfinished(runs),
        columns=columns(summary_table(runs)),
        untrained=probe_words.untrained(runs),
        stream_trends=probe_words.stream_trends(runs),
        gradient_trends=probe_words.gradient_trends(runs),
        smoothing=max(plot.window(len(run.rows("train"))) for run in runs),
        mixing=probe_words.mixing(runs),
        probe_steps=probe_words.probe_steps(runs),
        pictures=pictures(runs),
        has_explorer=any((run.path.parent / "explorer.html").exists() for run in runs),
    )


def pictures(runs: Sequence[Run]) -> dict[str, Picture]:
    """The figures for which the runs have something to show."""
    figures: dict[str, tuple[canvas.Draw, str]] = {}
    if any(run.rows("train") for run in runs):
        figures["train"] = plot.train_loss, "Train loss by step, one curve a run."
    if any(run.rows("validation") for run in runs):
        figures["validation"] = plot.validation_loss, "Validation loss by step, one curve a run."
    if any(run.rows("probe") for run in runs):
        trends = " ".join(probe_words.stream_trends(runs))
        figures["rms"] = plot.output_rms, f"Output RMS and running sum RMS by depth. {trends}"
        trends = " ".join(probe_words.gradient_trends(runs))
        figures["gradient"] = plot.gradient_norm, f"Gradient norm by depth. {trends}"
    if any(has_weights(run) for run in runs):
        figures["weights"] = (
            heat_maps.depth_weights,
            "Heat map of mean depth weight, reader by source.",
        )
    if any(len(entropy_over_training(run)[0]) > 1 for run in runs):
        figures["entropy"] = plot.weights_entropy, "Normalised entropy of depth weights by step."
    if any(has_mixing(run) for run in runs):
        alt = f"Depth mixing matrix, reader by output. {' '.join(probe_words.mixing(runs))}"
        figures["mixing"] = heat_maps.depth_mixing, alt
    return {key: _picture(draw, runs, alt) for key, (draw, alt) in figures.items()}


def _picture(draw: canvas.Draw, runs: Sequence[Run], alt: str) -> Picture:
    light, dark = draw(runs, canvas.LIGHT), draw(runs, canvas.DARK)
    width, height = (round(inches * PAGE_DPI) for inches in light.get_size_inches())
    return Picture(
        light=_data_url(light), dark=_data_url(dark), alt=alt, width=width, height=height
    )


def _data_url(figure: Any) -> str:
    return f"data:image/png;base64,{base64.b64encode(canvas.png(figure)).decode()}"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
