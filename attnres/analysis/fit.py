"""Loss against compute as a power law, fitted in log space.

    power   L = A C^-alpha           floor   L = E + A C^-alpha

The fit has the least sum over points of rho(log L - log of the law): rho squares, or Huber's, which
grows as a straight line beyond `HUBER`, so that one bad run moves the law less.

P points, one budget each.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Form = Literal["power", "floor"]
Method = Literal["squares", "huber"]
HUBER = 1e-3  # of log L, where rho turns straight: as Hoffmann et al., arXiv:2203.15556, D.2
N_PARAMETERS = {"power": 2, "floor": 3}
MOST = 0.999  # of the least loss, where a floor at it would be the loss of one point alone
N_SHARES, N_ZOOMS = 41, 5  # floors tried at once, and how often around the best: to 1e-7
N_STEPS = {"squares": 8, "huber": 40}  # of Gauss and Newton; those of Huber weigh anew each time


@dataclass(frozen=True, kw_only=True)
class Law:
    """L = floor + scale * C^-exponent, in nats a token; C in the unit of the budgets."""

    scale: float  # A, so the part of the loss above the floor at C = 1
    exponent: float  # alpha
    floor: float = 0.0  # E

    def loss(self, budget: float) -> float:
        return self.floor + self.scale * budget**-self.exponent

    def budget(self, loss: float) -> float:
        """The C of this loss; infinite where the law comes so low nowhere, or at no float."""
        if loss <= self.floor:
            return math.inf
        try:
            return (self.scale / (loss - self.floor)) ** (1 / self.exponent)
        except OverflowError:
            return math.inf


def fit(
    budget_P: np.ndarray, loss_P: np.ndarray, form: Form = "power", method: Method = "squares"
) -> Law:
    """The law nearest to the points.

    Args:
        budget_P: C of each point, in any unit: A is in the same.
        loss_P: nats a token.
        form: whether there is a floor E, which is at least 0 and below every loss.
        method: squares, or Huber's.

    Raises:
        ValueError: values that are not positive, no more budgets than parameters, a law that the
            points do not determine.
    """
    budget_P, loss_P = (np.asarray(values_P, dtype=float) for values_P in (budget_P, loss_P))
    _check(budget_P, loss_P, form)
    middle = math.exp(np.log(budget_P).mean())  # from where C counts, so that parameters are apart
    x_P, y_P = np.log(budget_P / middle), np.log(loss_P)
    level, exponent, floor = _search(x_P, y_P, form, method)
    if not exponent > 0:
        raise ValueError(f"the loss does not fall with compute: alpha is {exponent:.3g}")
    try:
        scale = math.exp(level) * middle**exponent
    except OverflowError as error:
        raise ValueError(f"the loss falls too steeply: alpha is {exponent:.3g}") from error
    return Law(scale=scale, exponent=exponent, floor=floor)


def multiplier(law: Law, reference: Law, budget: float) -> float:
    """How many times `budget` the reference needs for the loss that `law` has at it."""
    return reference.budget(law.loss(budget)) / budget


def has_no_floor(law: Law) -> bool:
    """Whether the best E was 0, so that the points show no floor."""
    return law.floor == 0


def _check(budget_P: np.ndarray, loss_P: np.ndarray, form: Form) -> None:
    if form not in N_PARAMETERS:
        raise ValueError(f"no law {form!r}; there are: {', '.join(N_PARAMETERS)}")
    if budget_P.shape != loss_P.shape or budget_P.ndim != 1:
        raise ValueError(f"{budget_P.shape} budgets for {loss_P.shape} losses")
    for name, values_P in (("budgets", budget_P), ("losses", loss_P)):
        if not (np.isfinite(values_P) & (values_P > 0)).all():
            raise ValueError(f"{name} must be positive and finite, got {values_P.tolist()}")
    n_budgets, n_parameters = len(np.unique(budget_P)), N_PARAMETERS[form]
    if n_budgets <= n_parameters:
        raise ValueError(
            f"under-determined: a {form} law has {n_parameters} parameters, so it needs at least "
            f"{n_parameters + 1} budgets, got {n_budgets}"
        )


def _search(
    x_P: np.ndarray, y_P: np.ndarray, form: Form, method: Method
) -> tuple[float, float, float]:
    """Level at x = 0, exponent and floor: the best floor of a grid, then of ever finer ones."""
    least = math.exp(y_P.min())
    if form == "power":
        level_G, exponent_G, _ = _profile(x_P, y_P, np.zeros(1), method)
        return float(level_G[0]), float(exponent_G[0]), 0.0
    low, high = 0.0, MOST
    for _ in range(N_ZOOMS):
        share_G = np.linspace(low, high, N_SHARES)
        *_, misfit_G = _profile(x_P, y_P, share_G * least, method)
        best = int(np.nanargmin(misfit_G))
        if share_G[best] == MOST:
            raise ValueError("the points do not determine a floor: the least loss is the best one")
        low, high = share_G[max(best - 1, 0)], share_G[min(best + 1, N_SHARES - 1)]
    floor = (low + high) / 2 if low else 0.0
    level_G, exponent_G, _ = _profile(x_P, y_P, np.array([floor * least]), method)
    return float(level_G[0]), float(exponent_G[0]), float(floor * least)


def _profile(
    x_P: np.ndarray, y_P: np.ndarray, floor_G: np.ndarray, method: Method
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each floor the best level and exponent, and what they miss the points by; G floors.

    Steps of Gauss and Newton from the line through log(L - E). Each is a weighted line.
    """
    floor_GP = floor_G[:, None] + 0 * x_P
    above_GP = np.log(np.exp(y_P) - floor_GP)
    level_G, slope_G = _line(x_P, above_GP, np.ones_like(above_GP))
    for _ in range(N_STEPS[method]):
        part_GP = np.exp(level_G[:, None] + slope_G[:, None] * x_P)
        share_GP = part_GP / (floor_GP + part_GP)  # of log L's change in that of the part
        missed_GP = y_P - np.log(floor_GP + part_GP)
        weight_GP = share_GP**2 * _weight(missed_GP, method)
        step_G, tilt_G = _line(x_P, missed_GP / share_GP, weight_GP)
        level_G, slope_G = level_G + step_G, slope_G + tilt_G
    missed_GP = y_P - np.log(floor_GP + np.exp(level_G[:, None] + slope_G[:, None] * x_P))
    return level_G, -slope_G, _rho(missed_GP, method).sum(axis=1)


def _line(
    x_P: np.ndarray, y_GP: np.ndarray, weight_GP: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Level at x = 0 and slope of the line of least weighted squares."""
    total_G = weight_GP.sum(axis=1)
    x_G = (weight_GP * x_P).sum(axis=1) / total_G
    y_G = (weight_GP * y_GP).sum(axis=1) / total_G
    centred_GP = weight_GP * (x_P - x_G[:, None])
    slope_G = (centred_GP * y_GP).sum(axis=1) / (centred_GP * x_P).sum(axis=1)
    return y_G - slope_G * x_G, slope_G


def _rho(missed: np.ndarray, method: Method) -> np.ndarray:
    size = np.abs(missed)
    straight = HUBER * (size - HUBER / 2)
    return np.where((method == "huber") & (size > HUBER), straight, missed**2 / 2)


def _weight(missed: np.ndarray, method: Method) -> np.ndarray:
    """That of a square which has rho's slope."""
    if method == "squares":
        return np.ones_like(missed)
    return HUBER / np.maximum(np.abs(missed), HUBER)
