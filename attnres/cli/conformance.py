"""The command that checks anybody's implementation."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import torch

from attnres.arguments import parse
from attnres.cli.tables import show
from attnres.cost.tables import Table

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def conform(arguments: list[str]) -> None:
    """Check an implementation of attention over depth, and name its mistake.

    attnres conform attnres.ops.reference:depth_attention

    The function is asked questions whose answers and gradients are known, in a process of its own.
    Exit status 0 where it conforms, 1 where it does not, 2 where it could not be asked. What each
    kind is called with: `attnres conform --list`.
    """
    import tyro

    @dataclass(frozen=True)
    class ConformArguments:
        target: Annotated[str, tyro.conf.Positional] = ""
        """module:function or path/to/file.py:function"""
        kind: Literal["op", "full", "block", "model", "start"] = "op"
        """what it is: the op alone, a schedule of reads, a loop over sublayers, or a start"""
        dtypes: tuple[Literal["float64", "float32", "float16", "bfloat16"], ...] = ()
        """of the inputs; without it float32 and bfloat16, or float64 and float32 of arrays"""
        device: str = "cpu"
        """where the inputs are made, such as cuda"""
        arrays: bool = False
        """hand in numpy arrays; there are no gradients then"""
        gradients: bool = True
        """compare every gradient"""
        timeout_s: float = 60.0
        """for one question"""
        trace: bool = False
        """show the traceback of what was raised"""
        list: bool = False
        """print what each kind is called with, and every named mistake"""
        export: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
        """write questions and answers there, for other languages"""
        answers: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
        """check answers in a safetensors file, as conformance.json of --export says"""
        json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
        """write the finding there"""

    chosen = parse(ConformArguments, "conform", conform, arguments)
    jobs = [bool(chosen.target), chosen.list, chosen.export is not None, chosen.answers is not None]
    if sum(jobs) != 1:
        raise ValueError("give one of: module:function, --list, --export FOLDER, --answers FILE")
    if chosen.list:
        _list()
    elif chosen.export is not None:
        _export(chosen.export)
    else:
        _report(chosen)


def _report(chosen: Any) -> NoReturn:
    from attnres.conformance.vectors import judge_file
    from attnres.conformance.words import as_json

    reports = judge_file(chosen.answers) if chosen.answers else [_asked(chosen)]
    for report in reports:
        _show(report, chosen.trace)
    if chosen.json is not None:
        found = {"target": chosen.target or str(chosen.answers)}
        found |= {"reports": [as_json(report) for report in reports]}
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(0 if all(report.conforms for report in reports) else 1)


def _asked(chosen: Any) -> Any:
    from attnres.conformance.isolated import ask_isolated
    from attnres.conformance.report import judge, ways

    if chosen.timeout_s <= 0:
        raise ValueError(f"timeout_s must be positive, got {chosen.timeout_s}")
    dtypes = [DTYPES[name] for name in chosen.dtypes]
    if chosen.arrays and torch.bfloat16 in dtypes:
        raise ValueError("numpy has no bfloat16")
    how = ways(chosen.kind, dtypes, chosen.device, chosen.arrays, chosen.gradients)
    return judge(chosen.kind, ask_isolated(chosen.target, chosen.kind, how, chosen.timeout_s))


def _show(report: Any, with_trace: bool) -> None:
    from attnres.conformance.words import cells, dtype_word, dtypes_of, finding

    columns = ("case", *map(dtype_word, dtypes_of(report)))
    note = "the largest error of the worst quantity, over its largest right number"
    title = f"Conformance as {report.kind}"
    show([Table(title, columns, cells(report), "" if report.conforms else note)])
    print("\n\n".join(finding(report, with_trace)))


def _list() -> None:
    from attnres.conformance import MISTAKES, SIGNATURES

    kinds = [(name, signature) for name, signature in SIGNATURES.items()]
    mistakes = [(x.name, x.what, x.mend) for x in MISTAKES.values()]
    show(
        [
            Table("Kinds", ("kind", "is called as"), kinds),
            Table("Named mistakes", ("name", "what", "to mend"), mistakes),
        ]
    )


def _export(folder: Path) -> None:
    from attnres.conformance.vectors import export

    for path in export(folder):
        print(f"{path}  {path.stat().st_size:,} bytes")
