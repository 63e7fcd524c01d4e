"""A pipeline over a slow link: what caching saves, beside what the plan and the model predict.

    python benchmarks/pipeline.py --json build/bench/pipeline.json     # as root, a few minutes
    python benchmarks/pipeline.py --no-link                            # over loopback, any user

Ranks are processes over gloo, each behind a link of its own (`slow_link.py`). First loss and
gradients of every policy are held to one process; while they differ no time is printed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
import torch.distributed as dist
from machine import describe_machine, print_machine
from report import print_table, write_json
from rounds import Ratio, ratio, summary
from slow_link import NoLinkError, enter_namespace, interface, slow_links
from torch import Tensor, nn
from transformers import LlamaConfig

from attnres.distributed import Machine, Pipeline, plan_for, schedule, simulate
from attnres.distributed.plan import Keep
from attnres.distributed.tables import KEEP_IN_WORDS
from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM

KEEPS: tuple[Keep, ...] = get_args(Keep)
CHECK_LAYERS, CHECK_DIM, CHECK_LEN = 8, 16, 5
LINK_BYTES, N_PINGS = 2**23, 20


def main() -> None:
    settings = _parse()
    if settings["rank"] is not None:
        _on_rank(settings)
        return
    try:
        if settings["link_mbit"]:
            enter_namespace()
        with tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
            found = _run_ranks(settings, Path(folder))
    except NoLinkError as error:
        sys.exit(f"{error}; --no-link measures over loopback")
    result = {"machine": describe_machine(), "settings": settings, **found}
    print_machine(result["machine"])
    _print(result)
    write_json(settings["json"], result, [])


def _parse() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="A pipeline over a slow link")
    for name, value in {
        "stages": 2, "virtual": 4, "microbatches": 8, "layers": 16, "n-blocks": 8, "dim": 256,
        "seq-len": 256, "batch": 1, "rounds": 5,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--schedule", default="interleaved")
    parser.add_argument("--link-mbit", type=float, default=200.0)
    parser.add_argument("--no-link", dest="link_mbit", action="store_const", const=0.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return vars(parser.parse_args())


def _run_ranks(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What rank 0 found; the benchmark ends here where a rank fails."""
    n_ranks, mbit = settings["stages"], settings["link_mbit"]
    if not mbit:
        return _start(folder, [[] for _ in range(n_ranks)], ["lo"] * n_ranks)
    with slow_links(n_ranks, mbit * 1e6) as prefixes:
        return _start(folder, prefixes, [interface(rank) for rank in range(n_ranks)])


def _start(folder: Path, prefixes: list[list[str]], interfaces: list[str]) -> dict[str, Any]:
    processes = []
    for rank, (prefix, name) in enumerate(zip(prefixes, interfaces, strict=True)):
        own = ["--rank", str(rank), "--folder", str(folder)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": name, "OMP_NUM_THREADS": "1"}
        command = [*prefix, sys.executable, *sys.argv, *own]
        processes.append(subprocess.Popen(command, env=environment))
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"no times: ranks ended with {codes}")
    return json.loads((folder / "found.json").read_text())


