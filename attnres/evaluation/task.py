"""What a model is asked: a task of lm-evaluation-harness, with the settings of its suite."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task and how it is scored.

    Args:
        name: in tables, and of the file of its results.
        spec: what the harness loads: the name of a task or a group, a YAML file, several of these,
            or a config that brings its own data.
        version: of a config that brings its own data: another wherever it asks something else.
        n_shots: examples before each question; as the task says where None.
        metric: what is compared, such as "acc" or "exact_match,flexible-extract" (a metric and the
            filter before it); the first one that has a number a question where it is empty.
        n_runs: times that it is run, each with other examples; a question's score is their mean.
        runs_code: whether scoring runs what the model wrote.
        reported: what another work reports, in percent, by the name of a model.
        source: where the protocol is from.
    """

    name: str
    spec: str | Sequence[str] | Mapping[str, Any]
    version: str = ""
    n_shots: int | None = None
    metric: str = ""
    n_runs: int = 1
    runs_code: bool = False
    reported: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self):
        if not self.name or set("/\0") & set(self.name) or self.name.startswith("."):
            raise ValueError(f"a task's name must do as that of a file, got {self.name!r}")
        if self.n_runs < 1 or (self.n_shots is not None and self.n_shots < 0):
            raise ValueError(f"{self.name}: n_runs {self.n_runs}, n_shots {self.n_shots}")

    @property
    def specs(self) -> list[str | dict[str, Any]]:
        """What the harness is given."""
        if isinstance(self.spec, Mapping):
            return [dict(self.spec)]
        return [self.spec] if isinstance(self.spec, str) else [*self.spec]

    @property
    def is_of_the_harness(self) -> bool:
        """Whether a name is in it that the harness must know."""
        return any(isinstance(spec, str) and not is_file(spec) for spec in self.specs)

    def settings(self, limit: int | None) -> dict[str, Any]:
        """What two results must share to be compared question by question."""
        return {
            "task": self.name,
            "spec": self._spec_words(),
            "n_shots": self.n_shots,
            "n_runs": self.n_runs,
            "limit": limit,
        }

    def _spec_words(self) -> str:
        if isinstance(self.spec, Mapping):
            return self.version
        return " ".join(_words(spec) for spec in self.specs if isinstance(spec, str))


def is_file(spec: str) -> bool:
    return Path(spec).suffix in (".yaml", ".yml")


def _words(spec: str) -> str:
    if is_file(spec) and Path(spec).is_file():
        return hashlib.sha256(Path(spec).read_bytes()).hexdigest()
    return spec


def named(spec: str, n_shots: int | None = None) -> Task:
    """A task of the harness, or a YAML file, as it stands."""
    return Task(name=Path(spec).stem if is_file(spec) else spec, spec=spec, n_shots=n_shots)
