"""The cost of one model as tables of words, which a terminal or a page shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnres.cost.counted import Counted
from attnres.cost.memory import prefill_bytes, source_bytes
from attnres.cost.messages import messages
from attnres.cost.methods import DIM, MethodCost
from attnres.cost.schemes import schemes
from attnres.cost.sizes import BACKWARD, Sizes
from attnres.layout import check_count

NOT_SAID = "\N{EN DASH}"


@dataclass(frozen=True)
class Table:
    """Rows of cells under a title; `note` says what the figures leave out."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a model is used."""

    n_tokens: int  # at once: of a forward pass in training, of a prompt in prefill
    seq_len: int
    bytes_per_number: int
    n_shards: int
    chunk_tokens: int | None


def scheme_table(n_sublayers: int, n_blocks: int) -> Table:
    rows = [
        (each.name, each.twice.symbols, f"{each.twice.vectors:.2f}", each.once.symbols,
         f"{each.once.vectors:.2f}")
        for each in schemes(n_sublayers, n_blocks)
    ]  # fmt: skip
    title = f"Moved a token and a sublayer, in vectors of D: L={n_sublayers}, N={n_blocks}, m=4"
    columns = ("scheme", "keys and values", "two reads", "a source", "read once")
    return Table(title, columns, rows, "S = L / N sublayers a block; a sublayer's own is left out")


def model_table(sizes: Sizes, counted: Counted, run: Run) -> Table:
    attention = sizes.attention_flops(run.seq_len)
    whole = sizes.forward_flops(run.seq_len)
    residual = counted.flops * sizes.n_sublayers
    added = counted.n_params / sizes.n_params
    rows = [
        ("parameters of the model", f"{sizes.n_params:,}"),
        ("of these, multiplied with a token", f"{sizes.n_active_weights:,}"),
        ("parameters of the residual", f"{counted.n_params:,} ({added:.3%})"),
        ("forward FLOPs, weights", f"{whole - attention:,}"),
        ("forward FLOPs, with attention", f"{whole:,}"),
        ("forward FLOPs, residual", f"{residual:,.0f} ({residual / whole:.3%})"),
        ("FLOPs of a training step", f"{(1 + BACKWARD) * (whole + residual):,.0f}"),
    ]
    note = f"FLOPs are a token, over {run.seq_len:,} tokens; the residual in plain PyTorch"
    return Table("Parameters and FLOPs", ("", "figure"), rows, note)


def memory_table(sizes: Sizes, counted: Counted, n_blocks: int | None, run: Run) -> Table:
    """Without blocks, prefill holds the largest state."""
    n_stored = n_blocks or round(counted.carried)

    def training(vectors: float) -> str:
        return bytes_in_words(source_bytes(vectors, run.n_tokens, sizes.dim, run.bytes_per_number))

    def prefill(n_shards: int, chunk_tokens: int | None) -> str:
        return bytes_in_words(
            prefill_bytes(n_stored, run.n_tokens, sizes.dim, n_shards=n_shards,
                          chunk_tokens=chunk_tokens, bytes_per_number=run.bytes_per_number)
        )  # fmt: skip

    shards = f"on each of {run.n_shards} shards"
    rows = [
        ("training, all kept for the backward", f"{counted.saved:.1f}", training(counted.saved)),
        ("training, each layer checkpointed", f"{counted.checkpointed:.1f}",
         training(counted.checkpointed)),
        ("largest state between two sublayers", f"{counted.carried:.1f}",
         training(counted.carried)),
        (f"prefill, {'finished blocks' if n_blocks else 'the largest state'}", f"{n_stored}",
         prefill(1, None)),
        (f"prefill, {shards}", f"{n_stored}", prefill(run.n_shards, None)),
    ]  # fmt: skip
    if run.chunk_tokens:
        words = f"prefill, {shards}, chunks of {run.chunk_tokens:,}"
        rows.append((words, f"{n_stored}", prefill(run.n_shards, run.chunk_tokens)))
    title = f"Memory of the residual for {run.n_tokens:,} tokens of {run.bytes_per_number} bytes"
    note = "GB is 10^9 bytes"
    if n_blocks:
        note += "; prefill counts blocks, as the paper does, and not the embedding"
    return Table(title, ("", "vectors a token", "memory"), rows, note)


def pipeline_table(n_blocks: int, n_stages: int, n_virtual: int) -> Table:
    check_count("n_stages", n_stages)
    check_count("n_virtual", n_virtual)
    per_chunk = n_blocks / (n_stages * n_virtual)
    rows = []
    for words, sources in ((f"{n_blocks} blocks", per_chunk), ("one source a chunk", 1)):
        all_sent, kept = messages(n_stages, n_virtual, sources)
        ratio = f"{all_sent / kept:.2f}" if kept else NOT_SAID  # one chunk sends nothing
        rows.append((words, f"{all_sent:g}", f"{kept:g}", ratio))
    title = f"Pipeline of {n_stages} stages with {n_virtual} chunks each: vectors a token sent"
    return Table(title, ("", "everything each time", "stages keep", "ratio"), rows)


def methods_table(costs: Sequence[MethodCost], n_sublayers: int, dim: int) -> Table:
    rows = [
        (
            each.method,
            each.starts_as,
            f"{each.counted.n_params:,}",
            NOT_SAID if each.counted.moved is None else f"{each.counted.moved:.2f}",
            f"{each.measured.moved:.1f}",
            f"{each.counted.saved:.1f}",
            f"{each.measured.saved:.1f}",
            f"{each.counted.checkpointed:.1f}",
            f"{each.counted.flops / dim:,.0f}",
        )
        for each in costs
    ]
    columns = ("method", "starts as", "parameters", "moved, fused", "moved, eager", "saved, count",
               "saved, CPU", "checkpointed", "FLOPs / D")  # fmt: skip
    title = f"Every residual method over {n_sublayers} sublayers of width {dim}"
    note = ("vectors of D a token: moved (forward) and FLOPs are a sublayer's share, saved and "
            f"checkpointed are of all sublayers; eager and CPU are measured at width "
            f"{min(dim, DIM)}, where scalars a token weigh more")  # fmt: skip
    return Table(title, columns, rows, note)


def bytes_in_words(n_bytes: int) -> str:
    """In the largest unit, a power of 1000, that leaves one or more."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes} bytes"
