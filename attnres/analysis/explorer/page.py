"""One HTML file: page.html with the style, the script and the data put in; nothing is fetched."""

import base64
import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from attnres.analysis.explorer.names import column_names
from attnres.analysis.explorer.reading import Reading
from attnres.analysis.explorer.texts import Text

MODULES = (  # in the order in which they need each other
    "colors.js",
    "run.js",
    "heat_map.js",
    "source_table.js",
    "grids.js",
    "text_view.js",
    "mixing_view.js",
    "address.js",
    "main.js",
)
LEVELS = 65_535  # of a packed weight
LARGEST_PAGE_BYTES = 256_000_000


@dataclass(frozen=True, kw_only=True)
class Explored:
    """One run as the page shows it; `effects` is what `attnres ablate` found, as JSON."""

    name: str
    residual: str
    text: Text
    reading: Reading
    effects: dict[str, Any] | None = None


def render(title: str, explored: Sequence[Explored]) -> str:
    """The page as text."""
    parts = {
        "title": html.escape(title),
        "style": _source("style.css"),
        "data": _safe_json(_payload(title, explored)),
        "script": script(),
    }
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], _source("page.html"))


def script() -> str:
    """All modules as one: each is written as a module of its own, for people and for tools."""
    return "\n".join(_without_borders(_source(name)) for name in MODULES)


def page_bytes(n_sources: int, n_tokens: int) -> int:
    """What the weights of one run take, for all its readers' sources together."""
    return -(-n_sources * n_tokens * 2 * 4 // 3)


def _without_borders(module: str) -> str:
    module = re.sub(r"^import [^;]*;\n", "", module, flags=re.MULTILINE)
    return re.sub(r"^export ", "", module, flags=re.MULTILINE)


def _source(name: str) -> str:
    return files("attnres.analysis.explorer").joinpath(name).read_text(encoding="utf-8")


def _safe_json(data: Any) -> str:
    """JSON in which no text can end the element that holds it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _payload(title: str, explored: Sequence[Explored]) -> dict[str, Any]:
    texts: list[dict[str, Any]] = []
    runs = []
    for each in explored:
        text = _text_json(each.text)
        if text not in texts:
            texts.append(text)
        runs.append({**_run_json(each), "text": texts.index(text)})
    return {"title": title, "texts": texts, "runs": runs}


def _text_json(text: Text) -> dict[str, Any]:
    return {
        "pieces": text.pieces,
        "lengths": [len(tokens_T) for tokens_T in text.sequences],
        "source": text.source,
    }


def _run_json(each: Explored) -> dict[str, Any]:
    reading = each.reading
    return {
        "name": each.name,
        "residual": each.residual,
        "readers": reading.readers,
        "sources": reading.sources,
        "columns": column_names(reading.sources),
        "weights": pack(each.name, reading.weights) if reading.weights else None,
        "mixing": _mixing_json(each.name, reading.mixing),
        "noMixing": reading.no_mixing,
        "isUntrained": reading.is_untrained,
        "effects": _effects_json(each),
    }


def pack(name: str, weights: Sequence[Tensor]) -> dict[str, Any]:
    """Weights in 16 bits each, from `low` to `high`, by reader, then source, then token.

    Raises:
        ValueError: weights that are not finite.
    """
    flat = torch.cat([alpha_ST.flatten() for alpha_ST in weights]).double()
    if not flat.isfinite().all():
        raise ValueError(f"the depth weights of {name} are not finite")
    low, high = min(0.0, flat.min().item()), max(1.0, flat.max().item())
    levels = ((flat - low) * (LEVELS / (high - low))).round().to(torch.int32).numpy().astype("<u2")
    return {"low": low, "high": high, "data": base64.b64encode(levels.tobytes()).decode()}


def _mixing_json(name: str, rows: list[list[float]] | None) -> list[list[float]] | None:
    """To five digits; ValueError for what is not finite."""
    if rows is None:
        return None
    if not all(math.isfinite(x) for row in rows for x in row):
        raise ValueError(f"the mixing matrix of {name} is not finite")
    return [[float(f"{x:.5g}") for x in row] for row in rows]


def _effects_json(each: Explored) -> dict[str, Any] | None:
    """Those of sources and of layers; ValueError where they are another model's."""
    if each.effects is None:
        return None
    rows, layers = each.effects.get("sources"), each.effects.get("layers")
    sizes = [len(row) for row in each.reading.sources]
    if rows is not None and [len(row) for row in rows] != sizes:
        raise ValueError(
            f"the ablation of {each.name} is of another model: run attnres ablate again"
        )
    return {"sources": rows, "layers": layers}
