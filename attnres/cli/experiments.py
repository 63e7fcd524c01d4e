"""The command `attnres experiment`: run a study, or say what its rows say."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attnres.arguments import parse
from attnres.cli.jobs import list_runs, part_of, points_of, run_on_ray, run_one

if TYPE_CHECKING:
    from attnres.experiment.results import Row
    from attnres.experiment.runner import Place
    from attnres.experiment.study import Study
    from attnres.experiment.sweep import At


def experiment(arguments: list[str]) -> None:
    """Run a study: every arm tuned alike, then seeds. Run again to resume.

    attnres experiment methods --quick

    STUDY is methods, components, block_size, or a folder of your own with a runs.py that has a
    function study(). Rows go to results.csv in its folder; with --quick, whose figures mean
    nothing, all goes to the folder of runs. With --list and --run each run is a job of its own,
    on any machine that shares the folders.
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
        list: bool = False
        """run nothing: number all runs, first those that tune"""
        run: int | None = None
        """make the run of this number alone; several such commands may go on at once"""
        ray: str | None = None
        """make all runs on the Ray cluster of this address; local is this machine"""
        folder: Path = Path("runs")
        """where run folders go"""

    chosen = parse(Experiment, "experiment", experiment, arguments)
    from attnres.experiment.folder import find_folder

    if chosen.processes < 1 or (chosen.seeds is not None and chosen.seeds < 1):
        raise ValueError("--processes and --seeds are at least 1")
    if sum((chosen.summary, chosen.list, chosen.run is not None, chosen.ray is not None)) > 1:
        raise ValueError("--summary, --list, --run and --ray are each a command of its own")
    folder = find_folder(chosen.study)
    if chosen.list or chosen.run is not None:
        parts = [part_of(chosen, folder, point) for point in points_of(folder)]
        return list_runs(parts) if chosen.run is None else run_one(parts, chosen.run)
    _run_all(chosen, folder)


def _run_all(chosen: Any, folder: Path) -> None:
    """All runs, here or on a cluster, or none; then what the rows say."""
    failed = {} if chosen.ray is None else run_on_ray(chosen, folder)
    end = list[str]()
    try:
        _run_or_read(chosen, folder, failed)
    except ValueError as error:
        if not failed:
            raise
        end.append(str(error))
    if failed:
        reasons = [f"{run}: {reason}" for run, reason in failed.items()]
        raise ValueError("; ".join([*reasons, *end]))


def _run_or_read(chosen: Any, folder: Path, failed: dict[str, str]) -> None:
    """Arms that cannot be run join `failed`."""
    from attnres.experiment.results import read_rows
    from attnres.experiment.sweep import At

    found, out = list[At](), folder
    for point in points_of(folder):
        place, study, arms, file = part_of(chosen, folder, point)
        out = file.parent
        rows = (
            read_rows(file, study)
            if chosen.summary or chosen.ray is not None
            else _run(place, study, arms, file, chosen.processes, failed)
        )
        if not point:
            return _summarise(study, rows, out)
        found.append(At(point, study, rows))
    _summarise_sweep(folder.name, found, out)


def _run(
    place: "Place",
    study: "Study",
    arms: Sequence[str],
    file: Path,
    n_processes: int,
    failed: dict[str, str],
) -> "Sequence[Row]":
    """All rows then; an arm that failed joins `failed`, so that other points go on."""
    from attnres.experiment.progress import StudyProgress
    from attnres.experiment.runner import ArmsFailedError, run_study

    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    with StudyProgress(study.name, study.base.n_steps) as progress:
        try:
            return run_study(place, arms, file, n_processes, progress)
        except ArmsFailedError as error:
            point = f"{place.point} " if place.point else ""
            failed.update({f"{point}arm {arm!r}": why for arm, why in error.reasons.items()})
            return error.rows


def _summarise(study: "Study", rows: "Sequence[Row]", out: Path) -> None:
    from rich.console import Console

    from attnres.analysis import canvas
    from attnres.experiment import figure, page, summary
    from attnres.train.run_folder import write_atomically

    arms = summary.summarise(study, rows)
    if not arms:
        raise ValueError(f"there are no rows in {out / 'results.csv'}")
    write_atomically(out / "summary.csv", page.to_csv(study, arms))
    write_atomically(out / "summary.md", page.to_markdown(study, arms))
    if any(each.difference is not None for each in arms):
        (out / "figures").mkdir(exist_ok=True)
        for name, theme in (("differences", canvas.LIGHT), ("differences-dark", canvas.DARK)):
            picture = canvas.png(figure.differences(arms, theme))
            (out / "figures" / f"{name}.png").write_bytes(picture)
    console = Console()
    console.print(page.rich_table(study, arms))
    for note in summary.notes(study, arms):
        console.print(note, markup=False, highlight=False)
    print(f"rows: {out / 'results.csv'}; page: {out / 'summary.md'}")


def _summarise_sweep(name: str, found: "Sequence[At]", out: Path) -> None:
    """Table and figure of all points, their rows for `attnres fit`; a law or an optimum, if any."""
    from rich.console import Console

    from attnres.analysis import canvas, fit_page
    from attnres.analysis.bootstrap import Plan, estimate
    from attnres.analysis.compute import WORDS
    from attnres.analysis.table import rich_columns, to_markdown
    from attnres.experiment import optimum, sweep
    from attnres.experiment.points_figure import points_figure
    from attnres.experiment.study import REFERENCE
    from attnres.train.run_folder import write_atomically

    table = sweep.columns(found)
    if not table[0].cells:
        raise ValueError(f"there are no rows in {out}")
    console, words = Console(), "\n".join(sweep.notes(found)) + "\n"
    console.print(rich_columns(sweep.for_a_terminal(table)))
    console.print(words, markup=False, highlight=False)
    page = [f"# {name}\n", to_markdown(table), words, f"{WORDS['attention']}.\n"]
    write_atomically(out / "points.csv", sweep.to_csv(found))
    (out / "figures").mkdir(exist_ok=True)
    for name, theme in (("points", canvas.LIGHT), ("points-dark", canvas.DARK)):
        canvas.save(points_figure(found, theme), out / "figures" / f"{name}.png")
    if best := optimum.optima(found):
        page += [to_markdown(optimum.columns(best)), "\n".join(optimum.notes(best)) + "\n"]
    try:
        points, plan = sweep.points_of(found), Plan()
        budgets = [float(budget) for budget in points.of(REFERENCE)[0]]
        estimates = estimate(points, REFERENCE, budgets, plan)
    except ValueError as error:
        page.append(f"No law of loss over compute: {error}.\n")
    else:
        page += [to_markdown(each) for each in fit_page.tables(points, estimates, plan)]
        page.append("\n".join(fit_page.notes(points, estimates, REFERENCE, plan)) + "\n")
        fit_page.write(out, "\n".join(page), points, estimates, REFERENCE)
    write_atomically(out / "summary.md", "\n".join(page))
    print(page[-1] + f"page: {out / 'summary.md'}")
