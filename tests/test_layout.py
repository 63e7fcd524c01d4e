"""Which sublayer closes a block, and so what every reader sees (arXiv:2603.15031, section 3.2)."""

import copy
import json
import random
import re

import pytest
import torch

from attnres import AttnRes, BlockLayout


def _n_sources(layout: BlockLayout) -> list[int]:
    return [layout.n_sources(depth) for depth in range(layout.n_sublayers + 1)]


def _closes(layout: BlockLayout) -> list[int]:
    return [depth for depth in range(layout.n_sublayers) if layout.closes_after(depth)]


def test_blocks_of_four():
    layout = BlockLayout.of(8, sublayers_per_block=4)
    assert layout.sizes == (4, 4)
    assert layout.ends == (3, 7)
    assert _closes(layout) == [3, 7]
    assert _n_sources(layout) == [1, 2, 2, 2, 2, 3, 3, 3, 3]
    assert layout.source_names(0) == ("b0",)
    assert layout.source_names(1) == ("b0", "partial")
    assert layout.source_names(4) == ("b0", "b1")
    assert layout.source_names(5) == ("b0", "b1", "partial")
    assert layout.source_names(8) == ("b0", "b1", "b2")


def test_full_closes_after_every_sublayer():
    layout = BlockLayout.full(8)
    assert layout == BlockLayout.of(8, sublayers_per_block=1)
    assert _closes(layout) == list(range(8))
    assert _n_sources(layout) == list(range(1, 10))
    assert layout.source_names(8) == tuple(f"b{i}" for i in range(9))


def test_short_last_block():
    layout = BlockLayout.of(10, sublayers_per_block=4)
    assert layout.sizes == (4, 4, 2)
    assert _n_sources(layout)[8:] == [3, 4, 4]
    assert layout.source_names(10) == ("b0", "b1", "b2", "b3")


def test_a_boundary_may_fall_between_attention_and_mlp():
    assert BlockLayout.of(8, sublayers_per_block=3).ends == (2, 5, 7)


@pytest.mark.parametrize("size", [8, 9, 1000])
def test_one_block_of_everything_is_the_embedding_and_one_running_sum(size):
    layout = BlockLayout.of(8, sublayers_per_block=size)
    assert layout.sizes == (8,)
    assert _n_sources(layout) == [1] + [2] * 8
    assert layout.source_names(7) == ("b0", "partial")
    assert layout.source_names(8) == ("b0", "b1")


def test_units_agree():
    by_layers = BlockLayout.of(16, layers_per_block=2)
    assert by_layers == BlockLayout.of(16, sublayers_per_block=4)
    assert by_layers == BlockLayout.of(16, n_blocks=4)
    assert by_layers != BlockLayout.of(16, sublayers_per_block=2)


def test_kimi_k3_shape():
    """93 transformer layers, 12 a block."""
    layout = BlockLayout.of(2 * 93, layers_per_block=12)
    assert layout.sizes == (24,) * 7 + (18,)
    assert layout.n_blocks == 8
    assert layout.n_sources(186) == 9
    assert "186 readers with parameters; 9 sources at the output read" in str(layout)


def test_kimi_linear_shape():
    """27 transformer layers, six sublayers a block."""
    assert BlockLayout.of(54, sublayers_per_block=6).n_sources(54) == 10


@pytest.mark.parametrize("n_sublayers", [1, 2, 7, 12, 54])
def test_n_blocks_is_exact_and_even(n_sublayers):
    for n_blocks in range(1, n_sublayers + 1):
        sizes = BlockLayout.of(n_sublayers, n_blocks=n_blocks).sizes
        assert (len(sizes), sum(sizes)) == (n_blocks, n_sublayers)
        assert max(sizes) - min(sizes) <= 1
        assert list(sizes) == sorted(sizes, reverse=True)


def test_more_blocks_than_sublayers_are_refused():
    with pytest.raises(ValueError, match="n_blocks=9 is more than the model's 8 sublayers"):
        BlockLayout.of(8, n_blocks=9)


@pytest.mark.parametrize("unit", ["sublayers_per_block", "layers_per_block", "n_blocks"])
@pytest.mark.parametrize("size", [0, -2, 1.5, 2.0, True, "4", float("nan")])
def test_a_size_must_be_a_positive_integer(unit, size):
    with pytest.raises(ValueError, match=f"{unit} must be a positive integer, got {size!r}"):
        BlockLayout.of(8, **{unit: size})


@pytest.mark.parametrize("n_sublayers", [0, -2, 1.5, True, None])
def test_a_model_must_have_sublayers(n_sublayers):
    with pytest.raises(
        ValueError, match=f"n_sublayers must be a positive integer, got {n_sublayers}"
    ):
        BlockLayout.of(n_sublayers, n_blocks=1)


