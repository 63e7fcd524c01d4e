"""Sequence sharding: loss and every gradient are those of one process, over 2 and 3 of them."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from depth_methods import ONE_OF_A_KIND, one_input, random_residual
from processes import run_processes
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from attnres import AttnRes, BlockLayout
from attnres.distributed.sequence import SequenceSharded, gradient_norm, own_positions

pytestmark = pytest.mark.dist
BLOCK, TWO_PHASES = "attn_res:sublayers_per_block=3", "two_phase:sublayers_per_block=3"
WAYS = "grn:ways=qkv"
# by processes: a method, and whether its logits are gathered
MODELS = {
    2: [("standard", True), ("attn_res", False), (BLOCK, True), (BLOCK, False), (WAYS, False)],
    3: [(BLOCK, False), (TWO_PHASES, True)],
}
# the second has fewer positions than ranks
SHAPES = {2: (2, 5, 6), 3: (2, 6)}
IGNORED = -100


def assert_equal(actual: Tensor, expected: Tensor, name: str, tolerance: float = 1e-12) -> None:
    assert actual.shape == expected.shape, name
    if expected.numel():
        error, size = (actual - expected).abs().max(), expected.abs().max()
        assert error <= tolerance * size, f"{name}: error {error:.1e} of {size:.1e}"


def assert_all_equal(actual: dict[str, Tensor], expected: dict[str, Tensor], name: str) -> None:
    assert actual.keys() == expected.keys(), name
    for key, value in expected.items():
        assert_equal(actual[key], value, f"{name}, {key}")


def run_stack(residual: Any, weights: list[Tensor], embed_BTD: Tensor) -> Tensor:
    """Sublayers of which each position sees those before it."""
    state = residual.start(embed_BTD)
    for depth, weight_DD in enumerate(weights):
        mix, state = residual.read(state, depth)
        seen_BTD = one_input(mix).cumsum(dim=-2)
        state = residual.write(state, depth, torch.tanh(seen_BTD @ weight_DD))
    return residual.finish(state)


def stack_gradients(method: Any, joined: Any, shape: tuple[int, ...]) -> dict[str, Tensor]:
    torch.manual_seed(2)
    dim = shape[-1]
    weights = [torch.randn(dim, dim, dtype=torch.float64) for _ in range(method.n_sublayers)]
    leaves = [torch.randn(shape, dtype=torch.float64), *weights]
    embed_BTD, *weights = [leaf.requires_grad_() for leaf in leaves]
    out_BTD = run_stack(joined, weights, embed_BTD)
    upstream_BTD = torch.linspace(-1, 2, out_BTD.numel(), dtype=torch.float64)
    names = [name for name, _ in method.named_parameters()]
    inputs = [embed_BTD, *weights, *method.parameters()]
    found = torch.autograd.grad(out_BTD, inputs, upstream_BTD.view_as(out_BTD), allow_unused=True)
    named = zip(["embedding", *map(str, range(len(weights))), *names], found, strict=True)
    return {"output": out_BTD.detach(), **{name: g for name, g in named if g is not None}}


def check_every_method(rank: int) -> None:
    shape = SHAPES[dist.get_world_size()]
    for config in ONE_OF_A_KIND:
        method = random_residual(config, 6, 6).double()
        expected = stack_gradients(method, method, shape)
        actual = stack_gradients(method, SequenceSharded(method), shape)
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            size = max(value.abs().max().item(), 1.0)
            error = (actual[name] - value).abs().max()
            assert error <= 1e-12 * size, f"{config}, {name}: {error:.1e} of {size:.1e}"


def exact_loss(
    logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None, **given: Any
) -> Tensor:
    """That of transformers, which rounds to float32, in the dtype of the logits."""
    targets = given.get("shift_labels")
    if targets is None:
        targets = F.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    targets = targets.reshape(-1)
    n_items = (targets != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    sum_of_all = F.cross_entropy(logits.reshape(-1, vocab_size), targets, reduction="sum")
    return sum_of_all / n_items


def double_model(method: str, **changes: Any) -> Any:
    from tiny_models import randomise_readers, text_config

    from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM

    torch.manual_seed(0)
    config = AttnResCausalLMConfig(text_config=text_config(**changes), residual=method)
    return randomise_readers(AttnResForCausalLM(config)).double()


def exact_model(method: str, **changes: Any) -> Any:
    """For a rank alone: its class of norms stays changed for as long as the process lives."""
    from tiny_models import compute_norms_in_their_dtype

    assert dist.is_initialized()
    model = double_model(method, **changes)
    compute_norms_in_their_dtype(pytest.MonkeyPatch(), model)
    model.loss_function = exact_loss
    return model


def two_batches() -> list[tuple[Tensor, Tensor]]:
    """Tokens and labels: a prompt to be ignored that fills one share, and two tokens."""
    from tiny_models import tokens

    first_BT, second_BT = tokens(2, 11), tokens(1, 2, seed=3)
    labels_BT = first_BT.clone()
    labels_BT[:, :5] = IGNORED
    return [(first_BT, labels_BT), (second_BT, second_BT)]


def step(model: Any) -> dict[str, Tensor]:
    """Losses and gradients of two batches, accumulated."""
    from tiny_models import gradients

    model.zero_grad()
    losses = [model(tokens_BT, labels=labels_BT).loss for tokens_BT, labels_BT in two_batches()]
    for loss in losses:
        loss.backward()
    norm = gradient_norm(model.parameters())
    clipped = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    found = {"loss": torch.stack(losses).detach(), "norm": norm, "clipped": clipped}
    return found | gradients(model)


def check_models(rank: int) -> None:
    from attnres.distributed.sequence_model import shard_sequence

    for method, gathers_logits in MODELS[dist.get_world_size()]:
        name = f"{method}, gathers_logits={gathers_logits}"
        changes = {"tie_word_embeddings": method == BLOCK}
        one, model = exact_model(method, **changes), exact_model(method, **changes)
        names = list(model.state_dict())
        shard_sequence(model, gathers_logits=gathers_logits)
        assert list(model.state_dict()) == names
        expected = step(one)
        assert_all_equal(step(model), expected, name)
        if method == BLOCK:
            copied = deepcopy(model).train()
            copied.activation_checkpointing_enable()
            assert_all_equal(step(copied), expected, f"{name}, checkpointed")
        with torch.no_grad():
            for tokens_BT, labels_BT in two_batches():
                found = model(tokens_BT, labels=labels_BT)
                wanted = one(tokens_BT, labels=labels_BT)
                assert_equal(found.logits, wanted.logits, name)
                assert_equal(found.loss, wanted.loss, name)


def check_inference(rank: int) -> None:
    """Greedy text; what is held, and that a decoded token costs no message."""
    from tiny_models import build, tokens

    from attnres.distributed.sequence_model import shard_sequence
    from attnres.models.taps import weights_by_depth

    n_calls: list[int] = []
    send = dist.all_gather_single
    dist.all_gather_single = lambda *given, **named: (n_calls.append(1), send(*given, **named))[1]
    one, model = build().eval(), build().eval()
    shard_sequence(model)
    prompt_BT = tokens(2, 9)
    settings = {"max_new_tokens": 6, "do_sample": False}
    expected = one.generate(prompt_BT, **settings)
    assert torch.equal(model.generate(prompt_BT, **settings), expected)
    assert len(n_calls) == one.residual.n_sublayers + 1  # the reads of the prompt, no more
    with torch.no_grad():
        wanted = one(prompt_BT, output_hidden_states=True).hidden_states
        found = model(prompt_BT, output_hidden_states=True).hidden_states
    for depth, (h_BTD, wanted_BTD) in enumerate(zip(found, wanted, strict=True)):
        assert_equal(h_BTD, wanted_BTD, f"read {depth}", tolerance=1e-5)
    own_SBT = weights_by_depth(model, prompt_BT)[-1]
    positions = own_positions(9)
    assert_equal(own_SBT, weights_by_depth(one, prompt_BT)[-1][..., positions], "weights", 1e-5)


def check_memory(rank: int) -> None:
    """The sources of the largest share, of a whole prompt and of one in chunks of 10 and 10 and 3.

    By storage: a view of all positions would hold them all.
    """
    from tiny_models import build, tokens

    from attnres.cost import prefill_bytes
    from attnres.distributed.sequence_model import shard_sequence
    from attnres.inference import SourceMemory, prefill

    model = build(residual="two phases").eval()
    n_ranks, n_sources = dist.get_world_size(), len(model.residual.layout.sizes) + 1
    shard_sequence(model)
    for chunk_tokens in (None, 10):
        with SourceMemory(model.residual) as memory:
            prefill(model, tokens(1, 23), chunk_tokens=chunk_tokens)
        predicted = prefill_bytes(
            n_sources, 23, 32, n_shards=n_ranks, chunk_tokens=chunk_tokens, bytes_per_number=4
        )
        peaks = [0] * n_ranks
        dist.all_gather_object(peaks, memory.peak_bytes)
        assert max(peaks) == peaks[0] == predicted
        assert memory.live_bytes == 0


def check_states_and_refusals(rank: int) -> None:
    from tiny_models import build

    from attnres.distributed.sequence_model import shard_sequence

    residual = AttnRes(4, BlockLayout.full(3))
    sharded: Any = SequenceSharded(residual, init_device_mesh("cpu", (dist.get_world_size(),)))
    embed_BTD = torch.randn(1, 7, 4)
    state = sharded.start(embed_BTD)
    n_own = len(own_positions(7))
    (own_BTD,) = state.state.blocks
    assert own_BTD.shape == (1, n_own, 4)
    h_BTD, state = sharded.read(state, 0)
    assert torch.equal(h_BTD, embed_BTD)
    assert torch.equal(sharded.stream(state), embed_BTD)
    assert torch.equal(sharded.weights(state, 0), torch.ones(1, 1, 7))
    with pytest.raises(ValueError, match="output of sublayer 0 has 3 positions, the sequence 7"):
        sharded.write(state, 0, embed_BTD[:, :3])
    with pytest.raises(ValueError, match="'whole' or 'partial', got 'sum'"):
        SequenceSharded(residual, outputs="sum")  # pyright: ignore[reportArgumentType]
    alone: Any = dist.new_group([0])
    if rank > 0:
        with pytest.raises(ValueError, match=f"rank {rank} is not in the group"):
            SequenceSharded(residual, alone)
    model = build()
    shard_sequence(model)
    with pytest.raises(ValueError, match="sharded along the sequence already"):
        shard_sequence(model)


def check_all(rank: int) -> None:
    check_every_method(rank)
    check_models(rank)
    check_inference(rank)
    check_memory(rank)
    check_states_and_refusals(rank)


@pytest.mark.parametrize("n_processes", [2, 3])
def test_loss_and_every_gradient_are_those_of_one_process(n_processes):
    run_processes(check_all, n_processes, timeout_s=300)


def check_tensor_parallel(rank: int, folder: str) -> None:
    """With the plan of transformers, and with the all-reduce at its end left to the write."""
    from torch.distributed.tensor import DTensor, Partial
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
    from transformers.distributed.tensor_parallel import RowwiseParallel

    from attnres.distributed.sequence_model import shard_sequence
    from attnres.models import AttnResForCausalLM

    styles: Any = ALL_PARALLEL_STYLES
    styles.register("rowwise_partial", RowwiseParallel(output_layouts=Partial()))
    last = ("self_attn.o_proj", "mlp.down_proj")
    plan = {f"model.layers.*.{name}": "rowwise_partial" for name in last}
    expected = step(exact_model(BLOCK))
    ways: list[tuple[Any, Any]] = [("whole", None), ("partial", plan)]
    for outputs, rules in ways:
        config = DistributedConfig(tp_size=2, tp_plan=rules)
        model: Any = AttnResForCausalLM.from_pretrained(folder, distributed_config=config)
        model.loss_function = exact_loss
        shard_sequence(model, outputs=outputs)
        losses = [model(tokens_BT, labels=labels_BT).loss for tokens_BT, labels_BT in two_batches()]
        for loss in losses:
            loss.backward()
        assert_equal(torch.stack(losses).detach(), expected["loss"], outputs)
        norm = gradient_norm(model.parameters())
        assert_equal(norm, expected["norm"], outputs)
        scale = (1 / (norm + 1e-6)).clamp(max=1.0)
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            assert_equal(whole * scale, expected[name], f"{outputs}, {name}")
        with torch.no_grad():
            tokens_BT = two_batches()[0][0]
            prompt = model(tokens_BT[:, :10], use_cache=True)
            decoded = model(tokens_BT[:, 10:], cache=prompt.cache, use_cache=True).logits
            wanted = exact_model(BLOCK)(tokens_BT).logits[:, -1:]
        assert_equal(decoded, wanted, f"{outputs}, decoded", tolerance=1e-6)


def test_tensor_parallel_sublayers_are_those_of_one_process(tmp_path):
    double_model(BLOCK).save_pretrained(tmp_path)
    run_processes(check_tensor_parallel, 2, str(tmp_path), timeout_s=300)


def test_without_a_process_group_it_is_refused():
    with pytest.raises(ValueError, match="init_process_group first"):
        SequenceSharded(AttnRes(4, BlockLayout.full(3)))
