"""What kind of parameter each is, which decides its optimizer, learning rate and decay.

matrices    2-D weights of hidden layers   Muon when chosen, decayed
stacks      experts: a matrix each         Muon when chosen, decayed
kernels     of convolutions                AdamW, decayed
embeddings  nn.Embedding and the head      AdamW, decayed
vectors     norm gains, biases, scalars    AdamW, not decayed; of one axis longer than 1
depth       all that a Residual holds      AdamW, each at its share of the learning rate, and
                                           decayed or not, as `Residual.tuning` says
"""

from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from attnres.residual import Residual

GroupName = Literal["matrices", "stacks", "kernels", "embeddings", "vectors", "depth"]


class Kind(NamedTuple):
    """What the parameters of a group have in common."""

    name: GroupName
    is_decayed: bool
    lr_scale: float = 1.0
    n_parts: int = 1


def kinds(model: nn.Module) -> dict[int, Kind]:
    """The kind of every parameter, by its id.

    The head is the nn.Linear that the model's `get_output_embeddings()` returns, or any module
    tied to an embedding.

    Raises:
        ValueError: a residual method whose `tuning` names a parameter twice, none of its own, or
            leaves a trainable one out.
    """
    return _kinds_by_shape(model) | _depth_kinds(model) | _embedding_kinds(model)


def _embedding_kinds(model: nn.Module) -> dict[int, Kind]:
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    get_head = getattr(model, "get_output_embeddings", None)
    head = get_head() if get_head else None
    if isinstance(head, nn.Linear):
        weights.append(head.weight)
    return {id(weight): Kind("embeddings", is_decayed=True) for weight in weights}


def _depth_kinds(model: nn.Module) -> dict[int, Kind]:
    """The kind of every parameter of every residual method, by id."""
    kinds: dict[int, Kind] = {}
    for residual in [module for module in model.modules() if isinstance(module, Residual)]:
        by_name = _kinds_by_name(residual)
        for name, param in residual.named_parameters():
            if param.requires_grad and name not in by_name:
                method = type(residual).__name__
                raise ValueError(f"{method} does not say how its parameter {name} is trained")
            if name in by_name:
                kinds.setdefault(id(param), by_name[name])  # of the outer, where one holds another
    return kinds


def _kinds_by_name(residual: Residual[Any]) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    own = {name for name, _ in residual.named_parameters()}
    for names, lr_scale, is_decayed in residual.tuning():
        for name in names:
            if name in kinds or name not in own:
                wrong = "twice" if name in kinds else "but has it not"
                raise ValueError(f"{type(residual).__name__}.tuning names {name} {wrong}")
            kinds[name] = Kind("depth", is_decayed, lr_scale)
    return kinds


def _kinds_by_shape(model: nn.Module) -> dict[int, Kind]:
    """The kind of every parameter by its shape and its module alone, by id."""
    halves = {id(param) for module in model.modules() for param in _gate_up_weights(module)}
    return {
        id(param): Kind(name := _name(param, module), name != "vectors", n_parts=1 + is_halves)
        for module in model.modules()
        for param in module.parameters(recurse=False)
        for is_halves in [id(param) in halves]
    }


def _name(param: nn.Parameter, module: nn.Module) -> GroupName:
    if param.ndim < 2 or (param.ndim > 2 and param.numel() == max(param.shape)):
        return "vectors"
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return "kernels"
    return "matrices" if param.ndim == 2 else "stacks"


def _gate_up_weights(module: nn.Module) -> list[Tensor]:
    """Of an MLP or of experts, where gate and up projection are the two halves of its rows."""
    gate_up, down = (_weight(getattr(module, f"{name}_proj", None)) for name in ("gate_up", "down"))
    if gate_up is None or down is None or min(gate_up.ndim, down.ndim) < 2:
        return []
    (rows, width), (out, inner) = gate_up.shape[-2:], down.shape[-2:]
    return [gate_up] if (rows, width) == (2 * inner, out) else []


def _weight(projection: Any) -> Tensor | None:
    weight = projection if isinstance(projection, Tensor) else getattr(projection, "weight", None)
    return weight if isinstance(weight, Tensor) else None
