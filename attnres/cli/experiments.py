"""The command `attnres experiment`: run a study, or say what its rows say."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnres.arguments import parse

if TYPE_CHECKING:
    from attnres.experiment.results import Row
    from attnres.experiment.runner import Place
    from attnres.experiment.study import Study


def experiment(arguments: list[str]) -> None:
    """Run a study: every arm tuned alike, then seeds. Run again to resume.

    attnres experiment methods --quick

    STUDY is methods, components, block_size, or a folder of your own with a runs.py that has a
    function study(). Rows go to results.csv in its folder; with --quick, whose figures mean
    nothing, all goes to the folder of runs.
    """
    import tyro

    @dataclass(frozen=True)
    class Experiment:
        study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
        """a folder with a runs.py, or the name of one in experiments/"""
        quick: bool = False
        """tiny models, to see that all runs work"""
        seeds: int | None = None
        """how many, from 0 on; as many as the study says, if not given"""
        only: tuple[str, ...] = ()
        """arms to run; all, if not given"""
        processes: int = 2
        """runs at once, of one thread each; results do not depend on it"""
        summary: bool = False
        """run nothing: write table and figures of the rows there are"""
        folder: Path = Path("runs")
        """where run folders go"""

    chosen = parse(Experiment, "experiment", experiment, arguments)
    from attnres.experiment.folder import find_folder
    from attnres.experiment.results import read_rows
    from attnres.experiment.runner import Place

    if chosen.processes < 1 or (chosen.seeds is not None and chosen.seeds < 1):
        raise ValueError("--processes and --seeds are at least 1")
    place = Place(find_folder(chosen.study), chosen.quick, chosen.folder.resolve(), chosen.seeds)
    study = place.load()
    out = place.runs / study.name if chosen.quick else place.study
    if chosen.summary:
        rows = read_rows(out / "results.csv", study)
    else:
        rows = _run(place, study, chosen.only, out, chosen.processes)
    _summarise(study, rows, out)


def _run(
    place: "Place", study: "Study", only: Sequence[str], out: Path, n_processes: int
) -> "list[Row]":
    from attnres.experiment.progress import StudyProgress
    from attnres.experiment.runner import run_study

    arms = study.choose(only)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    with StudyProgress(study.name, study.base.n_steps) as progress:
        return run_study(place, arms, out / "results.csv", n_processes, progress)


def _summarise(study: "Study", rows: "Sequence[Row]", out: Path) -> None:
    from rich.console import Console

    from attnres.analysis import canvas
    from attnres.experiment import figure, page, summary
    from attnres.train.run_folder import write_atomically

    arms = summary.summarise(study, rows)
    if not arms:
        raise ValueError(f"there are no rows in {out / 'results.csv'}")
    write_atomically(out / "summary.csv", page.to_csv(arms))
    write_atomically(out / "summary.md", page.to_markdown(study, arms))
    if any(each.difference is not None for each in arms):
        (out / "figures").mkdir(exist_ok=True)
        for name, theme in (("differences", canvas.LIGHT), ("differences-dark", canvas.DARK)):
            picture = canvas.png(figure.differences(arms, theme))
            (out / "figures" / f"{name}.png").write_bytes(picture)
    console = Console()
    console.print(page.rich_table(arms))
    for note in summary.notes(study, arms):
        console.print(note, markup=False, highlight=False)
    print(f"rows: {out / 'results.csv'}; page: {out / 'summary.md'}")
