"""Pages of the depth explorer without a model: weights that are known."""

import torch

from attnres.analysis.explorer.names import output_names, reader_names, source_names
from attnres.analysis.explorer.page import Explored
from attnres.analysis.explorer.reading import Reading
from attnres.analysis.explorer.texts import Text
from attnres.layout import BlockLayout
from attnres.residual import AttnRes

NASTY = ["</script><script>document.title='broken'</script>", "<!--<script>", "&amp;", "<b>", " a"]


def text_of(n_tokens, seq_len=16, pieces=()):
    words = [f" w{i}" if i % 7 else f"w{i}\n" for i in range(n_tokens)]
    words[: len(pieces)] = pieces
    return Text(
        sequences=list(torch.arange(n_tokens).split(seq_len)), pieces=words, source="a test"
    )


def attends(
    name, n_layers, n_tokens, sublayers_per_block=1, seed=0, seq_len=16, effects=None, pieces=()
):
    """A run with random depth weights."""
    n = 2 * n_layers
    layout = BlockLayout.of(n, sublayers_per_block=sublayers_per_block)
    sublayers = [f"{kind} of layer {i}" for i in range(n_layers) for kind in ("attention", "MLP")]
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.randn(layout.n_sources(reader), n_tokens, generator=generator).mul(2).softmax(dim=0)
        for reader in range(n + 1)
    ]
    reading = Reading(
        readers=reader_names(sublayers),
        sources=source_names(AttnRes(8, layout), sublayers),
        weights=weights,
        mixing=mixing_of(n),
        no_mixing="",
        is_untrained=False,
    )
    text = text_of(n_tokens, seq_len, pieces)
    return Explored(name=name, residual="attn_res", text=text, reading=reading, effects=effects)


def streams(name, n_layers, n_tokens, effects=None, has_matrix=True):
    """A run without depth weights."""
    n = 2 * n_layers
    sublayers = [f"{kind} of layer {i}" for i in range(n_layers) for kind in ("attention", "MLP")]
    reading = Reading(
        readers=reader_names(sublayers),
        sources=output_names(sublayers),
        weights=None,
        mixing=mixing_of(n, sign=-1) if has_matrix else None,
        no_mixing="" if has_matrix else "Laurel has no depth mixing matrix of scalars",
        is_untrained=False,
    )
    return Explored(
        name=name, residual=name, text=text_of(n_tokens), reading=reading, effects=effects
    )


def mixing_of(n, sign=1):
    """Row by row, 1, 2, 3, ... tenths; of the other sign wherever it is odd."""
    return [[sign**i * (i + 1) / 10 for i in range(reader + 1)] for reader in range(n + 1)]


def effects_of(explored_sources, n_layers):
    """Of source s in reader r: r / 10 - s / 100, so that some are below zero."""
    rows = [
        [None] if len(row) == 1 else [reader / 10 - s / 100 - 0.105 for s in range(len(row))]
        for reader, row in enumerate(explored_sources)
    ]
    return {"loss": 3.0, "sources": rows, "layers": [0.5 + i for i in range(n_layers)]}
