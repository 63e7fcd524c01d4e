"""DeepNorm and KEEL: the recurrence by hand, their factors, and the mean matrix of two gains."""

import pytest
import torch
from by_hand import DIM, N_TOKENS, assert_reads, branches, embedding, randomise

from attnres.analysis.mixing import mixing_matrix
from attnres.residual.post_norm import DeepNormConfig, KeelConfig, PostNorm

EPS = 1e-3


@pytest.mark.parametrize("n_plain", [0, 2, 4])
def test_recurrence_by_hand(n_plain):
    residual = randomise(PostNorm(DIM, 4, alpha=1.5, n_plain=n_plain, eps=EPS))
    h_TD = embedding()
    expected = [h_TD]
    for depth, branch in enumerate(branches(4)):
        if depth < n_plain:
            h_TD = h_TD + branch(h_TD)
        else:
            sum_TD = 1.5 * h_TD + branch(h_TD)
            size_T = [((row_D**2).sum() / DIM + EPS) ** 0.5 for row_D in sum_TD]
            gain_D = residual.gains[depth - n_plain]
            h_TD = torch.stack([gain_D * sum_TD[t] / size_T[t] for t in range(N_TOKENS)])
        expected.append(h_TD)
    assert_reads(residual, expected)


@pytest.mark.parametrize("n_plain", [0, 1, 3])
def test_mixing_is_the_mean_over_channels_of_products_of_gains(n_plain):
    """Channel by channel: the matrix of one channel multiplies it by its gains and the sizes."""
    residual = randomise(PostNorm(DIM, 3, alpha=2.0, n_plain=n_plain, eps=EPS))
    outputs = [embedding(), *torch.randn(3, N_TOKENS, DIM, dtype=torch.float64)]
    h_TD, parts_LTD = embedding(), [torch.ones(N_TOKENS, DIM)]
    rows = [parts_LTD]
    for depth, out_TD in enumerate(outputs[1:]):
        alpha, factor_TD = 1.0, torch.ones(N_TOKENS, DIM, dtype=torch.float64)
        if depth >= n_plain:
            alpha = 2.0
            size_T1 = ((2 * h_TD + out_TD).square().mean(-1, keepdim=True) + EPS).sqrt()
            factor_TD = residual.gains[depth - n_plain] / size_T1
        h_TD = (alpha * h_TD + out_TD) * factor_TD
        rows.append([*(alpha * part_TD * factor_TD for part_TD in rows[-1]), factor_TD])
    mixing_LLT = mixing_matrix(residual, outputs)
    for row_LT, parts_LTD in zip(mixing_LLT, rows, strict=True):
        expected = torch.stack([part_TD.mean(-1) for part_TD in parts_LTD]).double()
        torch.testing.assert_close(row_LT[: len(expected)], expected)


def test_factors_of_the_papers():
    """DeepNorm's alpha for 24 layers of a decoder is 48^(1/4) (arXiv:2203.00555, figure 2)."""
    assert DeepNormConfig().build(DIM, 48).alpha == pytest.approx(48**0.25)
    assert KeelConfig().build(DIM, 48).alpha == 48
    assert KeelConfig(alpha=3).build(DIM, 48).alpha == 3
    assert DeepNormConfig().describe(16) == {"alpha": 2.0, "eps": 1e-6}
    assert KeelConfig().describe(16) == {"alpha": 16.0, "n_plain": 2, "eps": 1e-6}


def test_keel_leaves_its_first_layer_without_norms():
    keel, deep_norm = KeelConfig().build(DIM, 6), DeepNormConfig().build(DIM, 6)
    assert len(list(keel.parameters())) == 4
    assert len(list(deep_norm.parameters())) == 6
    assert keel.traffic(0).total == deep_norm.traffic(5).total == 3
    (group,) = keel.tuning()
    assert not group.is_decayed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0}, "alpha must be positive, got 0"),
        ({"alpha": float("nan")}, "alpha must be a finite number, got nan"),
        ({"n_plain": -1}, "n_plain must be a number of sublayers from 0 on, got -1"),
        ({"n_plain": 1.0}, "n_plain .* got 1.0"),
        ({"eps": -1}, "eps must be finite and not negative, got -1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        KeelConfig(**settings)


def test_more_plain_sublayers_than_there_are_are_refused():
    with pytest.raises(ValueError, match="n_plain must be from 0 to 1, got 2"):
        KeelConfig().build(DIM, 1)
