"""What a run needs of each GPU, by hand for one model, and as the command prints it."""

from dataclasses import replace

import pytest

from attnres.cost import count, decoder_sizes, messages
from attnres.cost.cluster import Cluster, cluster_table, needs
from attnres.residual import AttnResConfig, StandardConfig

SIZES = replace(
    decoder_sizes(dim=32, n_layers=8, n_heads=4, mlp_dim=48, vocab_size=61),
    n_expert_params=4000,
    n_routes=6,
)
CLUSTER = Cluster(n_gpus=16, n_stages=4, n_virtual=2, seq_len=64, vocab_size=61)


def found(config, cluster=CLUSTER, n_blocks: int | None = None):
    counted = count(config, SIZES.dim, SIZES.n_sublayers)
    return needs(SIZES, counted, cluster, n_blocks, SIZES.n_params + counted.n_params)


def test_each_figure_is_that_of_a_hand():
    each, n = found(StandardConfig()), SIZES.n_params
    assert each.weights == round(2 * n / 16)
    assert each.optimizer == round((4 + 4 + 4) * n / 16)
    assert each.gathered == round(2 * (n - 4000) / 8 * 2)
    assert each.inputs == 8 * 64 * 32 * 2  # a vector a layer, of bfloat16
    assert each.logits == 64 * 61 * 8
    assert each.sent_gathering == round((n - 4000) / 4 * 8)
    assert each.sent_to_experts == 2 * 3 * 6 * 64 * 32 * 2 // 4  # there and back, three passes
    assert each.sent_between_layers == 2 * 7 * 64 * 32 * 2 // 4
    assert each.sent_sources == 0
    parts = each.weights + each.optimizer + each.gathered + each.inputs + each.logits
    assert each.memory == parts


def test_attention_over_depth_adds_its_sources_and_nothing_to_the_inputs():
    plain, block = found(StandardConfig()), found(AttnResConfig(n_blocks=8), n_blocks=8)
    assert block.sent_sources == round(2 * messages(4, 2, 1).cached * 64 * 32 * 2 / 4)
    assert block.inputs >= plain.inputs
    assert block.sent_to_experts == plain.sent_to_experts


def test_more_gpus_share_weights_alone():
    few, many = (found(StandardConfig(), replace(CLUSTER, n_gpus=n_gpus)) for n_gpus in (16, 64))
    assert (few.weights, few.optimizer) == pytest.approx(
        (4 * many.weights, 4 * many.optimizer), abs=4
    )
    for name in ("gathered", "inputs", "logits", "sent_gathering", "sent_to_experts"):
        assert getattr(few, name) == getattr(many, name)
    table = cluster_table({16: few, 64: many}, "words")
    assert table.columns == ("", "16 GPUs", "64 GPUs")


def test_gpus_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="n_gpus=18 is no multiple of n_stages=4"):
        replace(CLUSTER, n_gpus=18)
    with pytest.raises(ValueError, match="4 stages of 4 chunks for 8 layers"):
        found(StandardConfig(), replace(CLUSTER, n_virtual=4))
