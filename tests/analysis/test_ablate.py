"""Effects of what is removed, against models in which it is not there."""

import json
import math

import pytest
import torch
from call_command import call_command
from small_models import build
from tiny_runs import RESIDUALS, recipe, write_text
from torch import nn

from attnres.analysis.ablate import Effects, ablate, without_source
from attnres.analysis.ablate_page import agreement
from attnres.analysis.runs import load_run
from attnres.layout import BlockLayout
from attnres.residual import AttnRes, ScaledEmbedding, Standard
from attnres.residual.highway import HighwayConfig
from attnres.train.loop import train

TOKENS_BT = torch.randint(0, 61, (2, 9), generator=torch.Generator().manual_seed(0))


def loss_of(model):
    with torch.no_grad():
        return model(input_ids=TOKENS_BT, labels=TOKENS_BT, use_cache=False).loss.item()


@pytest.mark.parametrize("sublayers_per_block", [1, 2])
def test_the_weights_of_the_other_sources_are_shared_out_anew(sublayers_per_block):
    torch.manual_seed(0)
    residual = AttnRes(5, BlockLayout.of(4, sublayers_per_block=sublayers_per_block)).double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    state = residual.start(torch.randn(2, 3, 5, dtype=torch.float64))
    for depth in range(3):
        state = residual.write(state, depth, torch.randn(2, 3, 5, dtype=torch.float64))
    alpha_SBT, whole_BTD = residual.weights(state, 3), residual.read(state, 3)[0]
    for source, source_BTD in enumerate(state.sources):
        share_BT1 = alpha_SBT[source, ..., None]
        expected = (whole_BTD - share_BT1 * source_BTD) / (1 - share_BT1)
        with without_source(residual, 3, source):
            torch.testing.assert_close(residual.read(state, 3)[0], expected)
    torch.testing.assert_close(residual.read(state, 3)[0], whole_BTD)


def test_standard_loses_one_output_from_one_sum():
    residual = Standard(2)
    with without_source(residual, 1, 0):
        state = residual.write(residual.start(torch.full((1, 2), 5.0)), 0, torch.ones(1, 2))
        assert residual.read(state, 1)[0].tolist() == [[1.0, 1.0]]
        state = residual.write(state, 1, torch.ones(1, 2))
        assert residual.finish(state).tolist() == [[7.0, 7.0]]  # other readers see it
    with without_source(residual, 2, 1):
        state = residual.write(residual.start(torch.full((1, 2), 5.0)), 0, torch.full((1, 2), 3.0))
        state = residual.write(state, 1, torch.ones(1, 2))
        assert residual.finish(state).tolist() == [[6.0, 6.0]]


def test_a_larger_embedding_is_taken_off_as_it_went_in():
    residual = ScaledEmbedding(2, 1, 50.0)
    with without_source(residual, 1, 0):
        state = residual.write(residual.start(torch.full((1, 2), 5.0)), 0, torch.ones(1, 2))
        assert state.tolist() == [[251.0, 251.0]]
        assert residual.finish(state).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", ["standard", "block", "full"])
def test_a_layer_removed_is_a_layer_whose_outputs_are_zero(name):
    found = ablate(build(RESIDUALS[name]), TOKENS_BT)
    assert len(found.layers) == 3
    for layer, effect in enumerate(found.layers):
        model = build(RESIDUALS[name])
        assert loss_of(model) == pytest.approx(found.loss, rel=1e-6)
        nn.init.zeros_(model.model.layers[layer].self_attn.o_proj.weight)
        nn.init.zeros_(model.model.layers[layer].mlp.down_proj.weight)
        assert effect == pytest.approx(loss_of(model) - found.loss, abs=1e-5)
        assert abs(effect) > 1e-4


def test_each_reader_misses_each_of_its_sources():
    found = ablate(build(RESIDUALS["full"]), TOKENS_BT)
    assert found.sources is not None
    assert [len(row) for row in found.sources] == [1, 2, 3, 4, 5, 6, 7]
    assert found.sources[0] == [None]
    assert all(math.isfinite(x) for row in found.sources[1:] for x in row if x is not None)


def test_a_source_of_zeros_is_not_missed_by_a_sum():
    model = build(RESIDUALS["standard"])
    nn.init.zeros_(model.model.layers[1].mlp.down_proj.weight)  # writes zero, as source 4
    found = ablate(model, TOKENS_BT)
    assert found.sources is not None
    assert [row[4] for row in found.sources if len(row) > 4] == [0, 0, 0]
    readers = [row[0] for row in found.sources[1:]]
    assert readers.pop(2) == 0  # whose sublayer writes zero, whatever it reads
    assert all(readers)


def test_other_methods_lose_layers_only():
    found = ablate(build(HighwayConfig()), TOKENS_BT)
    assert found.sources is None
    assert len(found.layers) == 3


def test_nothing_is_left_behind():
    model = build(RESIDUALS["full"]).train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ablate(model, TOKENS_BT)
    assert model.training
    assert not {"read", "write", "start", "finish"} & set(vars(model.residual))
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())


@pytest.mark.slow
def test_the_command_ablates_the_finished_runs(tmp_path, capsys):
    text = write_text(tmp_path / "text.txt", 600)
    for name in ("standard", "block"):
        own = recipe(text, name, name=name, n_steps=2, probe_every=2, save_every=2)
        train(own, tmp_path / "runs" / name)
    capsys.readouterr()
    status, out, err = call_command("ablate", [tmp_path / "runs", "--sequences", 2], capsys)
    assert (status, err) == (0, "")
    assert "standard" in out
    found = json.loads((tmp_path / "runs" / "ablation.json").read_text())
    assert [len(row) for row in found["block"]["sources"]] == [1, 2, 2, 3, 3]
    assert len(found["standard"]["layers"]) == 2
    names = {path.name for path in (tmp_path / "runs").glob("ablation*.png")}
    kinds = ("ablation", "ablation-standard", "ablation-block")
    assert names == {f"{kind}{dark}.png" for kind in kinds for dark in ("", "-dark")}
    weights = tmp_path / "runs" / "block" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    status, _, err = call_command("ablate", [tmp_path / "runs", "--sequences", 2], capsys)
    assert status == 2
    assert "block/model cannot be loaded: " in err
    assert err.count("\n") == 1


def test_weights_and_losses_agree_in_their_order(make, tmp_path):
    path = make.run(tmp_path, "full", method="attn_res", sizes=make.blocks)
    weights = [[1.0], [0.7, 0.3], [0.2, 0.5, 0.3], [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.1, 0.2]]
    probe = {"weights": weights}
    make.edit(path, lambda rows: [row | probe if row["kind"] == "probe" else row for row in rows])
    without = [[None], [0.0, 1.0], [5.0, 1.0, 2.0], [0.0, 0.1, 0.5, 9.0], [1.0, 2.0, 4.0, 3.0]]
    effects = Effects(loss=3.0, sources=without, layers=[0.0])
    assert agreement(load_run(path), effects) == pytest.approx(0)
    effects = Effects(loss=3.0, sources=[*without[:4], [4.0, 3.0, 2.0, 1.0]], layers=[0.0])
    assert agreement(load_run(path), effects) == pytest.approx((1 + 0.8) / 2)
    assert agreement(load_run(path), Effects(loss=3.0, sources=None, layers=[])) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "no run has a model"), (["--sequences", "0"], "at least 1, got 0")],
)
def test_what_cannot_be_ablated_is_one_line(folder, arguments, words, capsys):
    status, _, err = call_command("ablate", [folder, *arguments], capsys)
    assert status == 2
    assert words in err
