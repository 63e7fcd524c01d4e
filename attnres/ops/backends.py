"""Which implementations of depth attention there are, which one runs, and why."""

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attnres.ops import closed_form, reference
from attnres.ops.fused import Fused
from attnres.ops.precision import constant


class Implementation(Protocol):
    """The public ops without their checks, as in `reference`."""

    def depth_attention(
        self, query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
    ) -> Tensor: ...

    def depth_weights(
        self, query_D: Tensor, sources: Sequence[Tensor], key_weight_D: Tensor, eps: float
    ) -> Tensor: ...

    def centered_attention(
        self,
        query_D: Tensor,
        sources: Sequence[Tensor],
        stream_D: Tensor,
        key_weight_D: Tensor,
        eps: float,
    ) -> Tensor: ...

    def depth_attention_queries(
        self, queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]: ...

    def split_queries(
        self, queries_QD: Tensor, sources: Sequence[Tensor], key_weights_QD: Tensor, eps: float
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]: ...

    def merge(
        self,
        mix_D: Tensor,
        lse: Tensor,
        partials: Sequence[Tensor],
        query_D: Tensor,
        key_weight_D: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]: ...


class Backend(NamedTuple):
    """An implementation, whether it runs on this machine, and what it is or what it lacks."""

    name: str
    runs: bool
    why: str
    default_on: tuple[str, ...] = ()

    def __str__(self) -> str:
        state = "runs" if self.runs else "does not run"
        default = f", the default on {' and '.join(self.default_on)}" if self.default_on else ""
        return f"{self.name}: {state}{default}. {self.why}"


class Loader(NamedTuple):
    """How an implementation is had; `load` raises where it does not run, and names the cause."""

    load: Callable[[], Implementation]
    describe: Callable[[Any], str]
    devices: tuple[str, ...] | None = None  # None is any


def _load_cpu() -> Fused:
    from attnres.ops import cpu  # compiles on first use

    return Fused(cpu.kernel())


def _load_triton() -> Fused:
    from attnres.ops import triton  # optional dependency

    return Fused(triton.kernel())


_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_TRITON_DEVICES = ("cpu" if _INTERPRETED else "cuda", "meta")
LOADERS = {
    "reference": Loader(lambda: reference, lambda _: "The definition in plain PyTorch: slow."),
    "closed_form": Loader(
        lambda: Fused(closed_form), lambda _: "Plain PyTorch on any device, for the compiler too."
    ),
    "cpu": Loader(_load_cpu, lambda fused: fused.kernel.description, ("cpu", "meta")),
    "triton": Loader(_load_triton, lambda fused: fused.kernel.description, _TRITON_DEVICES),
}
FASTEST = {"cpu": "cpu", "cuda": "triton"}  # by device, where it runs
FALLBACK = "closed_form"
CHOICE = "ATTNRES_IMPL"  # of the environment: the implementation where none is named

loaded: dict[str, Implementation] = {}
_causes: dict[str, str] = {}
_warned: set[str] = set()
_loading = threading.Lock()  # a kernel compiles, and defines its op, once


def backends() -> list[Backend]:
    """Every implementation, the default of this machine's devices, and why.

    Compiles the CPU kernel if it was not. One line each: `print(*backends(), sep="\\n")`.
    """
    found = []
    for name, loader in LOADERS.items():
        runs = runs_here(name)
        why = loader.describe(loaded[name]) if runs else _causes[name]
        devices = tuple(device for device in FASTEST if _default(device) == name)
        found.append(Backend(name, runs, why, devices))
    return found


def implementation(name: str, device: torch.device) -> Implementation:
    """The implementation of that name, never another.

    Raises:
        ValueError: there is none of that name, or it does not take tensors on `device`.
        RuntimeError: it does not run on this machine; the message says why.
    """
    if not isinstance(name, str) or name not in LOADERS:
        known = ", ".join(sorted(LOADERS))
        raise ValueError(f"no implementation {name!r} of depth attention; there are: {known}")
    devices = LOADERS[name].devices
    if devices is not None and device.type not in devices:
        raise ValueError(f"implementation {name!r} takes tensors on {devices[0]}, not on {device}")
    if not runs_here(name):
        raise RuntimeError(f"implementation {name!r} does not run here: {_causes[name]}")
    return loaded[name]


@constant
def fastest_impl(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """Name of the implementation that `impl=None` takes for sources of `dtype` on `device`.

    $ATTNRES_IMPL, if it is set; else the device's kernel; else, with one warning, plain PyTorch.
    Triton has no float64 here: plain PyTorch computes it on a GPU.
    """
    if device.type == "cuda" and dtype == torch.float64 and not os.environ.get(CHOICE):
        return FALLBACK
    default, wanted = _default(device.type), FASTEST.get(device.type, FALLBACK)
    if default == FALLBACK != wanted and wanted in _causes and wanted not in _warned:
        _warned.add(wanted)
        warnings.warn(
            f"depth attention on {device.type} runs in plain PyTorch, which is several times "
            f"slower: {_causes[wanted]}",
            stacklevel=4,
        )
    return default


def _default(device_type: str) -> str:
    if chosen := os.environ.get(CHOICE):
        return chosen
    wanted = FASTEST.get(device_type, FALLBACK)
    return wanted if runs_here(wanted) else FALLBACK


@constant
def runs_here(name: str) -> bool:
    """Load an implementation once; whether it runs."""
    if name not in loaded and name not in _causes:
        with _loading:
            _load(name)
    return name in loaded


def _load(name: str) -> None:
    if name in loaded or name in _causes:  # by the thread that had the lock
        return
    try:
        loaded[name] = LOADERS[name].load()
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        _causes[name] = str(error) or type(error).__name__
