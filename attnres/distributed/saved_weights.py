"""Of a saved model what one rank of a pipeline holds, and no more of it is read.

Families whose saved tensors have other names or shapes, as experts that are stacked, are converted
by what transformers itself converts them by on loading.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from attnres.distributed.rank_part import RankPart
from attnres.models.causal_lm import MAY_LACK
from attnres.models.checkpoint import INDEX, check_config, is_plain, read_config, read_weight_map
from attnres.models.families import family_of


def load_weights(held: RankPart, folder: Path) -> None:
    """Read a rank's parameters, and what its layers keep besides, of what `save_pretrained` wrote.

    Readers of depth that a plain checkpoint lacks stay as they are.

    Raises:
        ValueError: no weights there, not all of the model, or those of another one.
    """
    files, saved_config = _files_of(folder), read_config(folder)
    check_config(folder, saved_config, held.model.config)
    own = held.model.state_dict()
    loaded: set[str] = set()
    for name, saved in _converted(held.model, own, files):
        if name not in own:
            continue
        if saved.shape != own[name].shape:
            raise ValueError(
                f"{folder}: {name} has shape {[*saved.shape]}, by the config it has "
                f"{[*own[name].shape]}"
            )
        own[name].copy_(saved)
        loaded.add(name)
    may_lack = MAY_LACK if is_plain(saved_config) else ()
    for name in held.names:
        if name in own and loaded.isdisjoint(held.aliases(name)) and not name.startswith(may_lack):
            raise ValueError(f"{folder} lacks {name}, which the model has")


def _converted(
    model: Any, own: Mapping[str, Tensor], files: Mapping[str, Path]
) -> Iterator[tuple[str, Tensor]]:
    """What becomes of the saved tensors that end in a rank's own, one after another."""
    for name, transform in _transforms(model, own, files).items():
        for target, tensors in transform.convert(name, model=model, config=model.config).items():
            yield target, tensors[0] if isinstance(tensors, list) else tensors


def _transforms(
    model: Any, own: Mapping[str, Tensor], files: Mapping[str, Path]
) -> dict[str, WeightConverter | WeightRenaming]:
    """By the name of a tensor that it gives; a saved tensor is read when it is converted."""
    names = dict(family_of(model.config.text_config).former_names)
    known = get_model_conversion_mapping(model, key_mapping=names)
    renamings = [each for each in known if isinstance(each, WeightRenaming)]
    converters = [each for each in known if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    found: dict[str, WeightConverter | WeightRenaming] = {}
    ours = dict(own)
    for saved in sorted(files, key=dot_natural_key):  # experts in their order
        name, pattern = rename_source_key(
            saved, renamings, converters, model.base_model_prefix, ours
        )
        if name not in own and saved in own:
            name, pattern = saved, None
        if name not in own:
            continue
        if name not in found:
            known_as = WeightRenaming(saved, name) if pattern is None else by_pattern[pattern]
            found[name] = deepcopy(known_as)
        read: Any = partial(_read, files[saved], saved)
        found[name].add_tensor(name, saved, pattern or saved, read)
    return found


def _read(file: Path, name: str) -> Tensor:
    with _opened(file) as tensors:
        return tensors.get_tensor(name)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _files_of(folder: Path) -> dict[str, Path]:
    """The safetensors file of each tensor."""
    index = folder / INDEX
    if index.is_file():
        return {name: folder / file for name, file in read_weight_map(index).items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        raise ValueError(f"no weights at {folder}: neither {index.name} nor {single.name}")
    with _opened(single) as file:
        return dict.fromkeys(file.keys(), single)
