"""ReZero and LayerScale: the recurrence by hand, the starts of the papers and the standard one."""

import pytest
import torch
from by_hand import (
    DIM,
    assert_reads,
    assert_starts_as_it_says,
    branches,
    embedding,
    randomise,
    reads,
)

from attnres.analysis.mixing import mixing_matrix
from attnres.residual.layer_scale import LayerScale, LayerScaleConfig, ReZero, ReZeroConfig


@pytest.mark.parametrize("kind", [ReZero, LayerScale])
def test_recurrence_by_hand(kind):
    residual = randomise(kind(DIM, 3))
    h_TD = embedding()
    expected = [h_TD]
    for factor, branch in zip(residual.factors, branches(3), strict=True):
        h_TD = h_TD + branch(h_TD) @ torch.diag(factor.expand(DIM))
        expected.append(h_TD)
    assert_reads(residual, expected)


def test_mixing_is_the_mean_factor_of_each_output():
    residual = randomise(LayerScale(DIM, 2))
    mixing_LL = mixing_matrix(residual, list(torch.randn(3, 1, DIM)))[..., 0]
    first, second = (factor.mean().item() for factor in residual.factors)
    expected = torch.tensor([[1, 0, 0], [1, first, 0], [1, first, second]], dtype=torch.float64)
    torch.testing.assert_close(mixing_LL, expected)


def test_rezero_starts_as_the_identity():
    for read_TD in reads(ReZero(DIM, 3).double(), embedding()):
        assert torch.equal(read_TD, embedding())


@pytest.mark.parametrize(
    ("n_sublayers", "init"), [(1, 0.1), (36, 0.1), (37, 1e-5), (48, 1e-5), (49, 1e-6)]
)
def test_layer_scale_starts_by_depth(n_sublayers, init):
    assert {f.unique().item() for f in LayerScale(DIM, n_sublayers).double().factors} == {
        torch.tensor(init).item()
    }


@pytest.mark.parametrize("config", [ReZeroConfig, LayerScaleConfig])
@pytest.mark.parametrize(("init", "start"), [(1, "standard"), (1.0, "standard"), (0.5, "other")])
def test_only_a_start_of_one_is_the_standard_model(config, init, start):
    assert_starts_as_it_says(config(init=init).build(DIM, 4), start)


def test_sizes_traffic_and_tuning():
    rezero, layer_scale = ReZero(DIM, 3), LayerScale(DIM, 3)
    assert [p.shape for p in rezero.parameters()] == [(1,)] * 3
    assert [p.shape for p in layer_scale.parameters()] == [(DIM,)] * 3
    for residual in (rezero, layer_scale):
        assert residual.traffic(2).total == 3
        (group,) = residual.tuning()
        assert (len(group.names), group.lr_scale, group.is_decayed) == (3, 1, False)


@pytest.mark.parametrize("config", [ReZeroConfig, LayerScaleConfig])
@pytest.mark.parametrize("init", [float("nan"), "one", False])
def test_a_start_that_is_no_number_is_refused(config, init):
    with pytest.raises(ValueError, match=f"init must be a finite number, got {init!r}"):
        config(init=init)
