"""What a rank of a pipeline holds: its own parameters, as one process would have them."""

import pytest
import torch
from tiny_families import FAMILIES, config

from attnres.distributed import cut
from attnres.distributed.data_parallel import shard
from attnres.distributed.rank_part import RankPart
from attnres.distributed.sequence_model import shard_sequence
from attnres.layout import BlockLayout
from attnres.models import AttnResForCausalLM


def chunks_of(made, cuts=(3, 4), n_virtual=1):
    n_chunks = len(cuts) + 1
    return cut(BlockLayout.full(made.n_sublayers), n_chunks // n_virtual, n_virtual, cuts)


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_weights_are_those_of_one_process(family, tied):
    made = config(family, tie_word_embeddings=tied)
    cuts = (1, 2) if made.n_sublayers == 3 else (3, 4)  # in the middle of a layer
    torch.manual_seed(3)
    whole = AttnResForCausalLM(made)
    state, parameters = torch.get_rng_state(), dict(whole.named_parameters())
    buffers, held = dict(whole.named_buffers()), []
    for rank in range(3):
        torch.manual_seed(3)
        part = RankPart(made, chunks_of(made, cuts), rank)
        assert torch.equal(torch.get_rng_state(), state)
        for name, parameter in part.model.named_parameters():
            assert torch.equal(parameter, parameters[name]), name
            held.append(name)
        for name, buffer in part.model.named_buffers():
            assert torch.equal(buffer, buffers[name]), name
    shared = [name for name in parameters if held.count(name) > 1]
    is_tied = whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    assert len(shared) == is_tied
    assert set(held) == set(parameters)


def test_of_a_layer_cut_in_two_each_side_holds_its_sublayer():
    made = config("llama")
    before, after = (RankPart(made, chunks_of(made, (3,)), rank).model for rank in range(2))
    cut_layer = {
        rank: {name.split(".")[3] for name, _ in part.named_parameters() if "layers.1." in name}
        for rank, part in enumerate((before, after))
    }
    assert cut_layer == {
        0: {"input_layernorm", "self_attn"},
        1: {"post_attention_layernorm", "mlp"},
    }
    assert {name for name, _ in before.named_parameters() if "residual" in name} == {
        f"residual.readers.{depth}.{name}" for depth in (1, 2) for name in ("query", "key_weight")
    }


def test_chunks_of_one_rank_are_held_together():
    made = config("llama")
    part = RankPart(made, chunks_of(made, (1, 2, 5), n_virtual=2), 1).model
    layers = {name.split(".")[2:4][-1] for name, _ in part.named_parameters() if "layers." in name}
    assert layers == {"post_attention_layernorm", "mlp"}
    assert {name.split(".")[2] for name, _ in part.named_parameters() if "layers." in name} == {
        "0",
        "2",
    }
    assert part.get_output_embeddings().weight is not None
    assert part.get_input_embeddings().weight is None


def test_what_a_layer_keeps_besides_is_held_with_its_sublayer():
    made = config("deepseek_v3")  # a bias of the router's scores, no parameter
    kept = [
        [name for name, _ in RankPart(made, chunks_of(made), rank).model.named_buffers()]
        for rank in range(3)
    ]
    biases = [[name.split(".")[2] for name in names if "bias" in name] for names in kept]
    assert biases == [[], ["1"], ["2"]]  # the MLP of layer 1 is sublayer 3


@pytest.mark.parametrize("method", ["hyper", "mhc", "muddformer", "denseformer"])
def test_what_another_method_learns_is_held_by_all(method):
    made = config("llama")
    made.residual, made.residual_state = {"method": method}, None
    torch.manual_seed(3)
    whole = AttnResForCausalLM(made)
    torch.manual_seed(3)
    part = RankPart(made, chunks_of(made), 1)
    expected = {name: p for name, p in whole.named_parameters() if name.startswith("residual.")}
    found = {n: p for n, p in part.model.named_parameters() if n.startswith("residual.")}
    assert found.keys() == expected.keys() != set()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert part.shared(1) == {(0, 1, 2): list(expected)}


def test_a_part_is_not_sharded_as_a_whole_model_is():
    part = RankPart(config("llama"), chunks_of(config("llama")), 1).model
    with pytest.raises(ValueError, match=r"one rank's part .*: give it the mesh as shard_over"):
        shard(part, None)  # type: ignore[arg-type]  before it looks at the mesh
    with pytest.raises(ValueError, match=r"one rank's part .*: its stages hand on whole sequences"):
        shard_sequence(part)
