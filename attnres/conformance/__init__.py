"""Does this implementation of attention over depth conform, and if not, what is its mistake?

`check` asks anybody's op, schedule or model questions whose answers and gradients are known, and
compares what is wrong with named wrong implementations; `assert_conforms` does so in a test. The
command is `attnres conform module:function`; docs/conformance.md says what can be handed in.
"""

from attnres.conformance.calling import SIGNATURES
from attnres.conformance.mistake import Mistake
from attnres.conformance.mistakes import MISTAKES
from attnres.conformance.report import Report, Row, assert_conforms, check
from attnres.conformance.vectors import export, judge_file

__all__ = [
    "MISTAKES",
    "SIGNATURES",
    "Mistake",
    "Report",
    "Row",
    "assert_conforms",
    "check",
    "export",
    "judge_file",
]
