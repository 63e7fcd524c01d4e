"""Named mistakes of the schedule: which sources a reader sees, and by which query."""

from collections.abc import Callable
from typing import Any

from attnres.conformance import wrong_schedule_steps as schedule
from attnres.conformance.mistake import Mistake


def _schedule(
    name: str, what: str, seen_by: str, mend: str, **steps: Callable[..., Any]
) -> Mistake:
    return Mistake(name, "schedule", what, seen_by, mend, steps)


def _blocks(name: str, what: str, seen_by: str, mend: str, **steps: Callable[..., Any]) -> Mistake:
    return Mistake(name, "blocks", what, seen_by, mend, steps)


SCHEDULE_MISTAKES = (
    _schedule(
        "cumulative_states",
        "Sources are states of the ordinary stream, embedding and all outputs so far, not sums of "
        "blocks.",
        "Everyone who compares with the paper: early outputs are counted in every source.",
        "Start the sum of a block anew where a block closes, and start the first without the "
        "embedding.",
        finished=schedule.cumulative,
        partial=schedule.second_stream,
    ),
    _schedule(
        "partial_never_reset",
        "The partial sum runs on where a block closes, so that later blocks hold earlier ones.",
        "Everyone with two blocks or more.",
        "Empty the partial sum where a block closes.",
        finished=schedule.never_reset,
        partial=schedule.partial_never_reset,
    ),
    _schedule(
        "embedding_in_first_block",
        "The sum of the first block starts from the embedding, which is a source besides.",
        "Everyone: the embedding is counted twice, first in read 2.",
        "Start the first block from the output of the first sublayer.",
        finished=schedule.first_with_embedding,
        partial=schedule.partial_with_embedding,
    ),
    _schedule(
        "zero_partial",
        "Where a block has just closed, a partial sum of zeros is a source.",
        "Everyone: a vector of zeros has a logit of zero and takes its share of the weight.",
        "A fresh block has no partial sum: leave it out of the list.",
        partial=schedule.zeros_after_boundary,
    ),
    _schedule(
        "zero_partial_from_start",
        "Where a block has just closed, and before the first sublayer, a partial sum of zeros is a "
        "source.",
        "Everyone: the first sublayer reads half the embedding.",
        "A fresh block has no partial sum: leave it out of the list.",
        partial=schedule.zeros_from_start,
    ),
    _schedule(
        "boundary_twice",
        "Where a block has just closed, its sum is a source twice: as a block and as the partial.",
        "Everyone; often only where activations are recomputed.",
        "Move the sum into the list, and go on without a partial sum.",
        partial=schedule.sealed_again,
    ),
    _blocks(
        "no_partial",
        "Readers see finished blocks alone, not the unfinished one.",
        "Everyone: a sublayer does not read the one before it in its block.",
        "Append the partial sum to the sources of a read.",
        partial=schedule.nothing,
    ),
    _schedule(
        "no_embedding",
        "The embedding is no source once there is another.",
        "Everyone, first in read 2.",
        "The embedding is the first source of every read.",
        sources=schedule.without_embedding,
    ),
    _schedule(
        "layer_inputs_too",
        "The input of each transformer layer is a source besides the outputs.",
        "Everyone, first in read 3: earlier sources are counted again.",
        "Sources are the embedding and what sublayers return, never what they read.",
        sources=schedule.with_layer_inputs,
    ),
    _blocks(
        "block_mean",
        "A finished block is the mean of its outputs instead of their sum.",
        "Everyone with blocks of two sublayers or more.",
        "Add the outputs; the norm of the keys takes care of their size.",
        finished=schedule.means,
    ),
    _schedule(
        "normed_outputs",
        "Outputs are normed before they are added to a finished block.",
        "Everyone: it is another method, of other sizes.",
        "Add the outputs as they are.",
        finished=schedule.normed_outputs,
    ),
    _schedule(
        "detached_blocks",
        "No gradient flows into finished blocks.",
        "Whoever trains: forward is right, and a sublayer learns from its own block alone.",
        "Keep finished blocks in the graph.",
        finished=schedule.detached,
    ),
    _schedule(
        "size_in_layers",
        "The size is taken in transformer layers, so that blocks are twice as long.",
        "Whoever carries a block size from a code that counts sublayers to one that counts layers.",
        "Count sublayers, two a layer, or halve the size.",
        sizes=schedule.doubled_size,
    ),
    _blocks(
        "size_halved",
        "Blocks are half as long as they should be.",
        "Whoever carries a block size from a code that counts layers to one that counts sublayers.",
        "Count attention and MLP as one sublayer each.",
        sizes=schedule.halved_size,
    ),
    _blocks(
        "ignores_size",
        "Every sublayer is a block: it is Full AttnRes whatever the size.",
        "Whoever counts memory or messages.",
        "Add outputs to a partial sum until the block is full.",
        sizes=schedule.all_of_one,
    ),
    _schedule(
        "closes_late",
        "The first block has a sublayer too many.",
        "Everyone with two blocks or more.",
        "Close a block by the sublayer that completes it, not by the one after.",
        sizes=schedule.closed_late,
    ),
    _blocks(
        "closes_early",
        "The first block lacks a sublayer.",
        "Everyone with two blocks or more: the embedding was counted as one of the first.",
        "The embedding is a source of its own and counts in no block.",
        sizes=schedule.closed_early,
    ),
    _blocks(
        "merged_remainder",
        "Sublayers that fill no block are added to the block before.",
        "Whoever has a depth that the size does not divide.",
        "What remains is a short block of its own.",
        sizes=schedule.merged_rest,
    ),
    _schedule(
        "query_before",
        "Each reader uses the query and the gain of the reader before it.",
        "Whoever loads trained weights; at the start all queries are zero and nothing shows.",
        "Row d of queries and key_weights belongs to the read before sublayer d, row L to the "
        "output.",
        query=schedule.query_before,
    ),
    _schedule(
        "query_of_layer",
        "Attention and MLP of a layer read by one query.",
        "Whoever loads trained weights; at the start nothing shows.",
        "Each sublayer has a query of its own.",
        query=schedule.query_of_layer,
    ),
    _schedule(
        "one_query",
        "All depths read by one query.",
        "Whoever trains: depths cannot choose apart.",
        "Each sublayer has a query of its own.",
        query=schedule.one_query,
    ),
    _schedule(
        "no_output_read",
        "There is no output read: the final norm gets the latest source.",
        "Everyone: all blocks but the last are lost to the head.",
        "One more read, by a query of its own, before the final norm.",
        finish=schedule.no_read,
    ),
    _schedule(
        "output_sum",
        "The output read is the plain sum of its sources.",
        "Whoever loads trained weights: the query of the output read is not used.",
        "One more read, by a query of its own, before the final norm.",
        finish=schedule.sum_of_sources,
    ),
    _schedule(
        "output_mean",
        "The output read is the plain mean of its sources.",
        "Whoever loads trained weights: the query of the output read is not used.",
        "One more read, by a query of its own, before the final norm.",
        finish=schedule.mean_of_sources,
    ),
    _blocks(
        "output_without_partial",
        "The output read leaves out the unfinished block.",
        "Whoever has a depth that the size does not divide: the last sublayers are lost.",
        "The unfinished block is a source of the output read.",
        finish=schedule.without_partial,
    ),
    _schedule(
        "output_by_last_query",
        "The output read uses the query of the last sublayer.",
        "Whoever loads trained weights; at the start nothing shows.",
        "The output read has a query of its own.",
        finish=schedule.last_query_again,
    ),
    _schedule(
        "norm_before_output_read",
        "Sources of the output read are normed before they are mixed.",
        "Everyone: the norm belongs behind the read.",
        "Read, then norm, then head.",
        finish=schedule.normed_first,
    ),
)
