"""The figures of the paper, and those of docs/method.md."""

import pytest

from attnres.cost import messages, prefill_bytes, schemes, source_bytes
from attnres.residual import AttnResConfig, ResidualConfig, StandardConfig, TwoPhaseConfig

PAPER = {
    "standard": (3, 3),
    "mHC": (34, 34),
    "Full, naive": (130, 65.5),
    "Full, two phases": (24, 13),
    "Block, two phases": (5.5, 9 / 32 + 5),
}


def test_the_table_of_the_paper_in_both_conventions():
    found = {each.name: (each.twice.vectors, each.once.vectors) for each in schemes()}
    assert found == PAPER


@pytest.mark.parametrize("sizes", [(128, 8, 4), (54, 9, 2), (32, 4, 4), (7, 3, 1)])
def test_symbols_say_what_the_numbers_are(sizes):
    L, N, m = sizes
    for scheme in schemes(*sizes):
        for symbols, vectors in (scheme.twice, scheme.once):
            formula = symbols.replace("8m", "8*m").replace("2S", "2*S")
            assert eval(formula, {"L": L, "N": N, "m": m, "S": L / N}) == pytest.approx(vectors)


def test_full_in_two_phases_is_cheapest_where_blocks_are_as_many_as_their_sublayers():
    by_n_blocks = {n: schemes(64, n)[3].twice.vectors for n in (1, 2, 4, 8, 16, 32, 64)}
    assert min(by_n_blocks, key=by_n_blocks.__getitem__) == 8


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((0, 1), "n_sublayers .* got 0"), ((8, -1), "n_blocks .* got -1"),
     ((8, 9), "n_blocks=9 is more than the model's 8"), ((8, 2, 0), "n_streams .* got 0")],
)  # fmt: skip
def test_a_scheme_of_sizes_that_cannot_be_is_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        schemes(*sizes)


def moved(config: ResidualConfig, n_sublayers: int = 128) -> float:
    residual = config.build(4, n_sublayers)
    return sum(residual.traffic(depth).total for depth in range(n_sublayers))


def test_methods_move_what_the_table_says_once():
    """The first read of all is the identity, and two phases read back the mixes of phase 1."""
    assert moved(StandardConfig()) == 128 * 3
    assert moved(AttnResConfig()) == 128 * 65.5 - 1
    n_read_back = 7 * 15  # of 8 groups the first has one source; first readers read no mix
    assert moved(TwoPhaseConfig(readers_per_group=16)) == 128 * 13 + n_read_back


def test_block_in_two_phases_moves_each_block_once_a_block():
    """The paper has 5.3: its read adds the partial sum that it reads, and writes one of the two."""
    blocks_read = sum(range(1, 9))
    mixes_written = 7 * 16 + 1  # of phase 1; the output read is asked with the last block
    mixes_read = 7 * 15
    partials_read, mixes_given = 8 * 15, 8 * 15
    sums = 8 * 15 * 3  # a partial and an output read, a partial written
    first_block = 15  # its embedding is read by each reader, since two phases read no less
    total = blocks_read + mixes_written + mixes_read + partials_read + mixes_given + sums
    assert moved(TwoPhaseConfig(n_blocks=8)) == total + first_block


def test_prefill_takes_the_memory_of_the_paper():
    prompt = {"n_sources": 8, "n_tokens": 128 * 1024, "dim": 7168}
    whole, shard = prefill_bytes(**prompt), prefill_bytes(**prompt, n_shards=8)
    chunk = prefill_bytes(**prompt, n_shards=8, chunk_tokens=16 * 1024)
    assert [round(n / 1e9, 3) for n in (whole, shard, chunk)] == [15.032, 1.879, 0.235]
    assert source_bytes(8, 128 * 1024, 7168) == whole
    assert source_bytes(8, 128 * 1024, 7168, bytes_per_number=4) == 2 * whole


def test_the_last_shard_and_chunk_may_be_short():
    assert prefill_bytes(1, 10, 1, n_shards=4, bytes_per_number=1) == 3
    assert prefill_bytes(1, 10, 1, n_shards=2, chunk_tokens=99, bytes_per_number=1) == 5


@pytest.mark.parametrize("name", ["n_sources", "n_tokens", "dim", "n_shards", "chunk_tokens"])
def test_a_prompt_that_cannot_be_is_refused(name):
    sizes = {"n_sources": 1, "n_tokens": 1, "dim": 1} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got 0"):
        prefill_bytes(**sizes)


PIPELINES = {(4, 2): (28, 22), (8, 4): (496, 220), (16, 4): (2016, 888)}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_messages_are_those_of_the_paper(pipeline):
    assert messages(*pipeline) == PIPELINES[pipeline]
    assert messages(*pipeline, sources_per_chunk=0.5) == tuple(n / 2 for n in PIPELINES[pipeline])


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (2, 2, 0.0), (2, 2, -1.0)])
def test_a_pipeline_that_cannot_be_is_refused(arguments):
    with pytest.raises(ValueError, match=r"must be .*positive"):
        messages(*arguments)
