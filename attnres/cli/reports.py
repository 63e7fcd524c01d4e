"""The command that writes a page about runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from attnres.arguments import parse


def report(arguments: list[str]) -> None:
    """Write FOLDER/report.html, one page that compares all runs of a folder."""
    import tyro

    @dataclass(frozen=True)
    class Report:
        folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
        """folder of an experiment: one folder a run in it"""

    write_page(parse(Report, "report", report, arguments).folder)


def write_page(folder: Path) -> None:
    from rich.console import Console

    from attnres.analysis.report import load_runs, summary_table, write_report
    from attnres.analysis.table import rich_table

    page = write_report(folder)
    Console().print(rich_table(summary_table(load_runs(folder))))
    print(f"report: {page}")