@pytest.mark.parametrize(
    ("units", "found"),
    [
        ({}, "got none"),
        ({"n_blocks": None}, "got none"),
        ({"block_size": 4}, "got block_size=4"),
        ({"block_size": 4, "n_blocks": 2}, "got n_blocks=2, block_size=4"),
        (
            {"layers_per_block": 2, "sublayers_per_block": 4},
            "got sublayers_per_block=4, layers_per",
        ),
    ],
)
def test_exactly_one_unit_is_given_and_the_text_names_both_conventions(units, found):
    with pytest.raises(ValueError, match=found) as error:
        BlockLayout.of(8, **units)
    text = str(error.value)
    assert re.search(r"sublayers_per_block \(the paper, FLA\)", text)
    assert re.search(r"layers_per_block \(transformer layers.*Kimi K3, Megatron", text)


@pytest.mark.parametrize("sizes", [(), (0,), (4, -1), (4, 1.5), (True,), ("4",)])
def test_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match="block"):
        BlockLayout(sizes)


def test_sizes_given_as_a_list_make_the_same_layout():
    layout = BlockLayout([4, 4])  # pyright: ignore[reportArgumentType]
    assert layout == BlockLayout((4, 4))
    assert hash(layout) == hash(BlockLayout((4, 4)))


@pytest.mark.parametrize("depth", [-1, 8, 100])
def test_depth_of_a_sublayer_must_exist(depth):
    with pytest.raises(ValueError, match=f"depth must be from 0 to 7, got {depth}"):
        BlockLayout.of(8, n_blocks=2).closes_after(depth)


@pytest.mark.parametrize("depth", [-1, 9, 100])
def test_depth_of_a_read_must_exist(depth):
    layout = BlockLayout.of(8, n_blocks=2)
    for ask in (layout.n_sources, layout.source_names):
        with pytest.raises(ValueError, match=f"depth must be from 0 to 8, got {depth}"):
            ask(depth)


def test_json_round_trip():
    layout = BlockLayout.of(10, sublayers_per_block=4)
    data = json.loads(json.dumps(layout.to_json()))
    assert data == {"unit": "sublayers", "sizes": [4, 4, 2], "counting": 1}
    assert BlockLayout.from_json(data) == layout


@pytest.mark.parametrize(
    "change", [{"counting": 2}, {"counting": None}, {"unit": "layers"}, {"unit": None}]
)
def test_a_foreign_way_of_counting_is_refused(change):
    data = BlockLayout.of(8, n_blocks=2).to_json() | change
    with pytest.raises(ValueError, match=r"counted in sublayers, version 1.*got \{.*\[4, 4\]"):
        BlockLayout.from_json(data)


def test_stored_sizes_are_checked():
    data = BlockLayout.of(8, n_blocks=2).to_json()
    with pytest.raises(ValueError, match="got 0"):
        BlockLayout.from_json(data | {"sizes": [4, 0]})


def test_equal_layouts_are_equal_keys_and_cannot_be_changed():
    one, other = BlockLayout.of(8, n_blocks=2), BlockLayout((4, 4))
    assert one.ends == (3, 7)
    assert one == other == copy.deepcopy(one)
    assert len({one, other, BlockLayout((4, 3, 1))}) == 2
    with pytest.raises(AttributeError):
        one.sizes = (8,)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_printed_table():
    assert str(BlockLayout((4, 1, 2))).splitlines() == [
        "block   sublayers  first read    later reads             closes after",
        "b1      0 to 3     b0 (1)        b0 + partial (2)        sublayer 3",
        "b2      4          b0 to b1 (2)  -                       sublayer 4",
        "b3      5 to 6     b0 to b2 (3)  b0 to b2 + partial (4)  sublayer 6",
        "output  -          b0 to b3 (4)  -                       -",
        "7 sublayers in 3 blocks; 7 readers with parameters; 4 sources at the output read",
    ]


def test_random_layouts_say_what_attn_res_really_reads():
    rng = random.Random(0)
    for _ in range(50):
        sizes = tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 6)))
        layout = BlockLayout(sizes)
        assert layout.n_sublayers == sum(sizes)
        assert layout.ends == tuple(sum(sizes[: i + 1]) - 1 for i in range(len(sizes)))
        assert _closes(layout) == list(layout.ends)
        residual = AttnRes(1, layout)
        state = residual.start(torch.zeros(1))
        for depth in range(layout.n_sublayers):
            _assert_names_are_right(layout, depth, state)
            state = residual.write(state, depth, torch.zeros(1))
        _assert_names_are_right(layout, layout.n_sublayers, state)
        assert state.partial is None


def _assert_names_are_right(layout, depth, state):
    names = layout.source_names(depth)
    assert len(names) == layout.n_sources(depth) == len(state.sources)
    assert ("partial" in names) == (state.partial is not None)
    assert names[: len(state.blocks)] == tuple(f"b{i}" for i in range(len(state.blocks)))
