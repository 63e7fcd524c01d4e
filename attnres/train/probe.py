"""What every depth does: output RMS, gradient norm, depth weights and mixing, on one batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnres.residual import Residual
from attnres.residual.base import Output, Parts
from attnres.residual.mixing import Summary, mixing_matrix, summary

if TYPE_CHECKING:
    from attnres.models import AttnResForCausalLM

MIXING_SUBLAYERS = 64  # a longer model's matrix is not taken: it is as large as the run's metrics
MIXING_DIGITS = 6  # after the point
MIXING_TOKENS = 512  # of the batch, evenly; their outputs are held in float64


class Record:
    """Lists by depth, filled while the model runs."""

    def __init__(self):
        self.embed: Tensor | None = None
        self.outputs: list[Output] = []  # of each sublayer
        self.stream_rms: list[float] | None = []  # None without a running sum
        self.weights: list[Tensor] | None = []  # of each reader, SBT; None without depth weights


def measure(model: "AttnResForCausalLM", tokens_BT: Tensor) -> dict[str, Any]:
    """Run the loss on one batch and describe each depth; no gradient and no mode is left behind.

    Returns:
        Lists by depth: `output_rms` of each sublayer's output, `stream_rms` of the running sum
        after it, `grad_norm` of the loss's gradient at its output, and, by reader (one more, the
        output read), `weights` (mean over tokens of each source), their `weights_entropy` (nats)
        and `weights_max`; those three are None for a method without depth weights, `stream_rms`
        for one without a running sum. `untrained` says that every query is zero. `mixing` is the
        depth mixing matrix [L+1, L+1], mean over at most 512 tokens, with its `mixing_rank` and
        the other figures of `Summary`; None where there is none, where L is beyond 64 and where it
        is not finite.
    """
    training = model.training
    model.eval()
    try:
        with torch.enable_grad(), _recording(model.residual) as record:
            loss = model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss
        described = _describe(model.residual, record)  # FSDP2 takes weights away in a backward
        # the gradient at a sum is that at each of its parts
        written = [out[0] if isinstance(out, Parts) else out for out in record.outputs]
        frozen = [d for d, out_BTD in enumerate(written) if not out_BTD.requires_grad]
        if frozen:
            raise ValueError(
                f"no gradient at depth {frozen[0]}: all parameters up to it are frozen"
            )
        gradients = torch.autograd.grad(loss, written)
    finally:
        model.train(training)
    return {
        "output_rms": [
            _rms(out[0] + out[1] if isinstance(out, Parts) else out) for out in record.outputs
        ],
        "stream_rms": record.stream_rms,
        "grad_norm": [gradient.float().norm().item() for gradient in gradients],
        **described,
    }


@torch.no_grad()
def _describe(residual: Residual, record: Record) -> dict[str, Any]:
    return {
        **_describe_weights(record.weights),
        **_describe_mixing(residual, record),
        "untrained": residual.is_untrained(),
    }


@contextmanager
def _recording(residual: Residual) -> Iterator[Record]:
    """Shadow the methods of one residual object by recording ones."""
    record = Record()
    start, read, write, finish = residual.start, residual.read, residual.write, residual.finish

    def recording_start(embed_BTD):
        record.embed = embed_BTD.detach()
        return start(embed_BTD)

    def recording_read(state, depth):
        _record_weights(record, residual, state, depth)
        return read(state, depth)

    def recording_write(state, depth, out_BTD):
        state = write(state, depth, out_BTD)
        record.outputs.append(out_BTD)
        _record_stream(record, residual, state)
        return state

    def recording_finish(state):
        _record_weights(record, residual, state, residual.n_sublayers)
        return finish(state)

    shadows = {
        "start": recording_start,
        "read": recording_read,
        "write": recording_write,
        "finish": recording_finish,
    }
    for name, shadow in shadows.items():
        setattr(residual, name, shadow)
    try:
        yield record
    finally:
        for name in shadows:
            delattr(residual, name)


def _record_stream(record: Record, residual: Residual, state: Any) -> None:
    if record.stream_rms is None:
        return
    try:
        record.stream_rms.append(_rms(residual.stream(state)))
    except NotImplementedError:
        record.stream_rms = None


@torch.no_grad()
def _record_weights(record: Record, residual: Residual, state: Any, depth: int) -> None:
    if record.weights is None:
        return
    try:
        record.weights.append(residual.weights(state, depth))
    except NotImplementedError:
        record.weights = None


def _describe_weights(weights: list[Tensor] | None) -> dict[str, Any]:
    if weights is None:
        return {"weights": None, "weights_entropy": None, "weights_max": None}
    return {
        "weights": [alpha_SBT.flatten(1).mean(dim=1).tolist() for alpha_SBT in weights],
        "weights_entropy": [_entropy(alpha_SBT) for alpha_SBT in weights],
        "weights_max": [alpha_SBT.amax(dim=0).mean().item() for alpha_SBT in weights],
    }


def _describe_mixing(residual: Residual, record: Record) -> dict[str, Any]:
    found = _mixing(residual, record)
    if found is None:
        return {"mixing": None, **{f"mixing_{name}": None for name in Summary._fields}}
    mean_RL = found.flatten(2).mean(dim=-1)
    figures = {f"mixing_{name}": value for name, value in summary(found)._asdict().items()}
    return {
        "mixing": [[round(x, MIXING_DIGITS) for x in row] for row in mean_RL.tolist()],
        **figures,
    }


@torch.no_grad()
def _mixing(residual: Residual, record: Record) -> Tensor | None:
    """M of some tokens, [L+1, L+1, tokens], where there is one and it is finite."""
    if residual.n_sublayers > MIXING_SUBLAYERS or record.embed is None:
        return None
    outputs = [_some_tokens(out) for out in (record.embed, *record.outputs)]
    try:
        found = mixing_matrix(residual, outputs)
    except NotImplementedError:
        return None
    return found if found.isfinite().all() else None


def _some_tokens(out: Output) -> Output:
    if isinstance(out, Parts):
        return Parts(*(_tokens_of(part_BTD) for part_BTD in out))
    return _tokens_of(out)


def _tokens_of(out_BTD: Tensor) -> Tensor:
    out_TD = out_BTD.detach().flatten(0, -2)
    stride = -(-len(out_TD) // MIXING_TOKENS)
    return out_TD[::stride]


def _entropy(alpha_SBT: Tensor) -> float:
    return torch.special.entr(alpha_SBT).sum(dim=0).mean().item()


def _rms(x: Tensor) -> float:
    return x.detach().float().square().mean().sqrt().item()
