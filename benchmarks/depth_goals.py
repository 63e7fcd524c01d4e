"""The bounds that the ops are built to, and by how much the figures of a run meet them."""

from collections.abc import Iterable
from typing import Any

from report import Goal, worst

Row = dict[str, Any]
FLOOR_LIMITS = {
    ("forward", "float32"): 1.25,
    ("forward", "bfloat16"): 1.4,
    ("forward + backward", "float32"): 1.4,
    ("forward + backward", "bfloat16"): 1.6,
}
PAPER_LIMITS = {"float32": 40.0, "bfloat16": 100.0}
PEER_LIMIT = 10.0
DECODE_LIMIT = 0.3
QUERIES_LIMIT = 4.0
SCALAR_BYTES_A_SOURCE = 12  # three float32 numbers a token
READER_BYTES = 12  # query, key weight and their product, a number of the width


def goals_of(rows: list[Row], queries: list[Row], saved: list[Row]) -> list[Goal]:
    """Each is judged by its worst case, at the median round."""
    own = [row for row in rows if row["who"] == "cpu"]
    wide = [row for row in own if _is_wide(row["shape"])]
    goals = [
        Goal(
            f"{mode}, {dtype}, D >= 512, S = 9, over the floor",
            limit,
            worst(row["over_floor"].median for row in _of(wide, mode, dtype)),
        )
        for (mode, dtype), limit in FLOOR_LIMITS.items()
    ]
    both = "forward + backward"
    for dtype, limit in PAPER_LIMITS.items():
        faster = (1 / row["over_paper"].median for row in _of(wide, both, dtype))
        what = f"{both}, {dtype}, faster than the paper form"
        goals.append(Goal(what, limit, worst(faster, at_least=True), at_least=True))
    goals += _peer_goals([row for row in rows if row["is_peer"] and _is_wide(row["shape"])])
    goals.append(Goal("decode read over the paper form", DECODE_LIMIT, worst(_decode(own))))
    goals.append(_queries_goal(queries))
    return [*goals, *_saved_goals(saved)]


def _is_wide(shape: list[int]) -> bool:
    n_rows, dim, n_sources = shape
    return n_rows >= 256 and dim >= 512 and n_sources == 9


def _of(rows: Iterable[Row], mode: str, dtype: str) -> list[Row]:
    found = [row for row in rows if (row["mode"], row["dtype"]) == (mode, dtype)]
    return [row for row in found if row["over_floor"] is not None]


def _peer_goals(rows: list[Row]) -> list[Goal]:
    """Over forward + backward; forward alone is in the table."""
    goals = []
    for who in dict.fromkeys(row["who"] for row in rows):
        times = [
            row["over_cpu"].median
            for row in rows
            if row["who"] == who and row["mode"] != "forward" and row["over_cpu"]
        ]
        figure = worst(times, at_least=True)
        goals.append(Goal(f"faster than {who}", PEER_LIMIT, figure, at_least=True))
    return goals


def _decode(own: list[Row]) -> list[float]:
    return [
        row["over_paper"].median
        for row in own
        if row["mode"] == "forward" and row["shape"] == [1, 4096, 9]
    ]


def _queries_goal(queries: list[Row]) -> Goal:
    figure = worst((row["faster"].median for row in queries), at_least=True)
    return Goal("12 queries at once, faster than 12 reads", QUERIES_LIMIT, figure, at_least=True)


def _saved_goals(saved: list[Row]) -> list[Goal]:
    goals = []
    for row in saved:
        if row["who"] == "cpu":
            n_rows, dim, n_sources = row["shape"]
            limit = SCALAR_BYTES_A_SOURCE * n_sources + READER_BYTES * dim / n_rows
            what = f"saved for backward, {row['dtype']}, a token"
            goals.append(Goal(what, limit, row["bytes_a_token"], unit=" bytes"))
    return goals
