"""A saved model over HTTP, by transformers' own server."""

from pathlib import Path

import transformers
from transformers.models.auto import modeling_auto
from transformers.utils.import_utils import is_serve_available

from attnres.models import AttnResForCausalLM

INSTALL = "pip install 'attention-residuals[serve]'"


def register() -> None:
    """Let transformers' server find the class that a saved config names.

    It looks there and not in `AutoModelForCausalLM`, where the class is registered.
    """
    name = AttnResForCausalLM.__name__
    setattr(transformers, name, AttnResForCausalLM)
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["attnres"] = name


def serve(folder: Path, options: list[str]) -> None:
    """`transformers serve` of a local folder, until it is stopped; `options` are its own.

    Raises:
        ValueError: no folder of a model there, or the server's packages are not installed.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is no folder of a saved model")
    if not is_serve_available():
        raise ValueError(f"transformers serve needs openai, fastapi and uvicorn: {INSTALL}")
    from transformers.cli.transformers import app

    register()
    app(["serve", str(folder), *options])
