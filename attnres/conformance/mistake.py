"""What a named mistake is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["op", "schedule", "blocks", "start", "habit"]


@dataclass(frozen=True, eq=False)
class Mistake:
    """Wrong steps under a name.

    Attributes:
        part: whose steps they are; "blocks" are those of a schedule that Full AttnRes, in blocks of
            one sublayer, does not show; "habit" is wrong whatever the numbers are.
        what: what the code does.
        seen_by: who would notice.
        mend: what to write instead.
        steps: the wrong steps, by the name of the right one.
    """

    name: str
    part: Part
    what: str
    seen_by: str
    mend: str
    steps: Mapping[str, Callable[..., Any]]
