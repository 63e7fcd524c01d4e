"""What a study is: its arms, its recipe and the runs that answer its question.

Every arm tries the same learning rates with a seed of their own and is judged on one part of the
held-out text; at the rate of lowest loss it is run with every seed, and the other part is reported.
At one seed all arms see the same text in the same order.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnres.residual import ResidualConfig, StandardConfig, parse_residual
from attnres.train.reasoning import is_reasoning
from attnres.train.recipe import Recipe

REFERENCE = "standard"  # the arm that all others are compared with
Phase = Literal["tuning", "final"]


class Trial(NamedTuple):
    """One run of a study."""

    phase: Phase
    arm: str
    lr: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.phase}-{self.arm}-lr{self.lr:g}-seed{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Study:
    """One question, and all that decides its runs.

    Args:
        name: of the study, and of its folder.
        base: the recipe of every run, but for its name, residual, peak learning rate and seed.
        arms: a residual by name, as a config or as the text that `parse_residual` reads; a text is
            read when the arm is run. One arm is "standard".
        learning_rates: peak rates that every arm tries.
        seeds: of weights and order of the text, each run once an arm at its best rate.
        tuning_seed: that of the runs that choose the rate, not among `seeds`.
        version: one more wherever rows of before cannot be compared with new ones, as after a
            change of a default or of a method.
        n_scored: held-out sequences, at most, of each of the two parts.
        in_order: show the arms as they stand here; else from the lowest loss to the highest.
        paper: what another work reports for an arm, nats a token, beside which the table stands.
        beside: an arm from which the summary has differences too, as from "standard".
        rates_of_reference: only "standard" tries the rates, and every arm runs at its best one, as
            where hyper-parameters are those of the baseline.
    """

    name: str
    base: Recipe
    arms: Mapping[str, str | ResidualConfig]
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    tuning_seed: int = 100
    version: int = 1
    n_scored: int = 512
    in_order: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)
    beside: str | None = None
    rates_of_reference: bool = False

    def __post_init__(self):
        if REFERENCE not in self.arms:
            raise ValueError(f"study {self.name!r} has no arm {REFERENCE!r} to compare with")
        for name in ("learning_rates", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} must be one or more, each once, got {values}")
        if self.tuning_seed in self.seeds:
            raise ValueError(f"tuning_seed {self.tuning_seed} is among seeds {self.seeds}")
        for name in (*self.paper, *([] if self.beside is None else [self.beside])):
            self._check_arm(name)
        if self.beside == REFERENCE:
            raise ValueError(f"beside is {REFERENCE!r}, from which there are differences anyway")

    def residual(self, arm: str) -> ResidualConfig:
        """ValueError for a method or a setting that this version does not have."""
        self._check_arm(arm)
        given = self.arms[arm]
        try:
            return parse_residual(given) if isinstance(given, str) else given
        except ValueError as error:
            raise ValueError(f"arm {arm!r} of study {self.name!r}: {error}") from error

    def recipe(self, trial: Trial) -> Recipe:
        """ValueError where the arm does not fit the model of the study."""
        residual = self.residual(trial.arm)
        try:
            return replace(
                self.base,
                name=trial.name,
                seed=trial.seed,
                model=replace(self.base.model, residual=residual),
                optim=replace(self.base.optim, lr=trial.lr),
            )
        except ValueError as error:
            raise ValueError(f"arm {trial.arm!r} of study {self.name!r}: {error}") from error

    def choose(self, arms: Iterable[str]) -> tuple[str, ...]:
        """The arms of these names, all where there is none, in order; each must be possible."""
        wanted = set(arms) or set(self.arms)
        wanted |= {REFERENCE} if self.rates_of_reference else set()
        for name in sorted(wanted):
            self._check_arm(name)
        chosen = tuple(name for name in self.arms if name in wanted)
        for name in chosen:
            self.recipe(Trial("tuning", name, self.learning_rates[0], self.tuning_seed))
        return chosen

    def tuned_by(self, arm: str) -> str:
        """The arm that tries the rates for this one."""
        return REFERENCE if self.rates_of_reference else arm

    @property
    def fingerprint(self) -> str:
        """The same for rows that can be compared.

        A field of the recipe at its default is left out, so that a new one changes no fingerprint.
        """
        base = replace(
            self.base,
            name="any",
            seed=0,
            model=replace(self.base.model, residual=StandardConfig()),
            optim=replace(self.base.optim, lr=1.0),
        )
        rest: dict[str, Any] = {
            "version": self.version,
            "seed": self.tuning_seed,
            "n_scored": self.n_scored,
        }
        rest |= {"rates_of_reference": True} if self.rates_of_reference else {}
        text = json.dumps({"recipe": _given(base), **rest}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _check_arm(self, name: str) -> None:
        if name not in self.arms:
            known = ", ".join(self.arms)
            raise ValueError(f"study {self.name!r} has no arm {name!r}; there are: {known}")


def trials(study: Study, arm: str, best_lr: float | None) -> list[Trial]:
    """The runs of an arm: those that tune, and where a rate is chosen, those with every seed."""
    rates = study.learning_rates if study.tuned_by(arm) == arm else ()
    tuning = [Trial("tuning", arm, lr, study.tuning_seed) for lr in rates]
    if best_lr is None:
        return tuning
    return tuning + [Trial("final", arm, best_lr, seed) for seed in study.seeds]


def quick(study: Study) -> Study:
    """The same arms at a size of seconds: that all runs work, and nothing of the answer."""
    base, rates = study.base, study.learning_rates
    model = replace(base.model, dim=32, n_heads=2, n_kv_heads=2, mlp_dim=64)
    is_here = is_reasoning(base.data.path) or Path(base.data.path).exists()
    data = base.data if is_here else replace(base.data, path="")
    return replace(
        study,
        name=f"{study.name}-quick",
        base=replace(
            base,
            model=model,
            data=data,
            optim=replace(base.optim, warmup_steps=2),
            n_steps=8,
            batch_size=4,
            seq_len=32,
            n_validation_sequences=8,
            n_probe_sequences=1,
            log_every=1,
            validate_every=8,
            probe_every=8,
            save_every=8,
        ),
        learning_rates=(rates[0], rates[-1])[: len(rates)],
        seeds=study.seeds[:2],
        n_scored=16,
    )


def _given(config: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, those of its parts likewise."""
    given = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if value != _default(each):
            nested = is_dataclass(value) and not isinstance(value, ResidualConfig)
            given[each.name] = _given(value) if nested else value
    return given


def _default(each: "Field[Any]") -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default
