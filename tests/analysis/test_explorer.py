"""What goes on the page of the depth explorer, and what is refused."""

import base64
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from call_command import call_command
from explorer_pages import NASTY, attends, streams
from small_models import build
from tiny_runs import RESIDUALS, recipe, write_text

import attnres.analysis.explorer
from attnres.analysis.ablate import ablate
from attnres.analysis.explorer import page
from attnres.analysis.explorer.names import column_names, source_names
from attnres.analysis.explorer.pieces import FOLLOWS, text_pieces
from attnres.analysis.explorer.reading import read_text
from attnres.layout import BlockLayout
from attnres.models import AttnResForCausalLM
from attnres.models.taps import weights_by_depth
from attnres.residual import AttnRes, Window, WindowConfig
from attnres.residual.denseformer import DenseFormerConfig
from attnres.residual.laurel import LaurelConfig
from attnres.train.loop import train
from attnres.train.tokenizer import byte_tokenizer, for_transformers, train_bpe

FILES = Path(attnres.analysis.explorer.__file__).parent


def data_of(text):
    """The data that a page holds, as a browser would find it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def unpacked(run, n_tokens):
    """Weights by reader, ST, as run.js unpacks them."""
    packed = run["weights"]
    flat = np.frombuffer(base64.b64decode(packed["data"]), "<u2").astype(float)
    flat = packed["low"] + flat * (packed["high"] - packed["low"]) / 65535
    sizes = [len(row) * n_tokens for row in run["sources"]]
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return [part.reshape(-1, n_tokens) for part in parts]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A standard, a Block and a Full run of a second each, and their text."""
    folder = tmp_path_factory.mktemp("explored")
    text = write_text(folder / "text.txt", 600)
    for name in ("standard", "block", "full"):
        own = recipe(text, name, name=name, n_steps=2, probe_every=2, save_every=2)
        train(own, folder / "runs" / name)
    return folder / "runs"


@pytest.fixture(scope="module")
def explored(runs):
    """The page that the command writes about them, once."""
    output = runs.parent / "page.html"
    page_of(runs, output=output, n_tokens=100)
    return output.read_text(encoding="utf-8")


def page_of(*folders, output, **settings):
    from attnres.analysis.explorer.explore import write_explorer

    write_explorer(folders, output, say=lambda words: None, **settings)


@pytest.mark.parametrize("name", ["block", "full"])
def test_the_page_holds_the_weights_of_every_token(runs, explored, name):
    data = data_of(explored)
    run = next(run for run in data["runs"] if run["name"] == name)
    model = AttnResForCausalLM.from_pretrained(runs / name / "model")
    tokenizer = for_transformers(byte_tokenizer())
    tokens_T = torch.tensor(tokenizer("".join(data["texts"][0]["pieces"]))["input_ids"])
    assert data["texts"][0]["lengths"] == [32, 32, 32, 4]  # as long as in training
    with torch.no_grad():
        parts = [weights_by_depth(model, part[None]) for part in tokens_T.split(32)]
    for alpha_ST, of_sequences in zip(unpacked(run, 100), zip(*parts, strict=True), strict=True):
        expected = torch.cat([x[:, 0] for x in of_sequences], dim=-1)
        np.testing.assert_allclose(alpha_ST, expected, atol=0.51 / 65535)


def test_a_mixing_matrix_of_attention_over_all_outputs_is_its_mean_weights():
    found = read_text(build(RESIDUALS["full"]), list(torch.randint(0, 61, (3, 9))))
    assert found.weights
    assert found.mixing
    for row, alpha_ST in zip(found.mixing, found.weights, strict=True):
        np.testing.assert_allclose(row, alpha_ST.mean(dim=-1), atol=1e-6)


def test_methods_without_depth_weights_have_a_matrix_alone_or_say_why_not():
    tokens = [torch.arange(9)]
    found = read_text(build(DenseFormerConfig()), tokens)
    assert found.weights is None
    assert found.mixing
    assert [len(row) for row in found.mixing] == [1, 2, 3, 4, 5, 6, 7]
    assert [name for name, _ in found.sources[-1]] == ["emb", "1", "2", "3", "4", "5", "6"]
    found = read_text(build(LaurelConfig(rank=2)), tokens)
    assert (found.weights, found.mixing) == (None, None)
    assert "mixes channels" in found.no_mixing


