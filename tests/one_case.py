"""`--one-case SEED`: of each test one case, so that all tests are run in little time.

Which case it is depends on the seed and the test alone: the commit as the seed has a change run by
the same cases until it is committed, and those of the next by others.
"""

import zlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-case", metavar="SEED", help="run one case of each test, drawn by this text"
    )


@pytest.hookimpl(trylast=True)  # after -m and -k have taken theirs out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--one-case")
    if seed is None:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    drawn = {each[zlib.crc32((seed + test).encode()) % len(each)] for test, each in cases.items()}
    config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
    items[:] = [item for item in items if item in drawn]  # as pytest has ordered them
