"""What FSDP2 gathers of the part of a model that a rank of a pipeline holds, and when.

Ranks of the same stage share its parameters. As torch's own runners do, a pass gathers a unit once,
when the first micro-batch reads it, and keeps it; whole gradients are added up over micro-batches,
and the last backward that a unit takes part in scatters their sum.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from attnres.distributed.chunks import Chunk
from attnres.distributed.data_parallel import shard_unit
from attnres.models.families import family_of
from attnres.models.part import Part

Run = Callable[..., Any]


class WholeUnits:
    """Nothing is sharded: a chunk's forward just runs."""

    def forward(self, run: Run, received: Sequence[Tensor]) -> Any:
        return run(*received)

    def before_backward(self, chunk: int, is_last: bool) -> None:
        """Of a chunk; `is_last` with its last micro-batch."""

    def after_pass(self) -> None:
        """Let go of what was gathered."""


class ShardedUnits(WholeUnits):
    """A unit is a layer, or of a layer that is cut in two a half; the root has what is left.

    So readers of depth are gathered with the embeddings or the head, before the first layer, and
    nothing is sent at a read.

    Args:
        model: an `AttnResForCausalLM` with the parameters of this rank alone, alike on every rank
            of the mesh; they become DTensors in place.
        mesh: of one dimension, the ranks of one stage.
        chunks: of this rank.
    """

    def __init__(self, model: Any, mesh: DeviceMesh, chunks: Sequence[Chunk]):
        base = model.base_model
        layers = cast(nn.ModuleList, base.get_submodule(family_of(base.config).layers))
        self._chunks_of: dict[FSDPModule, set[int]] = {}  # by unit, those that compute with it
        for layer in layers:
            used = {chunk.index for chunk in chunks if _meets(chunk, layer)}
            if used and any(True for _ in layer.parameters()):
                self._chunks_of[_unit(layer, mesh)] = used
        self._root = _unit(_Root(model), mesh)
        self._chunks_of[self._root] = {chunk.index for chunk in chunks}
        self._done: set[int] = set()

    def forward(self, run: Run, received: Sequence[Tensor]) -> Any:
        return cast(Any, self._root)(run, *received)

    def before_backward(self, chunk: int, is_last: bool) -> None:
        if is_last:
            self._done.add(chunk)
        for unit, used in self._chunks_of.items():
            scatters = is_last and chunk in used and used <= self._done
            unit.set_requires_gradient_sync(scatters, recurse=False)
            unit.set_reshard_after_backward(scatters, recurse=False)
        self._root.set_is_last_backward(self._chunks_of[self._root] <= self._done)

    def after_pass(self) -> None:
        self._done.clear()
        for unit in self._chunks_of:
            unit.reshard()  # a pass without a backward has not


class _Root(nn.Module):
    """Whatever of the model a chunk runs, its forward is that of one module."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, run: Run, *received: Tensor) -> Any:
        return run(*received)


def _unit(module: nn.Module, mesh: DeviceMesh) -> FSDPModule:
    return shard_unit(module, mesh=mesh, reshard_after_forward=False)


def _meets(chunk: Chunk, layer: Any) -> bool:
    return Part(chunk.start, chunk.stop).meets(layer.first_depth, len(layer.sublayers))