def test_sources_are_named_by_what_is_in_them():
    names = [f"s{i}" for i in range(5)]
    found = source_names(AttnRes(8, BlockLayout.of(5, sublayers_per_block=2)), names)
    b0, b1 = ("b0", "the embedding"), ("b1", "s0 to s1")
    assert found == [
        [b0],
        [b0, ("partial", "so far: s0")],
        [b0, b1],
        [b0, b1, ("partial", "so far: s2")],
        [b0, b1, ("b2", "s2 to s3")],
        [b0, b1, ("b2", "s2 to s3"), ("b3", "s4")],
    ]
    assert column_names(found) == ["b0", "b1", "b2", "b3", "partial"]
    found = source_names(AttnRes(8, BlockLayout((3,))), names[:3])
    assert found[2] == [b0, ("partial", "so far: s0 to s1")]


@pytest.mark.parametrize("remainder", [False, True])
def test_sources_of_a_window_are_named_as_they_fall_out(remainder):
    names = [f"s{i}" for i in range(5)]
    residual = Window(8, 5, n_last=2, remainder=remainder)
    found = source_names(residual, names)
    assert [len(row) for row in found] == [residual.n_sources(reader) for reader in range(6)]
    older = [("older", "s0 to s2")] if remainder else []
    assert found[5] == [("b0", "the embedding"), *older, ("b4", "s3"), ("b5", "s4")]
    columns = ["b0", *["older"] * remainder, "b1", "b2", "b3", "b4", "b5"]
    assert column_names(found) == columns


@pytest.mark.parametrize("words", ["dé—jà 漢字 🐋 vu\n\n  x", "plain words, and more"])
def test_pieces_put_together_are_the_text(words):
    bpe = for_transformers(train_bpe(["plain words"], 260))
    for tokenizer in (for_transformers(byte_tokenizer()), bpe):
        tokens = tokenizer(words)["input_ids"]
        pieces = text_pieces(tokenizer, tokens)
        assert len(pieces) == len(tokens)
        assert "".join(pieces).replace(FOLLOWS, "") == words


def test_half_a_character_is_one_broken_piece():
    tokenizer = for_transformers(byte_tokenizer())
    whale = tokenizer("🐋a")["input_ids"]
    assert text_pieces(tokenizer, whale[1:]) == ["\ufffd", "\ufffd", "\ufffd", "a"]
    assert text_pieces(tokenizer, whale[:2]) == ["\ufffd", "\ufffd"]


def test_a_piece_keeps_the_space_that_a_tokenizer_leaves_out():
    class Sentences:
        def decode(self, tokens):
            return "word"

        def convert_ids_to_tokens(self, token):
            return ["\u2581word", "word"][token]

    assert text_pieces(Sentences(), [0, 1]) == [" word", "word"]


def test_no_token_and_no_name_ends_the_script_that_holds_it():
    text = page.render("<i>&</title>", [attends("</script><b>", 1, 20, pieces=NASTY)])
    data = data_of(text)
    assert data["texts"][0]["pieces"][: len(NASTY)] == NASTY
    assert data["runs"][0]["name"] == "</script><b>"
    assert text.count("</script>") == 2  # of the data, and of the modules
    assert "<title>&lt;i&gt;&amp;&lt;/title&gt;: depth explorer</title>" in text


def test_the_page_asks_for_nothing():
    text = page.render("a", [attends("a", 1, 20)])
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|<link|src=", text)


def test_one_text_of_two_runs_is_there_once():
    other = attends("other", 1, 21)
    data = data_of(page.render("a", [attends("a", 1, 20), streams("b", 2, 20), other]))
    assert [run["text"] for run in data["runs"]] == [0, 0, 1]
    assert len(data["texts"]) == 2


