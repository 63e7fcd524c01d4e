"""The bounds that a training step is built to, and by how much the figures of a run meet them."""

from typing import Any

from report import Goal, worst

Row = dict[str, Any]
ADDED_PERCENT = {
    ("float32", 512, "Block"): 2.5,
    ("float32", 512, "Full"): 4.0,
    ("bfloat16", 512, "Block"): 4.0,
    ("bfloat16", 512, "Full"): 7.0,
    ("float32", 1024, "Block"): 1.5,
    ("float32", 1024, "Full"): 2.5,
}
COMPILED_LIMIT = 1.05
MEMORY_LIMIT = 1.02


def goals_of(rows: list[Row], compiled: list[Row], memory: list[Row]) -> list[Goal]:
    """Each is judged by its worst case (batch, dtype), at the median round, for every method."""
    goals = [goal for case in ADDED_PERCENT for goal in _added_goals(rows, *case)]
    for who in dict.fromkeys(row["who"] for row in compiled) or ("Block",):
        figure = worst(row["step_ratio"].median for row in compiled if row["who"] == who)
        goals.append(Goal(f"{who}, compiled, over standard compiled", COMPILED_LIMIT, figure))
    checkpointed = [row for row in memory if row["checkpointing"]]
    for who in dict.fromkeys(row["who"] for row in checkpointed) or ("all",):
        own = [row for row in checkpointed if row["who"] == who]
        figure = worst(row["over_standard"]["allocated_bytes"] for row in own)
        goals.append(Goal(f"{who}, peak memory with checkpointing", MEMORY_LIMIT, figure))
    return goals


def _added_goals(rows: list[Row], dtype: str, dim: int, layout: str) -> list[Goal]:
    own = [row for row in rows if (row["dtype"], row["dim"], row["layout"]) == (dtype, dim, layout)]
    limit = ADDED_PERCENT[dtype, dim, layout]
    return [
        Goal(
            f"{who}, d = {dim}, {dtype}, added to the step",
            limit,
            worst(100 * row["added"].median for row in own if row["who"] == who),
            unit=" %",
        )
        for who in dict.fromkeys(row["who"] for row in own) or (layout,)
    ]
