"""How long the residual path takes, forward and backward, by method: all but the sublayers.

    python benchmarks/residual_forms.py [--tokens 256] [--dim 576] [--sublayers 60]

Milliseconds, the best of five, one thread. Before any time the methods are compared: those of one
model must agree.
"""

import argparse
import time

import torch
from torch import Tensor

from attnres import AttnRes, BlockLayout, Residual, Standard
from attnres.residual import Centered, Summed, TwoPhase

METHODS = {"attn_res": AttnRes, "two_phase": TwoPhase, "sum": Summed, "centered": Centered}
N_ROUNDS = 5


def through(residual: Residual, embed_TD: Tensor, outs: list[Tensor]) -> list[Tensor]:
    """Every read, the output read last."""
    state, reads = residual.start(embed_TD), []
    for depth, out_TD in enumerate(outs):
        h_TD, state = residual.read(state, depth)
        reads.append(h_TD)
        state = residual.write(state, depth, out_TD)
    return [*reads, residual.finish(state)]


def best_ms(residual: Residual, embed_TD: Tensor, outs: list[Tensor]) -> float:
    best = float("inf")
    for _ in range(N_ROUNDS):
        start = time.perf_counter()
        reads = through(residual, embed_TD, outs)
        torch.autograd.backward(reads, [torch.ones_like(h_TD) for h_TD in reads])
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def build(dim: int, layout: BlockLayout, dtype: torch.dtype) -> dict[str, Residual]:
    """The methods with the same random queries."""
    torch.manual_seed(0)
    queries = [torch.randn(dim) / dim**0.5 for _ in range(layout.n_sublayers)]
    built: dict[str, Residual] = {name: kind(dim, layout) for name, kind in METHODS.items()}
    for residual in built.values():
        parameters = [p for name, p in residual.named_parameters() if name.endswith("query")]
        for parameter, query_D in zip(parameters, queries, strict=True):
            parameter.data.copy_(query_D)
        residual.to(dtype)
    return {"standard": Standard(layout.n_sublayers), **built}


def check(
    methods: dict[str, Residual], layout: BlockLayout, embed_TD: Tensor, outs: list[Tensor]
) -> None:
    found = {name: through(methods[name], embed_TD, outs) for name in METHODS}
    for depth, mean_TD in enumerate(found["attn_res"]):
        for name, scale in (("two_phase", 1), ("sum", 0), ("centered", 0)):
            scaled_TD = mean_TD.float() * (scale or layout.n_sources(depth))
            error = (found[name][depth].float() - scaled_TD).norm() / scaled_TD.norm()
            assert error < 4 * torch.finfo(embed_TD.dtype).eps, f"{name} at {depth}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("tokens", 256), ("dim", 576), ("sublayers", 60)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {chosen}")
    layouts = {"8 blocks": BlockLayout.of(chosen.sublayers, n_blocks=8)}
    layouts["Full"] = BlockLayout.full(chosen.sublayers)
    for label, layout in layouts.items():
        for dtype in (torch.float32, torch.bfloat16):
            methods = build(chosen.dim, layout, dtype)
            shape = (chosen.sublayers + 1, chosen.tokens, chosen.dim)
            made = [x.requires_grad_() for x in torch.randn(shape).to(dtype)]
            check(methods, layout, made[0], made[1:])
            times = {name: best_ms(method, made[0], made[1:]) for name, method in methods.items()}
            figures = "  ".join(f"{name} {ms:.0f}" for name, ms in times.items())
            print(f"{label:9} {str(dtype)[6:]:9} {figures}", flush=True)


if __name__ == "__main__":
    main()
