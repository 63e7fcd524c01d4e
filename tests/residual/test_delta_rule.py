"""Deep Delta Learning: the recurrence by hand, and what beta of 0, 1 and 2 does along k."""

import pytest
import torch
from by_hand import DIM, N_TOKENS, assert_reads, branches, embedding, randomise

from attnres.residual.delta_rule import KEY_EPS, DeltaRule, DeltaRuleConfig

EPS = 1e-3


def test_recurrence_by_hand():
    """By matrices: h' = (1 - beta k k^T) h + beta v k."""
    residual = randomise(DeltaRule(DIM, 3, EPS))
    h_TD = embedding()
    expected = [h_TD]
    for scalars, branch in zip(residual.scalars, branches(3), strict=True):
        rows = []
        for h_D, out_D in zip(h_TD, branch(h_TD), strict=True):
            k_D = out_D / (out_D @ out_D + KEY_EPS).sqrt()
            normed_D = h_D / ((h_D @ h_D) / DIM + EPS).sqrt()
            beta = 2 * torch.sigmoid(normed_D @ scalars.gate_weight[:, 0] + scalars.gate_bias)
            v = 4 * torch.sigmoid(h_D @ scalars.value_weight[:, 0] + scalars.value_bias)
            turn_DD = torch.eye(DIM, dtype=torch.float64) - beta * torch.outer(k_D, k_D)
            rows.append(turn_DD @ h_D + beta * v * k_D)
        h_TD = torch.stack(rows)
        expected.append(h_TD)
    found = [h_TD.detach() for h_TD in expected]
    with torch.no_grad():
        assert_reads(residual, found)


@pytest.mark.parametrize(("bias", "beta"), [(-1e3, 0), (0.0, 1), (1e3, 2)])
def test_the_part_along_the_key_is_kept_replaced_or_mirrored(bias, beta):
    residual = DeltaRule(DIM, 1).double()
    residual.get_parameter("scalars.0.gate_bias").data.fill_(bias)
    key_TD = torch.nn.functional.normalize(torch.randn(N_TOKENS, DIM, dtype=torch.float64), dim=-1)
    h_TD = embedding()
    written_TD = residual.write(h_TD, 0, 7 * key_TD)
    before_T, after_T = ((x_TD * key_TD).sum(-1) for x_TD in (h_TD, written_TD))
    torch.testing.assert_close(after_T, before_T + beta * (2 - before_T))
    across = [x_TD - (x_TD * key_TD).sum(-1, True) * key_TD for x_TD in (h_TD, written_TD)]
    torch.testing.assert_close(*across)


def test_a_small_output_is_a_whole_key_and_none_is_none():
    residual = DeltaRule(DIM, 1)
    h_TD, out_TD = torch.randn(2, N_TOKENS, DIM)
    expected = residual.write(h_TD, 0, out_TD)
    torch.testing.assert_close(residual.write(h_TD, 0, 1e-2 * out_TD), expected)
    assert torch.equal(residual.write(h_TD, 0, 0 * out_TD), h_TD)


def test_sizes_traffic_and_tuning():
    residual = DeltaRule(DIM, 3)
    assert sum(p.numel() for p in residual.parameters()) == 3 * 2 * (DIM + 1)
    assert residual.traffic(0).total == 3
    (group,) = residual.tuning()
    assert (len(group.names), group.is_decayed) == (12, False)
    assert residual.starts_as == "other"


def test_an_epsilon_that_is_negative_is_refused():
    with pytest.raises(ValueError, match="eps must be finite and not negative, got -1"):
        DeltaRuleConfig(eps=-1)