def test_weights_out_of_the_ordinary_keep_their_range():
    run = attends("a", 1, 20)
    weights = run.reading.weights or []
    weights[1][0, 3] = 2.5
    weights[2][1, 4] = -0.5
    found = data_of(page.render("a", [run]))["runs"][0]
    for alpha_ST, expected in zip(unpacked(found, 20), weights, strict=True):
        np.testing.assert_allclose(alpha_ST, expected, atol=0.51 * 3 / 65535)
    weights[2][1, 4] = torch.nan
    with pytest.raises(ValueError, match="weights of a are not finite"):
        page.render("a", [run])


def test_a_matrix_that_is_not_finite_is_refused():
    run = streams("a", 1, 20)
    (run.reading.mixing or [])[2][1] = float("nan")
    with pytest.raises(ValueError, match="mixing matrix of a is not finite"):
        page.render("a", [run])


def test_each_module_imports_what_an_earlier_one_exports():
    assert {path.name for path in FILES.glob("*.js")} == set(page.MODULES)
    exported: dict[str, set[str]] = {}
    defined: list[str] = []
    for name in page.MODULES:
        code = (FILES / name).read_text()
        for names, source in re.findall(r"^import {([^}]*)} from \"./([\w.]+)\";$", code, re.M):
            assert {each.strip() for each in names.split(",")} <= exported[source], name
        exported[name] = set(re.findall(r"^export (?:function|class|const) (\w+)", code, re.M))
        defined += re.findall(r"^(?:export )?(?:function|class|const|let) (\w+)", code, re.M)
        assert max(map(len, code.splitlines())) <= 100
        assert len(code.splitlines()) <= 250
    assert len(set(defined)) == len(defined)  # one scope for all
    assert not re.search(r"^(import|export) ", page.script(), re.M)


def test_effects_are_measured_on_the_text_shown(runs):
    page_of(runs / "block", output=runs.parent / "ablated.html", n_tokens=70, measure_effects=True)
    data = data_of((runs.parent / "ablated.html").read_text())
    model = AttnResForCausalLM.from_pretrained(runs / "block" / "model")
    tokens = for_transformers(byte_tokenizer())("".join(data["texts"][0]["pieces"]))["input_ids"]
    expected = ablate(model, torch.tensor(tokens[:64]).view(2, 32))  # whole sequences
    assert data["runs"][0]["effects"] == {"sources": expected.sources, "layers": expected.layers}


@pytest.mark.slow
def test_what_ablate_left_is_shown_beside_the_weights(runs, capsys, tmp_path):
    folder = shutil.copytree(runs, tmp_path / "runs")
    assert call_command("ablate", [folder, "--sequences", 2], capsys)[0] == 0
    page_of(folder, output=tmp_path / "page.html", n_tokens=10)
    by_name = {
        run["name"]: run["effects"] for run in data_of((tmp_path / "page.html").read_text())["runs"]
    }
    found = json.loads((folder / "ablation.json").read_text())
    for name in ("standard", "block", "full"):
        assert by_name[name] == {key: found[name][key] for key in ("sources", "layers")}


def test_the_command_writes_a_page_beside_the_runs(runs, capsys, tmp_path):
    folder = shutil.copytree(runs, tmp_path / "runs")
    (folder / "unfinished").mkdir()
    (folder / "unfinished" / "recipe.json").write_text("{}")
    status, out, err = call_command("explore", [folder, "--tokens", 40], capsys)
    assert (status, err) == (0, "")
    assert "standard: 40 tokens, its mixing matrix alone" in out
    assert "block: 40 tokens, 5 readers" in out
    assert f"page: {folder / 'explorer.html'}" in out
    data = data_of((folder / "explorer.html").read_text())
    assert [run["name"] for run in data["runs"]] == ["standard", "block", "full"]
    assert data["title"] == "runs"


def test_runs_of_one_name_are_told_apart_by_their_folders(runs, tmp_path):
    other = shutil.copytree(runs / "block", tmp_path / "other" / "block")
    page_of(runs / "block", other, output=tmp_path / "page.html", n_tokens=8)
    names = [run["name"] for run in data_of((tmp_path / "page.html").read_text())["runs"]]
    assert names == ["runs/block", "other/block"]


