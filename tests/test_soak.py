"""The soak run tells flat memory from growing."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "soak.py"
spec = importlib.util.spec_from_file_location("soak", SCRIPT)
assert spec is not None
assert spec.loader is not None
soak = importlib.util.module_from_spec(spec)
spec.loader.exec_module(soak)


@pytest.mark.parametrize(("mib_a_look", "is_flat"), [(0.0, True), (1.0, True), (4.0, False)])
def test_growth_is_what_is_kept_after_the_start(mib_a_look, is_flat):
    found = [(i, 500.0 + (i > 0) * 40 + mib_a_look * i) for i in range(10)]
    assert (soak.growth(found) <= soak.MOST_GROWTH_MIB) == is_flat


def test_a_short_soak_trains_and_looks_ten_times(tmp_path):
    found = soak.soak(20, tmp_path)
    assert [step for step, _ in found] == list(range(10, 21, 10))
    assert all(mib > 100 for _, mib in found)
