"""One model over many processes that have different rows of a batch: FSDP2 and DDP.

FSDP2 gathers the parameters of a unit by one collective when its forward begins, and scatters the
sums of its gradients by one. A unit is a decoder layer; the embedding, the final norm and the head
are one where they are computed in bfloat16; the root unit has what is left, also the residual
method, whose parameters are read inside every layer: they are gathered once, in one collective,
before the first layer, and kept until the backward has ended.
"""

import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from attnres.distributed.rank_part import check_whole
from attnres.models import AttnResForCausalLM
from attnres.models.families import family_of


def shard(model: AttnResForCausalLM, mesh: DeviceMesh, bfloat16: bool = False) -> None:
    """Shard a model's parameters in place, over a mesh of one dimension.

    Args:
        model: whole and alike on every rank; its parameters become DTensors on the mesh.
        bfloat16: gather, compute and send layers and embeddings in bfloat16, and reduce gradients
            in float32; the parameters themselves, and all of the residual method, stay as they are.

    Raises:
        ValueError: a model that is cut into stages.
    """
    check_whole(model, "give it the mesh as shard_over")
    policy = MixedPrecisionPolicy()
    if bfloat16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    base: Any = model.base_model
    family = family_of(base.config)
    for layer in cast(nn.ModuleList, base.get_submodule(family.layers)):
        shard_unit(layer, mesh=mesh, mp_policy=policy)
    if bfloat16:
        ends = (
            model.get_input_embeddings(),
            base.get_submodule(family.final_norm),
            model.get_output_embeddings(),
        )
        shard_unit([end for end in ends if end is not None], mesh=mesh, mp_policy=policy)
    shard_unit(model, mesh=mesh)


def shard_unit(modules: nn.Module | list[nn.Module], **settings: Any) -> FSDPModule:
    """`fully_shard` without its warning of views: nothing of a state is changed in place."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    return cast(FSDPModule, fully_shard(modules, **settings))


def replicate(model: nn.Module, mesh: DeviceMesh) -> DistributedDataParallel:
    """The model with its gradients averaged over a mesh of one dimension.

    Every parameter gets a gradient in every backward, so none is searched for.
    """
    return DistributedDataParallel(model, process_group=mesh.get_group())


def own_rows(batch_BT: Tensor, mesh: DeviceMesh) -> Tensor:
    """The rows of this rank: as many on each where they divide, else at most one more."""
    return batch_BT.tensor_split(mesh.size())[mesh.get_local_rank()]


def average_(gradients: Sequence[Tensor], mesh: DeviceMesh) -> None:
    """Replace gradients, of one device, by their means over a mesh of one dimension.

    Those of one dtype are one collective.
    """
    for dtype in dict.fromkeys(each.dtype for each in gradients):
        own = [each for each in gradients if each.dtype == dtype]
        flat = torch.cat([each.flatten() for each in own])
        dist.all_reduce(flat, group=mesh.get_group())
        for each, total in zip(own, flat.split([each.numel() for each in own]), strict=True):
            each.copy_((total / mesh.size()).view_as(each))


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered where it is sharded; every rank of its mesh must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