def test_a_saved_model_is_shown_on_a_text_that_is_given(runs, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text("One whale, two whales. " * 9)
    page_of(runs / "full" / "model", output=tmp_path / "page.html", n_tokens=50, text=text)
    data = data_of((tmp_path / "page.html").read_text())
    assert "".join(data["texts"][0]["pieces"]) == ("One whale, two whales. " * 9)[:50]
    assert data["texts"][0]["lengths"] == [32, 18]  # the model has 32 positions
    assert data["texts"][0]["source"] == "own.txt"
    assert data["runs"][0]["residual"] == "attn_res"


def spoil_config(folder):
    (folder / "full" / "model" / "config.json").write_text("{")


def spoil_ablation(folder):
    (folder / "ablation.json").write_text("{")


def mismatch_ablation(folder):
    (folder / "ablation.json").write_text('{"full": {"sources": [[1]], "layers": []}}')


def drop_model(folder):
    shutil.rmtree(folder / "full" / "model")


def drop_models(folder):
    for path in folder.glob("*/model"):
        shutil.rmtree(path)


def drop_tokenizer(folder):
    for path in (folder / "full" / "model").glob("tokenizer*"):
        path.unlink()


def drop_text(folder):
    own = json.loads((folder / "full" / "recipe.json").read_text())
    own["data"]["path"] = str(folder / "gone.txt")
    (folder / "full" / "recipe.json").write_text(json.dumps(own))


def nothing(folder):
    """All as it was."""


@pytest.mark.parametrize(
    ("spoil", "arguments", "words"),
    [
        (nothing, [], "give a folder"),
        (nothing, ["missing"], "no folder at missing"),
        (nothing, ["full/checkpoint"], "no run in full/checkpoint"),
        (nothing, ["full", "--tokens", "0"], "--tokens is at least 1, got 0"),
        (
            nothing,
            ["full/model"],
            "full/model is no run, which would have a text: give --text FILE",
        ),
        (nothing, ["full", "--text", "gone.txt"], "gone.txt"),
        (drop_model, ["full"], "full has no model: only a finished run can be explored (2 of 2 "),
        (drop_models, ["."], "no run in . has a model: only finished runs can be explored"),
        (drop_tokenizer, ["full"], "has no tokenizer, so its tokens cannot be shown as text"),
        (drop_text, ["full"], "gone.txt; to show another text, give --text FILE"),
        (spoil_config, ["full"], "config.json is damaged"),
        (spoil_ablation, ["full"], "ablation.json is damaged"),
        (mismatch_ablation, ["full"], "ablation of full is of another model: run attnres ablate"),
    ],
)
def test_what_cannot_be_explored_is_one_line(
    runs, tmp_path, capsys, monkeypatch, spoil, arguments, words
):
    folder = shutil.copytree(runs, tmp_path / "runs")
    spoil(folder)
    monkeypatch.chdir(folder)
    status, _, err = call_command("explore", arguments, capsys)
    assert status == 2
    assert words in err
    assert err.count("\n") == 1
    assert not list(folder.rglob("*.html"))


def test_a_plain_model_is_told_how_to_get_depth_weights(tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = LlamaConfig(vocab_size=300, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                        num_attention_heads=2)  # fmt: skip
    LlamaForCausalLM(small).save_pretrained(tmp_path / "plain")
    status, _, err = call_command("explore", [tmp_path / "plain"], capsys)
    assert (status, "plain is a plain model: attnres convert gives it" in err) == (2, True)


def test_too_large_a_page_is_refused_with_what_to_do(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("attnres.analysis.explorer.explore.LARGEST_PAGE_BYTES", 1_000)
    with pytest.raises(ValueError, match=r"0 MB of weights, more than 0: give fewer folders or"):
        page_of(runs / "full", output=tmp_path / "page.html", n_tokens=64)
    assert list(tmp_path.iterdir()) == []


def test_a_window_can_be_explored():
    found = read_text(build(WindowConfig(n_last=2, remainder=True)), [torch.arange(9)])
    assert found.weights
    assert [len(row) for row in found.sources] == [len(alpha_ST) for alpha_ST in found.weights]
    assert replace(found, weights=None).mixing
