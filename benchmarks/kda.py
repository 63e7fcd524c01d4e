"""Delta attention on a CPU: ours in chunks against the plain PyTorch of transformers.

    python benchmarks/kda.py [--json FILE] [--quick] [--threads 1]

Forward, backward and what is allocated at once, each as a ratio in the same rounds. Before any
time, both must give the outputs and gradients of the recurrence in float64.
"""

import argparse
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, keep_pages, print_machine
from peak_memory import most_allocated
from report import Goal, print_goals, print_table, worst, write_json
from rounds import Samples, Timing, measure, ratio, summary
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear

from attnres.ops.kda import kda, kda_by_token, unit_norm

SHAPES = {  # B, T, H, K
    "a laptop's model": (8, 256, 4, 32),
    "half": (1, 512, 4, 64),
    "heads of the 48B": (2, 1024, 8, 128),
}
MOST_ERROR = 1e-5  # of the largest number; float32 against float64
Attention = Callable[..., tuple[Tensor, Any]]


def ours(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    query, key, *others = inputs
    return kda(unit_norm(query) * query.shape[-1] ** -0.5, unit_norm(key), *others)


def theirs(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Any:
    plain = inspect.unwrap(modeling_kimi_linear.chunk_kimi_delta_attention)
    return plain(
        query, key, value, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True
    )


def exact(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    query, key, *others = (x.double() for x in inputs)
    return kda_by_token(unit_norm(query) * query.shape[-1] ** -0.5, unit_norm(key), *others)


CONTESTANTS: dict[str, Attention] = {"ours": ours, "transformers": theirs}


def make_inputs(shape: tuple[int, ...]) -> list[Tensor]:
    """Decays as at the start of a training: rates from 1 to 16, steps from 0.001 to 0.1."""
    torch.manual_seed(0)
    B, T, H, K = shape
    rate_H1 = torch.empty(H, 1).uniform_(1, 16)
    step_HK = torch.empty(H, K).uniform_(-6.9, -2.3).exp()
    gate_BTHK = torch.randn(B, T, H, K) + step_HK.expm1().log()
    decay_BTHK = -rate_H1 * torch.nn.functional.softplus(gate_BTHK)
    return [*torch.randn(3, B, T, H, K), decay_BTHK, torch.rand(B, T, H)]


def gradients(attention: Attention, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    out_BTHP, _ = attention(*leaves)
    return [out_BTHP.detach(), *torch.autograd.grad(out_BTHP.square().sum(), leaves)]


def check(shape: tuple[int, ...]) -> None:
    B, T, H, K = shape
    inputs = make_inputs((min(B, 2), min(T, 200), min(H, 2), K))
    expected = gradients(exact, inputs)
    for name, attention in CONTESTANTS.items():
        for actual, value in zip(gradients(attention, inputs), expected, strict=True):
            error = ((actual - value).abs().max() / value.abs().max()).item()
            if not error <= MOST_ERROR:
                raise SystemExit(f"no time: {name} errs by {error:.1e} at {shape}")


def step(attention: Attention, inputs: list[Tensor]) -> None:
    gradients(attention, inputs)


@torch.no_grad()
def forward(attention: Attention, inputs: list[Tensor]) -> None:
    attention(*inputs)


def time_shape(shape: tuple[int, ...], timing: Timing) -> tuple[Samples, dict[str, int]]:
    inputs = make_inputs(shape)
    cases = {
        f"{name}, {kind.__name__}": partial(kind, attention, inputs)
        for kind in (forward, step)
        for name, attention in CONTESTANTS.items()
    }
    memory = {
        name: most_allocated(partial(step, attention, inputs))
        for name, attention in CONTESTANTS.items()
    }
    return measure(cases, timing), memory


def compare(samples: Samples, memory: dict[str, int]) -> dict[str, Any]:
    """How many times as fast ours is, and its share of what is allocated."""
    backward = {
        name: [a - b for a, b in zip(samples[f"{name}, step"], samples[f"{name}, forward"],
                                     strict=True)]
        for name in CONTESTANTS
    }  # fmt: skip
    return {
        "forward": ratio(samples["transformers, forward"], samples["ours, forward"]),
        "backward": ratio(backward["transformers"], backward["ours"]),
        "step": ratio(samples["transformers, step"], samples["ours, step"]),
        "memory": memory["ours"] / memory["transformers"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="the smallest shape, three rounds")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    keep_pages()
    torch.set_num_threads(chosen.threads)
    machine, timing = describe_machine(), Timing(3 if chosen.quick else 5, budget_s=120)
    print_machine(machine)
    shapes = dict(list(SHAPES.items())[: 1 if chosen.quick else None])
    found: dict[str, dict[str, Any]] = {}
    rows, times = [], {}
    for name, shape in shapes.items():
        check(shape)
        samples, memory = time_shape(shape, timing)
        each = found[name] = compare(samples, memory)
        times[name] = {case: summary(values) for case, values in samples.items()} | memory
        ours_ms = 1e3 * summary(samples["ours, step"])["median_s"]
        rows.append((name, str(shape), *(str(each[k]) for k in ("forward", "backward", "step")),
                     f"{each['memory']:.2f}", f"{ours_ms:.0f}",
                     f"{memory['ours'] / 1e6:.0f}"))  # fmt: skip
    head = ("", "B, T, H, K", "forward", "backward", "step", "memory", "ours, ms", "ours, MB")
    print_table(
        f"Times as fast as transformers, and share of memory ({timing.clock_name})", head, rows
    )
    goals = [
        Goal("forward", 2, worst((x["forward"].median for x in found.values()), True), True),
        Goal("backward", 2, worst((x["backward"].median for x in found.values()), True), True),
        Goal("memory", 1 / 3, worst(x["memory"] for x in found.values())),
    ]
    print_goals(goals)
    write_json(chosen.json, {"machine": machine, "times": times}, goals)


if __name__ == "__main__":
    main()
