"""Layouts, cuts and policies drawn at random, the same each time."""

import random
from collections.abc import Iterator
from typing import get_args

from attnres import BlockLayout
from attnres.distributed import PipelinePlan, plan_pipeline
from attnres.distributed.plan import Keep

KEEP: tuple[Keep, ...] = get_args(Keep)


def random_plans(n_layouts: int, seed: int = 0) -> Iterator[PipelinePlan]:
    """Every policy for each layout: blocks of 1 to 5 sublayers, 1 to 4 ranks of 1 to 4 chunks."""
    draw = random.Random(seed)
    for _ in range(n_layouts):
        n_stages, n_virtual = draw.randint(1, 4), draw.randint(1, 4)
        n_chunks = n_stages * n_virtual
        sizes = [draw.randint(1, 5)]
        while sum(sizes) < n_chunks or draw.random() < 0.7:
            sizes.append(draw.randint(1, 5))
        layout = BlockLayout(tuple(sizes))
        cuts = sorted(draw.sample(range(1, layout.n_sublayers), n_chunks - 1))
        for keep in KEEP:
            yield plan_pipeline(layout, n_stages, n_virtual, cuts, keep)
