"""metrics.jsonl: a JSON object a line, written as it is measured, read however it was cut off.

A line is whole with its newline. A process that is killed leaves at most one that is not.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnres.fields import shown
from attnres.json_file import parse_object

Row = dict[str, Any]
SCALARS = ("train", "validation", "end")  # kinds of rows that hold numbers alone
KINDS = (*SCALARS, "start", "probe")
IN_WORDS = ("without_probe",)  # of the start: why no process could measure one


class NoMetrics:
    """Of a process that is not the first: what it measures is written there."""

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Metrics:
    """Appends one JSON object a line, and scalars and lists to TensorBoard.

    TensorBoard then forgets what it was told of the steps from `purge_from` on.
    """

    def __init__(self, folder: Path, purge_from: int):
        from torch.utils.tensorboard import SummaryWriter

        self._file = (folder / "metrics.jsonl").open("a")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_from)

    def write(self, kind: str, step: int, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._write_board(f"{kind}/{name}", value, step)

    def _write_board(self, tag: str, value: Any, step: int) -> None:
        if isinstance(value, int | float):
            self._board.add_scalar(tag, value, step)
        elif isinstance(value, list) and all(isinstance(x, float) for x in value):
            for depth, x in enumerate(value):
                self._board.add_scalar(f"{tag}/{depth:03d}", x, step)

    def close(self) -> None:
        self._file.close()
        self._board.close()


def read_rows(file: Path) -> Iterator[tuple[bytes, Row]]:
    """Lines and what they say; blank ones are passed over, and a last one that is still written.

    Raises:
        ValueError: a line with its newline that is no row of metrics.
    """
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        is_last = number == len(lines)
        if not line.strip():
            continue
        try:
            row = _row(line)
        except ValueError as error:
            if is_last:
                return
            text = shown(line.decode(errors="replace"))
            raise ValueError(
                f"line {number} of {file} is not a metric: {text} ({error})"
            ) from error
        yield line if is_last else line + b"\n", row


def whole_until(file: Path, step: int) -> bytes:
    """The whole lines up to the first that is of a later step; what follows it is not looked at."""
    kept = []
    for line, row in read_rows(file):
        if row["step"] > step or not line.endswith(b"\n"):
            break
        kept.append(line)
    return b"".join(kept)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _row(line: bytes) -> Row:
    row = parse_object(line.decode())
    kind, step = row.get("kind"), row.get("step")
    if not isinstance(kind, str):
        raise ValueError(f"kind {shown(kind)}")
    if not is_count(step):
        raise ValueError(f"step {shown(step)}")
    for name, value in row.items():
        if kind in KINDS and name != "kind" and not _is_of(kind, name, value):
            raise ValueError(f"{name} {shown(value)}")
    return row


def _is_of(kind: str, name: str, value: Any) -> bool:
    """Whether a value can be what a row of this kind says by this name."""
    if kind == "start" and name in IN_WORDS:
        return isinstance(value, str)
    return _is_figure(value, may_be_list=kind not in SCALARS)


def _is_figure(value: Any, may_be_list: bool) -> bool:
    if isinstance(value, list):
        return may_be_list and all(_is_figure(each, True) for each in value)
    return value is None or isinstance(value, int | float)
