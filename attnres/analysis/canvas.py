"""What figures are drawn on: themes, panels, ticks; a figure as PNG or SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnres.analysis.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 9.2, 3.9  # inches, 100 page pixels each
DPI = 200  # two image pixels a page pixel


@dataclass(frozen=True, kw_only=True)
class Theme:
    paper: str
    ink: str
    faint: str
    colors: tuple[str, ...]  # told apart under the common forms of colour blindness


LIGHT = Theme(
    paper="#ffffff",
    ink="#22262b",
    faint="#d9dce0",
    colors=("#4d5359", "#0067a5", "#c44e00", "#00795a", "#a34b86", "#8a6d00"),
)
DARK = Theme(
    paper="#1b1f24",
    ink="#e3e6ea",
    faint="#3c434b",
    colors=("#c3c9d0", "#5cb3f0", "#ff9a4d", "#3fd0a0", "#e79ac9", "#e6c84a"),
)

Draw = Callable[[Sequence[Run], Theme], "Figure"]


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """As .svg or .png, by the name; the same figure gives the same bytes."""
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"a figure is saved as .svg or .png, got {path.name!r}")
    from matplotlib import rc_context

    metadata = {"Date": None} if path.suffix == ".svg" else None
    path.unlink(missing_ok=True)  # a link there would have another file written
    with rc_context({"svg.hashsalt": path.stem}):  # else ids are drawn at random
        figure.savefig(path, dpi=DPI, metadata=metadata)


def new_panels(
    theme: Theme, n_rows: int = 1, n_columns: int = 1, height: float = HEIGHT
) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes in panels:
        axes.set_facecolor(theme.paper)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(theme.ink)
        axes.tick_params(colors=theme.ink, labelsize=10)
        axes.grid(color=theme.faint, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, panels


def label_axes(axes: Axes, x: str, y: str, theme: Theme) -> None:
    axes.set_xlabel(x, color=theme.ink, fontsize=11)
    axes.set_ylabel(y, color=theme.ink, fontsize=11)


def ticks(set_ticks: Callable, names: list[str], n_most: int) -> None:
    """Every name, or every few of them and the last."""
    stride = -(-len(names) // n_most)
    places = [*range(0, len(names) - stride // 2 - 1, stride), len(names) - 1]
    set_ticks(places, [names[place] for place in places])


def escape(name: str) -> str:
    """A name as it is: two dollar signs would make a formula of it."""
    return name.replace("$", r"\$")
