"""A layout for a budget: the most blocks that fit, since a finer layout was never worse.

At equal compute the validation loss fell with the block: 1.757 with one block of 32 sublayers,
1.746 with blocks of 2 to 4, 1.737 with Full (arXiv:2603.15031, figure 6).
"""

from collections.abc import Callable
from dataclasses import dataclass

from attnres.cost.memory import source_bytes
from attnres.layout import BlockLayout, check_count
from attnres.residual.groups import groups, traffic_in_two_phases

STANDARD = 3  # vectors a token and a sublayer


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A layout, what it takes of the budget, and why it is the one."""

    layout: BlockLayout
    takes: float  # bytes, or percent
    reason: str


def recommend_for_bytes(
    n_sublayers: int, dim: int, n_tokens: int, budget_bytes: float, bytes_per_number: int = 2
) -> Advice:
    """The most blocks whose sums, with the embedding, fit into memory for `n_tokens` at once.

    Raises:
        ValueError: a budget that not even one block fits into.
    """

    def takes(layout: BlockLayout) -> float:
        return source_bytes(layout.n_blocks + 1, n_tokens, dim, bytes_per_number)

    return _finest(n_sublayers, takes, budget_bytes, lambda n: f"{n / 1e9:.3g} GB of sources")


def recommend_for_traffic(n_sublayers: int, budget_percent: float) -> Advice:
    """The most blocks that move at most so many percent of what the standard residual moves.

    Reads are in two phases, a source once (`TwoPhase.traffic`); sublayers are left out.

    Raises:
        ValueError: a budget that not even one block fits into.
    """
    return _finest(
        n_sublayers, traffic_percent, budget_percent, lambda n: f"{n:.0f} % of the standard traffic"
    )


def traffic_percent(layout: BlockLayout) -> float:
    """Vectors that the residual moves in two phases, over those of the standard one."""
    of_group = groups(layout)
    moved = (traffic_in_two_phases(layout, of_group, i).total for i in range(layout.n_sublayers))
    return 100 * sum(moved) / layout.n_sublayers / STANDARD


def _finest(
    n_sublayers: int,
    takes: Callable[[BlockLayout], float],
    budget: float,
    words: Callable[[float], str],
) -> Advice:
    check_count("n_sublayers", n_sublayers)
    finer = None
    for n_blocks in range(n_sublayers, 0, -1):
        layout = BlockLayout.of(n_sublayers, n_blocks=n_blocks)
        if takes(layout) <= budget:
            reason = _reason(layout, finer, takes, budget, words)
            return Advice(layout=layout, takes=takes(layout), reason=reason)
        finer = layout
    least = words(takes(BlockLayout.of(n_sublayers, n_blocks=1)))
    raise ValueError(f"one block takes {least}, more than the budget of {words(budget)}")


def _reason(
    layout: BlockLayout,
    finer: BlockLayout | None,
    takes: Callable[[BlockLayout], float],
    budget: float,
    words: Callable[[float], str],
) -> str:
    if finer is None:
        return f"Full takes {words(takes(layout))}, within the budget of {words(budget)}."
    return (
        f"n_blocks={layout.n_blocks} takes {words(takes(layout))} and n_blocks={finer.n_blocks} "
        f"{words(takes(finer))}, more than the budget of {words(budget)}; finer blocks were never "
        "worse in the paper."
    )
