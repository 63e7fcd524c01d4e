"""docs/methods.md names every method, and its figures are those that the methods give."""

import re
from pathlib import Path

import pytest
import torch

from attnres.residual import RESIDUALS, Ablations, parse_residual

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
DIM, N_SUBLAYERS = 4096, 128
COSTS = re.findall(r"^\| `([^`]+)` \| (\w+) \| ([\d.,]+) \| ([\d.,]+) \|$", TEXT, re.MULTILINE)


def rows_of(heading: str) -> list[str]:
    """First cells of the table below a heading."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_every_method_has_its_row():
    assert rows_of("What they compute") == list(RESIDUALS)
    assert {text.partition(":")[0] for text, *_ in COSTS} == set(RESIDUALS)
    assert len(COSTS) == len(rows_of("What they cost, and how they start"))


@pytest.mark.parametrize(("text", "start", "moved", "n_params"), COSTS, ids=[x[0] for x in COSTS])
def test_figures_are_those_of_the_method(text, start, moved, n_params):
    with torch.device("meta"):
        residual = parse_residual(text).build(DIM, N_SUBLAYERS)
    total = sum(residual.traffic(depth).total for depth in range(N_SUBLAYERS))
    added = sum(parameter.numel() for parameter in residual.parameters())
    assert start == residual.starts_as
    assert moved == f"{total / N_SUBLAYERS:.1f}"
    assert n_params == f"{added / N_SUBLAYERS / DIM:.2f}"


def test_every_ablation_has_its_row_and_its_text_is_read():
    rows = rows_of("Ablations of `attn_res`")
    for setting in rows:
        parse_residual(f"attn_res:n_blocks=4,{setting}")
    named = {setting.partition("=")[0] for setting in rows} | {"count_power"}
    assert named == set(Ablations.__dataclass_fields__)
