"""A model that holds the parameters of some chunks of a pipeline, and nothing of the others.

Fresh weights are those that one process would draw, bit for bit: the model is built as ever, in the
same order, but for a parameter of others only the random numbers are drawn, and thrown away. So no
more is in memory than the parameters that stay and the largest that does not, and torch's generator
is left where one process leaves it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode

from attnres.distributed.chunks import Chunk
from attnres.distributed.ownership import chunks_of_buffers, chunks_of_parameters
from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.models.front import Front, in_front
from attnres.residual.reading import ReadsQuickly

Keep = Callable[[int, nn.Parameter], bool]  # of a parameter, and how many were made before it


class RankPart:
    """What a rank holds, and what the others do.

    Its `model` is an `AttnResForCausalLM` in which every parameter of others is None.
    """

    def __init__(self, config: AttnResCausalLMConfig, chunks: Sequence[Chunk], rank: int):
        skeleton, made = _skeleton(config)
        self.chunks_of = chunks_of_parameters(skeleton, chunks)
        ranks = [chunk.rank for chunk in chunks]
        self.ranks_of = {
            name: tuple(sorted({ranks[chunk] for chunk in needed}))
            for name, needed in self.chunks_of.items()
        }
        parameters = dict(skeleton.named_parameters(remove_duplicate=False))
        self.names = tuple(name for name, _ in skeleton.named_parameters())
        self._aliases = {
            own: [name for name, other in parameters.items() if other is parameters[own]]
            for own in self.names
        }
        ours = {id(parameters[name]) for name, held in self.ranks_of.items() if rank in held}
        self.model = _drawn(config, [id(parameter) in ours for parameter in made])
        self.model.is_cut = True
        for name, needed in chunks_of_buffers(skeleton, chunks).items():
            if rank not in {ranks[chunk] for chunk in needed}:
                _drop_buffer(self.model, name)
        cut_readers(self.model.residual, chunks)

    def aliases(self, name: str) -> list[str]:
        """All names of a parameter, the first being its own."""
        return self._aliases[name]

    def shared(self, rank: int) -> dict[tuple[int, ...], list[str]]:
        """Parameters that a rank holds with others, by all ranks that hold them."""
        found: dict[tuple[int, ...], list[str]] = {}
        for name in self.names:
            held = self.ranks_of[name]
            if rank in held and len(held) > 1:
                found.setdefault(held, []).append(name)
        return found


def check_whole(model: Any, instead: str) -> None:
    """ValueError for a model that is cut into stages, with what can be done instead."""
    if getattr(model, "is_cut", False):
        raise ValueError(f"the model is one rank's part of a pipeline: {instead}")


def cut_readers(residual: nn.Module, chunks: Sequence[Chunk]) -> None:
    """Let no reader of one chunk be asked by another."""
    if isinstance(residual, ReadsQuickly):
        residual.cut_at(chunk.start for chunk in chunks)


def _skeleton(config: AttnResCausalLMConfig) -> tuple[Any, list[nn.Parameter]]:
    """The model without values, and all parameters in the order in which they are made.

    Some are not the model's in the end, as the weight of a head that is then tied.
    """
    made: list[nn.Parameter] = []

    def keep(place: int, parameter: nn.Parameter) -> bool:
        made.append(parameter)
        return True

    with torch.device("meta"), _registered(keep):
        return AttnResForCausalLM(config), made


def _drawn(config: AttnResCausalLMConfig, is_ours: Sequence[bool]) -> Any:
    with _registered(lambda place, parameter: is_ours[place]), _DrawForOthers():
        model = AttnResForCausalLM(config)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                module._parameters[name] = None
    for child in model.base_model.children():
        if isinstance(child, nn.Embedding) and child.weight is None:
            child.__class__ = in_front(NoEmbedding, type(child))
    return model


def _drop_buffer(model: nn.Module, name: str) -> None:
    path, _, own_name = name.rpartition(".")
    model.get_submodule(path)._buffers[own_name] = None


@contextmanager
def _registered(keep: Keep) -> Iterator[None]:
    """Ask of each parameter that a module is given, once, whether its values are kept."""
    decided: dict[int, nn.Parameter] = {}  # by id, of what modules have; held, so that none returns
    n_asked = 0

    def on_registration(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        nonlocal n_asked
        if id(parameter) not in decided:
            if not keep(n_asked, parameter):
                parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            decided[id(parameter)] = parameter
            n_asked += 1
        return parameter

    handle = register_module_parameter_registration_hook(cast(Any, on_registration))
    try:
        yield
    finally:
        handle.remove()


class NoEmbedding(Front):
    """Put before the class of an embedding that is elsewhere, as of positions in GPT-2."""

    def forward(self, index: Tensor) -> Tensor:
        return torch.zeros((), device=index.device)


class _DrawForOthers(TorchDispatchMode):
    """What is drawn for a tensor without values is drawn all the same."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            tensor = args[0] if args else None
            if isinstance(tensor, Tensor) and tensor.is_meta:
                like = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
                func(like, *args[1:], **kwargs)
        return func(*args, **kwargs)
