"""What a hop carries of every residual method's state, and that a state is made of it again."""

import zlib
from typing import Any

import pytest
import torch
from depth_methods import CONFIGS
from tiny_models import text_config, tokens
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnres.distributed import plan_for
from attnres.distributed.carried import carried, has_blocks
from attnres.distributed.rank_part import RankPart
from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.models.part import Part
from attnres.residual import residual_to_json

SHAPE_BT, DIM, CUTS = (2, 7), 32, (1, 3, 5)
WITH_BLOCKS = [made for made in CONFIGS if has_blocks(made.build(DIM, 6))]
WITH_STREAM = ("centered", "delta")  # a vector more at each hop


def config(residual: Any) -> AttnResCausalLMConfig:
    return AttnResCausalLMConfig(text_config=text_config(), residual=residual)


def states(residual: Any) -> list[Any]:
    torch.manual_seed(0)
    state, found = residual.start(torch.randn(*SHAPE_BT, DIM)), []
    for depth in range(residual.n_sublayers):
        _, state = residual.read(state, depth)
        state = residual.write(state, depth, torch.randn(*SHAPE_BT, DIM))
        found.append(state)
    return found


@pytest.mark.parametrize("residual", CONFIGS, ids=str)
def test_a_state_is_made_again_of_what_is_sent_and_kept(residual):
    plan = plan_for(config(residual), 4, 1, CUTS, keep="nothing")
    hops = carried(config(residual), plan, SHAPE_BT, torch.float32)
    built = residual.build(DIM, 6)
    if hasattr(built, "cut_at"):
        built.cut_at(CUTS)
    for depth, hop in zip(CUTS, hops, strict=True):
        state = states(built)[depth - 1]
        blocks, others = hop.take_apart(state)
        sent = (*blocks, *others)
        assert [(x.shape, x.dtype) for x in sent] == [(x.shape, x.dtype) for x in hop.tensors]
        again = hop.put_together(dict(enumerate(blocks)), others)
        assert type(again) is type(state)
        found, expected = tree_leaves(again), tree_leaves(state)
        assert all(x is y for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("residual", WITH_BLOCKS, ids=str)
@pytest.mark.parametrize("keep", ["nothing", "received", "all"])
def test_blocks_and_partial_sums_are_sent_as_planned(residual, keep):
    plan = plan_for(config(residual), 2, 2, CUTS, keep)
    found = [len(hop.tensors) for hop in carried(config(residual), plan, SHAPE_BT, torch.float64)]
    extra = residual_to_json(residual)["method"] in WITH_STREAM
    extra += getattr(residual, "query", None) == "input"  # the mix of the read before
    assert found == [hop.n_vectors + extra for hop in plan.hops]


@pytest.mark.parametrize("has_gradients", [True, False], ids=["training", "no gradients"])
def test_a_cut_may_divide_readers_that_are_asked_at_once(has_gradients):
    made, cuts = (
        config("two_phase:n_blocks=2"),
        (2, 4, 5),
    )  # readers from 3 on are one group
    plan = plan_for(made, 4, 1, cuts, keep="nothing")
    torch.manual_seed(0)
    whole: Any = AttnResForCausalLM(made)
    assert whole.residual.groups[3].last == 6
    parts = []
    for rank in range(4):
        torch.manual_seed(0)
        parts.append(RankPart(made, plan.chunks, rank).model)
    for model in (whole, *parts):
        randomise(model.residual)
        for parameter in model.parameters():
            parameter.data = parameter.data.double()
    hops = carried(made, plan, (2, 11), torch.float64)
    with torch.set_grad_enabled(has_gradients):
        expected = whole(tokens(), labels=tokens(), use_cache=False).loss
        loss = loss_through(parts, plan, hops)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    if has_gradients:
        expected.backward()
        loss.backward()
        gradients = {name: each.grad for name, each in whole.named_parameters()}
        for name, each in (pair for part in parts for pair in part.named_parameters()):
            error, size = (each.grad - gradients[name]).abs().max(), gradients[name].abs().max()
            assert error <= 1e-6 * size, name  # norms of transformers are in float32


def loss_through(parts: list[Any], plan: Any, hops: Any) -> Tensor:
    """Each part is given of the one before what the hop between them carries, and nothing else."""
    inputs, state = {"input_ids": tokens()}, None
    for chunk, part, hop in zip(plan.chunks, parts, hops, strict=False):
        left: list[Any] = []
        part.base_model(**inputs, use_cache=False, part=Part(chunk.start, chunk.stop, state, left))
        blocks, others = hop.take_apart(left[0])
        assert len(blocks) + len(others) == len(hop.tensors)
        state = hop.put_together(dict(enumerate(blocks)), others)
        inputs = {"inputs_embeds": torch.zeros(()).expand(*tokens().shape, DIM)}
    last = Part(plan.chunks[-1].start, plan.chunks[-1].stop, state)
    return parts[-1](**inputs, labels=tokens(), use_cache=False, part=last).loss


def randomise(residual: Any) -> None:
    for name, parameter in residual.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator)


def test_bytes_are_those_of_the_tensors():
    residual = {"method": "attn_res", "sublayers_per_block": 2}
    plan = plan_for(config(residual), 4, 1, CUTS)
    hops = carried(config(residual), plan, SHAPE_BT, torch.bfloat16)
    n_vectors = [hop.n_vectors for hop in plan.hops]
    assert n_vectors == [2, 3, 4]  # b0 and the partial sum, ...
    assert [hop.n_bytes for hop in hops] == [n * 2 * 7 * DIM * 2 for n in n_vectors]
