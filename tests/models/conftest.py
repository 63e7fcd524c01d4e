"""What is compiled for one test's model is forgotten: after eight models torch gives up."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
