"""What pages speak of as being there: folders by their names, and the names of a page's Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

OP = """\
from attnres.ops.reference import depth_attention


def attn_res(query, sources, key_weight, eps):
    return depth_attention(query, sources, key_weight, eps)
"""
LAW = """\
arm,budget,loss
standard,1e12,4.00
standard,4e12,3.72
standard,16e12,3.45
full,1e12,3.95
full,4e12,3.66
full,16e12,3.40
"""


def lay_out(page_text: str, folder: Path) -> None:
    """Make in `folder` what the page names and does not make by itself."""
    for name, make in PLACES.items():
        if name in page_text and f"-o {name}" not in page_text:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            make(folder / name)


def names_of(page: str, folder: Path) -> dict[str, Any]:
    """What the Python of a page takes for given."""
    return NAMES[page](folder) if page in NAMES else {}


def _plain_model(folder: Path) -> None:
    """A Llama of 4 layers over bytes, with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from attnres.train.tokenizer import byte_tokenizer, for_transformers

    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=257,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=2048,
            eos_token_id=256,
            bos_token_id=None,
        )
    ).save_pretrained(folder)
    for_transformers(byte_tokenizer()).save_pretrained(folder)


def _texts(folder: Path) -> None:
    from tiny_runs import write_text

    folder.mkdir()
    write_text(folder / "words.txt")


def _joined(residual: str = "attn_res:n_blocks=4", n_layers: int = 4) -> Any:
    from transformers import LlamaConfig

    from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM

    torch.manual_seed(0)
    llama = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        max_position_embeddings=2048,
    )
    config = AttnResCausalLMConfig(text_config=llama, residual=residual)
    return AttnResForCausalLM(config).eval()


def _converted(folder: Path) -> None:
    from attnres.train.tokenizer import byte_tokenizer, for_transformers

    _joined("centered:n_blocks=8").save_pretrained(folder)
    for_transformers(byte_tokenizer()).save_pretrained(folder)


PLACES: dict[str, Callable[[Path], None]] = {
    "path/to/model": _plain_model,
    "converted": _converted,
    "my_texts": _texts,
    "my_kernels.py": lambda path: _write(path, OP),
    "rows.csv": lambda path: _write(path, LAW),
}
NAMES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "docs/inference.md": lambda folder: {"model": _joined("attn_res:n_blocks=8", n_layers=12)},
    "docs/prefill.md": lambda folder: {
        "model": _joined(),
        "prompt": torch.randint(257, (1, 1100)),
    },
}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
