"""Runs of a study apart from each other: a list of them, one by its number, all on a cluster."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnres.experiment.listed import Part
    from attnres.experiment.results import Row


def points_of(folder: Path) -> list[str]:
    """Of a sweep; of a study one without a name."""
    from attnres.experiment.folder import points

    return points(folder)


def part_of(chosen: Any, folder: Path, point: str) -> "Part":
    """The study at a point, and where its rows go, by the options of the command."""
    from attnres.experiment.listed import Part
    from attnres.experiment.runner import Place

    place = Place(folder, chosen.quick, chosen.folder.resolve(), chosen.seeds, point)
    study, out = place.load(), folder
    if chosen.quick:
        out = place.runs / (f"{folder.name}-quick" if point else study.name)
    file = out / (f"results-{point}.csv" if point else "results.csv")
    return Part(place, study, () if chosen.summary else study.choose(chosen.only), file)


def list_runs(parts: "Sequence[Part]") -> None:
    """A line a run, and which numbers may go on at once."""
    from attnres.experiment.listed import entries, is_done
    from attnres.experiment.results import read_rows

    rows = {part.results: read_rows(part.results, part.study) for part in parts}
    studies = {part.place: part.study for part in parts}
    found = entries(parts)
    for number, entry in enumerate(found):
        done = is_done(entry, studies[entry.place], rows[entry.results])
        print(f"{number:5}  {entry.words}{'; done' if done else ''}")
    n_tuning = sum(entry.phase == "tuning" for entry in found)
    print(f"tuning: 0-{n_tuning - 1}\nfinal: {n_tuning}-{len(found) - 1}")


def run_one(parts: "Sequence[Part]", number: int) -> None:
    """The run of this number, here."""
    import torch

    from attnres.experiment.listed import entries, run_entry

    found = entries(parts)
    if not 0 <= number < len(found):
        raise ValueError(f"there is no run {number}; the numbers are 0 to {len(found) - 1}")
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    torch.set_num_threads(1)  # as a worker of a whole study has
    row = run_entry(found[number])
    print(f"run {number}, {found[number].words}: {_outcome(row)}; rows: {found[number].results}")


def run_on_ray(chosen: Any, folder: Path) -> dict[str, str]:
    """All runs; why some were not possible, by run."""
    from attnres.experiment import on_ray
    from attnres.experiment.listed import entries

    parts = [part_of(chosen, folder, point) for point in points_of(folder)]
    return on_ray.run_on_ray(
        entries(parts),
        chosen.ray,
        chosen.processes,
        lambda entry, row: print(f"{entry.words}: {_outcome(row)}", flush=True),
    )


def _outcome(row: "Row | None") -> str:
    if row is None:
        return "diverged at every rate, so there is none"
    return f"{row.tuning_loss if row.phase == 'tuning' else row.report_loss:.4f}"
