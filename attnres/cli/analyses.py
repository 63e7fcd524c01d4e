"""Commands that look into the runs of a folder."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnres.arguments import parse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnres.analysis.canvas import Theme


def dynamics(arguments: list[str]) -> None:
    """Say what changed over depth while the runs of FOLDER learned.

    Growth of the running sum with depth, gradients, block resets, and of depth weights entropy,
    locality, the embedding's share and sinks; the gap to standard over time. Goes to
    FOLDER/dynamics.md, .csv and .png.
    """
    import tyro

    @dataclass(frozen=True)
    class Dynamics:
        folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """folder of an experiment: one folder a run in it"""

    folder = parse(Dynamics, "dynamics", dynamics, arguments).folder
    from rich.console import Console

    from attnres.analysis import dynamics_page
    from attnres.analysis.runs import load_runs
    from attnres.analysis.table import rich_tables, to_markdown
    from attnres.train.run_folder import write_atomically

    runs = load_runs(folder)
    probed = [run for run in runs if run.rows("probe")]
    if not probed:
        raise ValueError(f"no run in {folder} has a probe yet")
    table, words = dynamics_page.columns(runs), "\n".join(dynamics_page.words(runs))
    page = f"# Dynamics of {folder.resolve().name}\n\n{to_markdown(table)}\n{words}\n"
    write_atomically(folder / "dynamics.md", page)
    write_atomically(folder / "dynamics.csv", dynamics_page.to_csv(runs))
    _draw(folder / "dynamics", lambda theme: dynamics_page.dynamics_figure(probed, theme))
    console = Console()
    console.print(*rich_tables(table, console.width))
    print(f"{words}\npage: {folder / 'dynamics.md'}")


def ablate(arguments: list[str]) -> None:
    """Say what the finished runs of FOLDER lose without a layer, or without a source of a reader.

    For AttnRes the loss without each source stands beside the weight that the reader gives it.
    Goes to FOLDER/ablation.md, .json and .png, and ablation-RUN.png.
    """
    import tyro

    @dataclass(frozen=True)
    class Ablate:
        folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """folder of an experiment: one folder a run in it"""
        sequences: int = 16
        """held-out sequences to take the loss of"""

    chosen = parse(Ablate, "ablate", ablate, arguments)
    if chosen.sequences < 1:
        raise ValueError(f"--sequences is at least 1, got {chosen.sequences}")
    from rich.console import Console
    from transformers.utils import logging

    from attnres.analysis import ablate_page
    from attnres.analysis.runs import load_runs
    from attnres.analysis.table import rich_columns, to_markdown
    from attnres.train.run_folder import write_atomically

    logging.disable_progress_bar()
    folder = chosen.folder
    found = ablate_page.ablate_runs(load_runs(folder), chosen.sequences)
    table = ablate_page.columns(found)
    page = f"# Ablation of {folder.resolve().name}\n\n{to_markdown(table)}"
    write_atomically(folder / "ablation.md", page)
    write_atomically(folder / "ablation.json", json.dumps(ablate_page.to_json(found)) + "\n")
    _draw(folder / "ablation", lambda theme: ablate_page.layers_figure(found, theme))
    for run, effects in found:
        if effects.sources is not None:
            name = folder / f"ablation-{run.name}"
            _draw(name, lambda theme, r=run, e=effects: ablate_page.sources_figure(r, e, theme))
    Console().print(rich_columns(table))
    print(f"page: {folder / 'ablation.md'}")


def _draw(place: Path, figure: "Callable[[Theme], Figure]") -> None:
    from attnres.analysis import canvas

    for ending, theme in (("", canvas.LIGHT), ("-dark", canvas.DARK)):
        canvas.save(figure(theme), place.with_name(f"{place.name}{ending}.png"))
