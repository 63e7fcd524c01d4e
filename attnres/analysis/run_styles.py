"""Colour and mark of each run in a figure of many."""

import json
from collections.abc import Iterator, Sequence

from attnres.analysis.plot import Style, Theme
from attnres.analysis.runs import Run, entry

MARKS = "os^vPD"


def styles(runs: Sequence[Run], theme: Theme) -> Iterator[Style]:
    """Runs of one residual, as those of several seeds, share a colour and differ in their mark."""
    counts: dict[str, int] = {}
    for run in runs:
        residual = json.dumps(entry(run.recipe, "model.residual"), sort_keys=True)
        nth = counts.get(residual, 0)
        counts[residual] = nth + 1
        color = theme.colors[[*counts].index(residual) % len(theme.colors)]
        yield {"color": color, "marker": MARKS[nth % len(MARKS)]}
