"""What a pipeline refuses before anything is sent, and how it ends when a rank fails."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from pipelines import SEQ_LEN, Case, config, tokens
from processes import run_processes

from attnres.distributed import Pipeline, PipelineError, plan_for

SIZES: dict[str, Any] = {"n_microbatches": 4, "seq_len": SEQ_LEN}


def plan(n_stages=2, n_virtual=1, residual="attn_res"):
    made = config(Case(residual=residual))
    return made, plan_for(made, n_stages, n_virtual)


@pytest.mark.parametrize(
    ("stages", "settings", "words"),
    [
        ((2, 1), {"schedule": "zero_bubble"}, "no schedule 'zero_bubble'; there are: gpipe"),
        ((2, 2), {"schedule": "1f1b"}, "1f1b runs one chunk a rank, got n_virtual=2"),
        ((2, 1), {"n_microbatches": 1}, "1f1b needs as many micro-batches as stages, 2, or more"),
        ((2, 1), {"n_microbatches": 5, "schedule": "interleaved"}, "must be divisible by 2"),
        ((1, 1), {}, "a pipeline has two stages at least"),
        ((2, 1), {"seq_len": 0}, "seq_len must be a positive integer, got 0"),
        ((2, 1), {}, "call init_process_group, or torchrun"),
    ],
)
def test_what_cannot_run_is_refused_by_a_rank_alone(stages, settings, words):
    made, planned = plan(*stages)
    with pytest.raises(ValueError, match=words):
        Pipeline(made, planned, **(SIZES | settings))


def test_more_stages_than_sublayers_are_refused():
    with pytest.raises(ValueError, match="11 chunks are more than the model's 10 sublayers"):
        plan(11)


def test_a_plan_of_another_model_is_refused():
    made, _ = plan(residual="attn_res:n_blocks=2")
    _, other = plan(residual="attn_res:n_blocks=5")
    with pytest.raises(ValueError, match=r"blocks of \[2, 2, 2, 2, 2\] .*, the model has \[5, 5\]"):
        Pipeline(made, other, **SIZES)


def test_a_loss_that_is_no_sum_over_layers_is_refused():
    from tiny_families import config as config_of  # not on every rank: it takes every family

    made = config_of("mixtral")  # with output_router_logits
    with pytest.raises(ValueError, match="output_router_logits=True adds a loss"):
        Pipeline(made, plan_for(made, 2), **SIZES)


def _refusals(rank):
    found = []

    def refused(made, planned, **settings):
        with pytest.raises(ValueError, match=r"pipeline|processes differ") as error:
            Pipeline(made, planned, **(SIZES | settings))
        found.append(str(error.value))

    refused(*plan(3))
    refused(*plan(), n_microbatches=4 + 4 * rank)
    refused(*plan(residual=("attn_res", "two_phase")[rank]))
    torch.manual_seed(rank)
    refused(*plan())
    torch.manual_seed(0)
    pipeline = Pipeline(*plan(), **SIZES)
    for wrong in (tokens(3), tokens(4)[:, 1:]):
        with pytest.raises(ValueError, match="micro-batches") as error:
            pipeline.backward(wrong)
        found.append(str(error.value))
    return found


@pytest.mark.dist
@pytest.mark.slow
def test_ranks_that_differ_and_wrong_sizes_are_refused_on_each():
    found = run_processes(_refusals, 2)
    assert found[0] == found[1]
    world, microbatches, residual, seed, few, short = found[0]
    assert "a pipeline of 3 stages needs a group of as many ranks, got 2" in world
    assert "n_microbatches is 4 on rank 0 and 8 on rank 1" in microbatches
    assert "the processes differ: config is sha256:" in residual
    assert "the processes differ: state of torch's generator is sha256:" in seed
    assert "one tensor of shape [4, 7], got [3, 7]" in few
    assert "got [4, 6]" in short


def _fail(rank, folder, n_found, how):
    torch.manual_seed(0)
    pipeline = Pipeline(*plan(3), **SIZES)
    pipeline.backward(tokens(4))
    if how is None and rank == 0:
        _fail_at_the_end(pipeline.module.get_input_embeddings().weight)
    elif rank == 1 and how is not None:
        layer = next(x for x in pipeline.module.base_model.layers if list(x.parameters()))
        layer.mlp.forward = how
    start = time.monotonic()
    with pytest.raises(PipelineError) as error:
        pipeline.backward(tokens(4))
    took_s = time.monotonic() - start
    torch.save((str(error.value), pipeline.n_kept, took_s), Path(folder, str(rank)))
    while sum(1 for _ in Path(folder).iterdir()) < n_found:  # who ends first ends the others
        time.sleep(0.1)


def _fail_at_the_end(embedding):
    """In the last backward of the first rank, when the others have done their part."""
    seen = []

    def fail(gradient):
        seen.append(None)
        if len(seen) == SIZES["n_microbatches"]:
            time.sleep(2)
            raise FloatingPointError("a wrong number")

    embedding.register_hook(fail)


def _raise(h_BTD):
    raise FloatingPointError("a wrong number")


def _die(h_BTD):
    os._exit(0)


def found_by(n_processes, ranks, folder, fail, how):
    """What `fail` saved of those ranks, one of which comes to harm by `how`."""
    with suppress(Exception):  # the group cannot end as others do
        run_processes(fail, n_processes, str(folder), len(ranks), how, timeout_s=600)
    return [torch.load(folder / str(rank)) for rank in ranks]


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_that_fails_ends_all_which_name_it(tmp_path):
    for words, n_kept, took_s in found_by(3, range(3), tmp_path, _fail, _raise):
        assert words.startswith("rank 1 failed in the forward of micro-batch 0 through sublayers ")
        assert words.endswith("FloatingPointError: a wrong number")
        assert n_kept == 0
        assert took_s < 30  # the group's own limit is 600


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_that_fails_last_ends_those_who_share_its_embedding(tmp_path):
    for words, n_kept, took_s in found_by(3, range(3), tmp_path, _fail, None):
        assert words.startswith("rank 0 failed in the backward of micro-batch 3 through sublayers ")
        assert words.endswith("FloatingPointError: a wrong number")
        assert n_kept == 0
        assert took_s < 60  # the group's own limit is 600


def _shared_timeout(rank):
    torch.manual_seed(0)
    pipeline = Pipeline(*plan(3), **SIZES)
    found = {group.size(): _timeout_s(group) for group in pipeline._notice.groups}
    return found | {0: _timeout_s(pipeline.group)}


def _timeout_s(group):
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


@pytest.mark.dist
@pytest.mark.slow
def test_ranks_that_share_an_embedding_wait_no_longer_than_others():
    first, second, third = run_processes(_shared_timeout, 3, timeout_s=300)
    assert first == third == {0: 300, 2: 300, 3: 300}
    assert second == {0: 300, 3: 300}


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_that_dies_ends_all(tmp_path):
    for words, n_kept, took_s in found_by(3, (0, 2), tmp_path, _fail, _die):
        assert "has lost a rank that said nothing" in words
        assert n_kept == 0
        assert took_s < 30
