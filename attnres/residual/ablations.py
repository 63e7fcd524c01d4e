"""What may be changed in Attention Residuals, one part at a time: settings and what they rule out.

The paper's table 4 (arXiv:2603.15031, section 5.3) changes the query, the kernel, the key norm and
the heads; it does not define all of it. What is chosen here, and why, stands beside each setting.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from attnres.layout import check_count
from attnres.ops.border import check_finite

CHOICES = {
    "query": ("input",),
    "weights": ("scalars",),
    "kernel": ("softmax", "sigmoid"),
    "routes": ("qk_v",),
}
NEUTRAL: dict[str, Any] = {  # settings that say what `AttnRes` does anyway
    "kernel": "softmax",
    "key_norm": True,
    "n_heads": 1,
    "null_source": False,
    "count_prior": 0.0,
}
CLASHES = (  # a setting, those it leaves nothing to do for, and why
    (
        "weights",
        ("query", "key_norm", "n_heads", "key_rank", "query_std", "routes"),
        "weights that are learned themselves have no query and no key",
    ),
    ("query", ("query_std", "routes"), "a projected query starts at zero and serves one route"),
    ("n_heads", ("key_rank",), "the keys of a head are the channels that it mixes"),
    ("kernel", ("null_source", "count_prior"), "sigmoids share no sum that a source could enter"),
)


@dataclass(frozen=True, kw_only=True)
class Ablations:
    """Changes to `AttnRes`; None changes nothing.

    Args:
        query: "input" projects q = W h, W [D, D], from h, the mix of the read before. The paper
            says the current hidden state, and no more; the mix before is the newest vector that
            plays this part in a model without a running sum, and is no source itself. It is not
            normalised. W starts at zero, as queries do.
        weights: "scalars" gives each source and reader a learned logit, 0 at first, in the place of
            query and key: the softmax stays, so that only the dependence on the input is gone.
        kernel: "sigmoid" weighs each source by the sigmoid of its logit, without a sum over the
            sources: to normalise would bring back the competition that is to be left out. At first
            every weight is a half, and the read half the ordinary stream.
        key_norm: False takes sources as keys as they are. Its gain goes too: only its product with
            the query ever acted.
        n_heads: contiguous heads of D / n_heads channels, each with its own softmax
            (arXiv:2607.27230). They share the key norm over all D channels, so that one head is
            `AttnRes` and nothing but the softmax is split.
        key_rank: keys are the RMSNorm of the last `key_rank` channels of a source, and queries are
            so wide; values stay whole (arXiv:2607.09694).
        query_std: queries start with this deviation, not at zero.
        count_prior: beta; beta log(count) is added to the logit of a source that sums `count`
            outputs. Full has counts of one only, so blocks are needed.
        count_power: alpha; a source is its sum over count^alpha. As large as `count_prior` where it
            is not given, which is when a read starts as a multiple of the ordinary stream.
        null_source: True adds a source of zeros with a learned logit of its own, 0 at first, as in
            softmax-1 (arXiv:2605.17887), so that a reader may take less than a whole mean.
        routes: "qk_v" gives attention sublayers one more query, for a mix of their values alone;
            that of query and key is the first (arXiv:2608.01075). Every other sublayer, from the
            first on, counts as an attention.

    Raises:
        ValueError: a value that is none, or settings that rule each other out.
    """

    query: str | None = None
    weights: str | None = None
    kernel: str | None = None
    key_norm: bool | None = None
    n_heads: int | None = None
    key_rank: int | None = None
    query_std: float | None = None
    count_prior: float | None = None
    count_power: float | None = None
    null_source: bool | None = None
    routes: str | None = None

    def __post_init__(self):
        for name, check in CHECKS.items():
            if getattr(self, name) is not None:
                check(name, getattr(self, name))
        changed = self.changes()
        for name, others, reason in CLASHES:
            for other in others:
                if name in changed and other in changed:
                    values = f"{name}={changed[name]!r} and {other}={changed[other]!r}"
                    raise ValueError(f"{values} rule each other out: {reason}")

    @property
    def alpha(self) -> float:
        """The power of the count that a source is divided by."""
        power = self.count_prior if self.count_power is None else self.count_power
        return power or 0.0

    @property
    def beta(self) -> float:
        """What the logarithm of the count weighs in a logit."""
        return self.count_prior or 0.0

    def changes(self) -> dict[str, Any]:
        """The settings that say something else than `AttnRes` does."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in given.items()
            if value is not None and value != NEUTRAL.get(name)
        }

    def of_function(self) -> dict[str, Any]:
        """The changes that are of the function, not of its start alone."""
        changed = self.changes()
        for name in ("query_std", "count_prior", "count_power"):
            changed.pop(name, None)
        counted = {"count_prior": self.beta, "count_power": self.alpha}
        return {**changed, **counted} if any(counted.values()) else changed


def _check_choice(name: str, value: object) -> None:
    if value not in CHOICES[name]:
        known = " or ".join(repr(choice) for choice in CHOICES[name])
        raise ValueError(f"{name} must be {known}, got {value!r}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def _check_deviation(name: str, value: object) -> None:
    check_finite(name, value)
    if not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")


CHECKS: dict[str, Callable[[str, object], None]] = {
    **dict.fromkeys(CHOICES, _check_choice),
    **dict.fromkeys(("key_norm", "null_source"), _check_flag),
    **dict.fromkeys(("n_heads", "key_rank"), check_count),
    **dict.fromkeys(("count_prior", "count_power"), check_finite),
    "query_std": _check_deviation,
}
