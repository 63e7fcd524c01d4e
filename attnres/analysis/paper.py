"""Figures of arXiv:2603.15031 on scaling: table 2, and the laws that its figure 4 draws.

Sizes are tuned on the baseline; one run each, no seeds. The paper does not say how its laws were
fitted, nor what C counts: C / (6 x active parameters x tokens) is 1.26 to 1.37, so more than that.
"""

from collections.abc import Iterator

import numpy as np

from attnres.analysis.fit import Law, fit, multiplier
from attnres.analysis.points import Drawing, Points

REFERENCE = "standard"
UNIT = "PFLOP/s-days"
ROUNDING = 1e-3  # unit of the last digit of a loss
BUDGET_P = np.array([0.6916, 1.0405, 1.6937, 3.3528, 5.5974])
LOSS_P = {
    "standard": (1.931, 1.895, 1.829, 1.766, 1.719),
    "Block": (1.909, 1.875, 1.809, 1.746, 1.693),
    "Full": (1.899, 1.874, 1.804, 1.737, 1.692),
    "mHC": (1.906, 1.869, 1.807, 1.747, 1.694),
}
PRINTED = {  # of three of the arms, as rounded in the text
    "standard": Law(scale=1.891, exponent=0.057),
    "Block": Law(scale=1.870, exponent=0.058),
    "Full": Law(scale=1.865, exponent=0.057),
}
DRAWN = {  # the same laws as the figure has them
    "standard": Law(scale=1.8908, exponent=0.0565),
    "Block": Law(scale=1.8699, exponent=0.0578),
    "Full": Law(scale=1.8645, exponent=0.0572),
}
DRAWING = Drawing(residuals=True, rounding=ROUNDING)  # five points without seeds allow no more
CLAIMED = ("Block", 5.6, 1.25)  # an arm, a budget, and its compute multiplier there


def points() -> Points:
    """The table, one seed an arm."""
    return Points(
        budgets=dict.fromkeys(LOSS_P, BUDGET_P),
        losses={arm: np.array(losses)[:, None] for arm, losses in LOSS_P.items()},
        unit=UNIT,
    )


def words() -> Iterator[str]:
    """The paper's laws beside least squares on its own table, and the claim on compute."""
    table = points()
    yield "The paper's laws, in text and in figure 4, and least squares of log L on its table:"
    for arm, printed in PRINTED.items():
        found = fit(*table.of(arm))
        yield f"  {arm}: {_law(printed, 3)}; {_law(DRAWN[arm], 4)}; here {_law(found, 4)}"
    arm, budget, claimed = CLAIMED
    of_text, of_figure = (
        multiplier(laws[arm], laws[REFERENCE], budget) for laws in (PRINTED, DRAWN)
    )
    yield (
        f"Its claim for {arm} at {budget} {UNIT} is {claimed}; the laws of the text give "
        f"{of_text:.3f}, those of the figure {of_figure:.3f}."
    )


def _law(law: Law, n_digits: int) -> str:
    return f"{law.scale:.{n_digits}f} C^-{law.exponent:.{n_digits}f}"