def _on_rank(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    rank, folder = settings["rank"], settings["folder"]
    dist.init_process_group(
        "gloo", f"file://{folder}/rendezvous", rank=rank, world_size=settings["stages"]
    )
    for keep in KEEPS:
        _check(settings, keep)
    found = _measure(settings)
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _config(n_layers: int, dim: int, seq_len: int, n_blocks: int) -> AttnResCausalLMConfig:
    text = LlamaConfig(
        vocab_size=256,
        hidden_size=dim,
        intermediate_size=4 * dim,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=seq_len,
    )
    return AttnResCausalLMConfig(text_config=text, residual=f"attn_res:n_blocks={n_blocks}")


def _pipeline(settings: dict[str, Any], made: Any, keep: Keep, **sizes: Any) -> Pipeline:
    torch.manual_seed(0)
    plan = plan_for(made, settings["stages"], settings["virtual"], keep=keep)
    n_microbatches = settings["microbatches"]
    return Pipeline(
        made, plan, schedule=settings["schedule"], n_microbatches=n_microbatches, **sizes
    )


def _check(settings: dict[str, Any], keep: Keep) -> None:
    """An AssertionError where loss or a gradient is not that of one process, in float64."""
    n_layers = max(CHECK_LAYERS, settings["stages"] * settings["virtual"] // 2)
    made = _config(n_layers, CHECK_DIM, CHECK_LEN, settings["n_blocks"])
    sizes = {"seq_len": CHECK_LEN, "dtype": torch.float64}
    pipeline = _pipeline(settings, made, keep, **sizes)
    torch.manual_seed(0)
    model: Any = AttnResForCausalLM(made).double()
    tokens_BT = _tokens(settings["microbatches"], CHECK_LEN)
    loss = pipeline.backward(tokens_BT)
    expected = model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss
    expected.backward()
    assert abs(loss - expected.item()) <= 1e-6 * abs(expected.item()), f"{keep}: another loss"
    gradients = dict(model.named_parameters())
    for name, parameter in pipeline.module.named_parameters():
        _check_gradient(f"{keep}, {name}", parameter, gradients[name])


def _check_gradient(name: str, parameter: nn.Parameter, expected: nn.Parameter) -> None:
    assert parameter.grad is not None
    assert expected.grad is not None
    error = (parameter.grad - expected.grad).abs().max()
    largest = expected.grad.abs().max()
    assert error <= 1e-6 * largest, f"{name}: gradient errs by {error / largest:.1e}"


def _tokens(n_sequences: int, seq_len: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n_sequences, seq_len), generator=generator)


def _measure(settings: dict[str, Any]) -> dict[str, Any]:
    made = _config(*(settings[name] for name in ("layers", "dim", "seq_len", "n_blocks")))
    sizes = {"batch_size": settings["batch"], "seq_len": settings["seq_len"]}
    tokens_BT = _tokens(settings["batch"] * settings["microbatches"], settings["seq_len"])
    machine = _measure_machine(settings, made)
    pipelines = {keep: _pipeline(settings, made, keep, **sizes) for keep in KEEPS}
    times: dict[Keep, list[float]] = {keep: [] for keep in KEEPS}
    for i in range(settings["rounds"] + 1):
        for keep in KEEPS[:: -1 if i % 2 else 1]:
            seconds = _seconds(lambda keep=keep: pipelines[keep].backward(tokens_BT))
            if i > 0:  # the first meets its partners
                times[keep].append(seconds)
    rows = [_row(settings, keep, pipelines[keep], machine, times) for keep in KEEPS]
    return {"link": {"bytes_per_s": machine.bytes_per_s, "latency_s": machine.latency_s},
            "compute": {"sublayer_s": machine.sublayer_s, "backward_ratio": machine.backward_ratio},
            "rows": rows}  # fmt: skip


def _row(
    settings: dict[str, Any],
    keep: Keep,
    pipeline: Pipeline,
    machine: Machine,
    times: dict[Keep, list[float]],
) -> dict[str, Any]:
    plan, vector_bytes = (
        pipeline.plan,
        4 * settings["batch"] * settings["seq_len"] * settings["dim"],
    )
    orders = schedule(settings["schedule"], plan.n_stages, plan.n_virtual, settings["microbatches"])
    sent = torch.tensor(sum(pipeline.sent_bytes) // (settings["rounds"] + 1))
    dist.all_reduce(sent)
    return {
        "keep": keep,
        "vectors_a_token": plan.n_sent,
        "peak_vectors": plan.peak_sent,
        "planned_bytes": 2 * settings["microbatches"] * plan.n_sent * vector_bytes,
        "sent_bytes": sent.item(),
        "step_s": summary(times[keep]),
        "predicted_s": simulate(plan, orders, vector_bytes, machine).total_s,
        "over_nothing": ratio(times[keep], times["nothing"]),
    }


def _measure_machine(settings: dict[str, Any], made: Any) -> Machine:
    """The link's speed, and a sublayer's while all ranks compute."""
    large, small = torch.empty(LINK_BYTES, dtype=torch.uint8), torch.empty(1, dtype=torch.uint8)
    for tensor in (small, large):
        _one_way_s(tensor)  # the first meets its partner
    latency_s = median(_one_way_s(small) for _ in range(N_PINGS))
    bytes_per_s = LINK_BYTES / median(_one_way_s(large) for _ in range(3))
    forward_s, backward_s = _whole_model_s(settings, made)
    return Machine(
        sublayer_s=forward_s / made.n_sublayers,
        backward_ratio=backward_s / forward_s,
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
    )


def _whole_model_s(settings: dict[str, Any], made: Any) -> tuple[float, float]:
    """Forward and backward of a micro-batch through all sublayers; the mean of all ranks."""
    torch.manual_seed(0)
    model: Any = AttnResForCausalLM(made)
    tokens_BT = _tokens(settings["batch"], settings["seq_len"])
    samples = []
    for _ in range(2 * settings["rounds"] + 1):
        start = time.perf_counter()
        loss = model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss
        middle = time.perf_counter()
        loss.backward()
        samples.append((middle - start, time.perf_counter() - middle))
    found = torch.tensor([median(times) for times in zip(*samples[1:], strict=True)])
    dist.all_reduce(found)
    forward_s, backward_s = (found / dist.get_world_size()).tolist()
    return forward_s, backward_s


def _one_way_s(tensor: Tensor) -> float:
    """Half of what ranks 0 and 1 need to send it there and back."""
    rank = dist.get_rank()

    def there_and_back() -> None:
        for sender in (0, 1):
            if rank == sender:
                dist.send(tensor, 1 - sender)
            elif rank == 1 - sender:
                dist.recv(tensor, sender)

    return _seconds(there_and_back) / 2


def _seconds(run: Any) -> float:
    """From where all ranks begin to where the last ends."""
    dist.barrier()
    start = time.perf_counter()
    run()
    seconds = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def _print(result: dict[str, Any]) -> None:
    link, compute, settings = result["link"], result["compute"], result["settings"]
    print(
        f"\nlink {link['bytes_per_s'] / 1e6:.1f} MB/s and {link['latency_s'] * 1e3:.2f} ms a "
        f"message, as measured; a sublayer {compute['sublayer_s'] * 1e3:.2f} ms, its backward "
        f"{compute['backward_ratio']:.2f} times that"
    )
    first, rows = result["rows"][0], []
    for row in result["rows"]:
        rows.append(
            (
                KEEP_IN_WORDS[row["keep"]],
                str(row["vectors_a_token"]),
                str(row["peak_vectors"]),
                f"{row['sent_bytes'] / 1e6:.1f}",
                f"{row['planned_bytes'] / 1e6:.1f}",
                f"{row['step_s']['median_s']:.3f}",
                f"{row['predicted_s']:.3f}",
                str(Ratio(*row["over_nothing"])),
                f"{row['predicted_s'] / first['predicted_s']:.3f}",
            )
        )
    head = ("", "vectors", "largest hop", "MB sent", "MB planned", "step s", "predicted s",
            "over nothing kept", "predicted")  # fmt: skip
    title = (
        f"{settings['stages']} ranks of {settings['virtual']} chunks, {settings['schedule']}, "
        f"{settings['microbatches']} micro-batches: a step, forward and backward"
    )
    print_table(title, head, rows)


if __name__ == "__main__":
    main()
