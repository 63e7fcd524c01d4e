"""Is depth attention slower in this working tree than at another commit, on this machine?

    make bench-gate                 against main
    make bench-gate REF=HEAD~3

One process imports the working tree, one the files of the other commit. They take turns, a sample
each, and change who begins, so that what else the machine does meets both. A case fails where the
median of the rounds' ratios is beyond the bound and at least three quarters of the rounds agree:
two trees of the same files differ by less. A tree whose op errs is not timed.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from correctness import WrongError

ROOT = Path(__file__).parents[1]
BOUND = 1.10  # of working tree over commit; what two equal trees differ by is in CONTRIBUTING.md
SHAPES = {  # sources, tokens, width
    "Block, 9 sources": (9, 1024, 1024),
    "Full, 33 sources": (33, 256, 512),
    "decoding, 9 sources": (9, 1, 2048),
}
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Gate:
    ref: str = "main"
    """commit to compare with"""
    rounds: int = 21
    """samples of each case in each tree"""
    bound: float = BOUND
    """largest median ratio that passes"""
    threads: int = 1


def main(chosen: Gate) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnres-gate-")))
        _check_out(chosen.ref, folder)
        ours = stack.enter_context(_worker(ROOT, chosen.threads))
        theirs = stack.enter_context(_worker(folder, chosen.threads))
        print(
            f"working tree over {chosen.ref}, {chosen.threads} threads: median of rounds [quarters]"
        )
        failed = [case for case in _cases() if not _passes(case, ours, theirs, chosen)]
    if failed:
        sys.exit(
            f"slower than {chosen.ref} by more than {chosen.bound:g} times: {', '.join(failed)}"
        )


def is_slower(ratios: Sequence[float], bound: float) -> bool:
    """Beyond the bound in the median, and slower at all in three quarters of the rounds."""
    lower, _, _ = quantiles(ratios, n=4)
    return median(ratios) > bound and lower > 1


def _passes(case: str, ours: Any, theirs: Any, chosen: Gate) -> bool:
    for worker in (ours, theirs):
        _ask(worker, case)  # untimed: it compiles, and warms caches
    ratios = []
    for number in range(chosen.rounds):
        pair = (ours, theirs) if number % 2 else (theirs, ours)
        found = {id(worker): _ask(worker, case) for worker in pair}
        ratios.append(found[id(ours)] / found[id(theirs)])
    low, _, high = quantiles(ratios, n=4)
    words = "SLOWER" if is_slower(ratios, chosen.bound) else "passes"
    print(f"{case:32} {median(ratios):6.3f} [{low:.3f}, {high:.3f}]  {words}", flush=True)
    return words == "passes"


def _cases() -> list[str]:
    return [f"{shape}, {dtype}" for shape in SHAPES for dtype in DTYPES]


def _check_out(ref: str, folder: Path) -> None:
    packed = folder / "tree.tar"
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "-o", str(packed), ref, "attnres"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ValueError(f"no commit {ref!r}: {' '.join(done.stderr.split())}")
    subprocess.run(["tar", "-xf", str(packed), "-C", str(folder)], check=True)


@contextmanager
def _worker(tree: Path, threads: int) -> Iterator[Any]:
    """A process that imports `attnres` of a tree, and times a case a line."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker", str(tree)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _ask(worker: Any, case: str) -> float:
    """Seconds a call."""
    worker.stdin.write(case + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise ValueError(f"the process of {worker.args[-1]} ended, asked for {case}")
    answer = json.loads(line)
    if isinstance(answer, str):
        raise WrongError(f"{worker.args[-1]}: {answer}")
    return answer


def work(tree: str) -> None:
    """Time the cases that are asked for, on standard input and output."""
    from rounds import Timing, measure

    import attnres

    assert Path(attnres.__file__).is_relative_to(tree), attnres.__file__
    calls: dict[str, Any] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in calls:
            if findings := _findings(name.rpartition(", ")[2]):
                print(json.dumps("; ".join(findings)), flush=True)
                continue
            calls[name] = _call(name)
        print(json.dumps(measure({name: calls[name]}, Timing(1, 0.0, 1))[name][0]), flush=True)


def _findings(dtype: str) -> list[str]:
    """What the op errs by, held to its definition in float64."""
    import torch
    from contestants import Inputs, random_inputs, sources_of
    from correctness import ODD, compare, outputs_and_gradients

    from attnres.ops import depth_attention

    def by(impl: str | None) -> Any:
        def prepare(x: Inputs) -> Any:
            return lambda: depth_attention(x["query"], sources_of(x), x["key_weight"], impl=impl)

        return prepare

    inputs = random_inputs(*ODD, getattr(torch, dtype))
    exact = {name: x.double() for name, x in inputs.items()}
    return compare(
        outputs_and_gradients(by(None), inputs),
        outputs_and_gradients(by("reference"), inputs),
        outputs_and_gradients(by("reference"), exact),
    )


def _call(name: str) -> Any:
    """A forward and a backward pass of one read; without gradients where it decodes."""
    import torch

    from attnres.ops import depth_attention

    shape, _, dtype = name.rpartition(", ")
    n_sources, n_tokens, dim = SHAPES[shape]
    torch.manual_seed(0)
    learns = n_tokens > 1
    made = [torch.randn(n_tokens, dim, dtype=getattr(torch, dtype)) for _ in range(n_sources)]
    sources = [each.requires_grad_(learns) for each in made]
    query, key_weight = (torch.randn(2, dim) / dim).requires_grad_(learns)
    upstream = torch.randn(n_tokens, dim, dtype=getattr(torch, dtype))

    def call() -> None:
        mix = depth_attention(query, sources, key_weight)
        if learns:
            torch.autograd.grad(mix, [query, *sources, key_weight], upstream)

    return call


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        from command import run_command

        run_command(main, Gate, "gate.py", "the op", __doc__ or "")
