"""What a training run needs of each GPU, and sends: weights, optimizer, activations, messages.

    n_gpus = n_stages of a pipeline * n_shards that share the weights of a stage

Weights and gradients are in bfloat16 and float32, Muon has one float32 buffer and a master weight;
all are sharded over a stage. Experts stay where they are and tokens go to them; all other weights
are gathered, forward and backward. Layers are checkpointed: the backward computes them again.
"""

from dataclasses import dataclass

from attnres.cost.counted import Counted
from attnres.cost.messages import messages
from attnres.cost.sizes import Sizes
from attnres.cost.tables import Table, bytes_in_words
from attnres.layout import check_count

WEIGHT_BYTES = 2  # bfloat16, of an activation too
STATE_BYTES = 4 + 4 + 4  # float32: gradient, master weight, momentum
PASSES = 3  # forward, forward again, backward: each sends as much to the experts and back
LOGIT_BYTES = 4 + 4  # float32, and their gradient


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """How GPUs share a run; a micro-batch is one sequence on each shard."""

    n_gpus: int
    n_stages: int
    n_virtual: int
    seq_len: int
    vocab_size: int

    def __post_init__(self):
        for name in ("n_gpus", "n_stages", "n_virtual", "seq_len", "vocab_size"):
            check_count(name, getattr(self, name))
        if self.n_gpus % self.n_stages:
            raise ValueError(f"n_gpus={self.n_gpus} is no multiple of n_stages={self.n_stages}")

    @property
    def n_shards(self) -> int:
        return self.n_gpus // self.n_stages


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes of one GPU; what is sent is that of one micro-batch, both directions of the pass."""

    weights: int
    optimizer: int
    gathered: int  # two layers' weights but the experts, at once
    inputs: int  # of checkpointed layers, a sequence for each stage in flight
    logits: int
    sent_gathering: int
    sent_to_experts: int
    sent_between_layers: int  # the activation that crosses each cut in any model
    sent_sources: int  # what attention over depth adds to it

    @property
    def memory(self) -> int:
        return self.weights + self.optimizer + self.gathered + self.inputs + self.logits


def needs(
    sizes: Sizes, counted: Counted, cluster: Cluster, n_blocks: int | None, n_params: int
) -> Needs:
    """Args: `n_params` with those of the residual; `n_blocks` None where it has no sources."""
    if cluster.n_stages * cluster.n_virtual > sizes.n_layers:
        raise ValueError(
            f"{cluster.n_stages} stages of {cluster.n_virtual} chunks for {sizes.n_layers} layers"
        )
    vector = sizes.dim * WEIGHT_BYTES
    n_others = n_params - sizes.n_expert_params
    n_chunks = cluster.n_stages * cluster.n_virtual
    sources = (
        messages(cluster.n_stages, cluster.n_virtual, n_blocks / n_chunks) if n_blocks else None
    )
    a_stage = cluster.seq_len / cluster.n_stages
    return Needs(
        weights=round(n_params * WEIGHT_BYTES / cluster.n_gpus),
        optimizer=round(n_params * STATE_BYTES / cluster.n_gpus),
        gathered=round(2 * n_others / sizes.n_layers * WEIGHT_BYTES),
        inputs=round(counted.checkpointed * cluster.seq_len * vector),
        logits=cluster.seq_len * cluster.vocab_size * LOGIT_BYTES,
        sent_gathering=round(n_others / cluster.n_stages * (2 * WEIGHT_BYTES + 4)),
        sent_to_experts=round(2 * PASSES * sizes.n_routes * a_stage * vector),
        sent_between_layers=round(2 * (n_chunks - 1) * a_stage * vector),
        sent_sources=round(2 * sources.cached * a_stage * vector) if sources else 0,
    )


def cluster_table(found: dict[int, Needs], words: str) -> Table:
    """A column for each number of GPUs."""
    rows = {
        "weights": "weights",
        "gradients, master weights, momentum": "optimizer",
        "gathered weights of two layers": "gathered",
        "inputs of checkpointed layers": "inputs",
        "logits of a sequence": "logits",
        "memory of a GPU": "memory",
        "sent: weights and gradients": "sent_gathering",
        "sent: tokens to experts and back": "sent_to_experts",
        "sent: activations between stages": "sent_between_layers",
        "sent: sources between stages": "sent_sources",
    }
    cells = [
        (row, *(bytes_in_words(getattr(each, name)) for each in found.values()))
        for row, name in rows.items()
    ]
    columns = ("", *(f"{n_gpus} GPUs" for n_gpus in found))
    note = (
        "on each GPU; sent for one sequence a shard, forward and backward. Counted, not measured: "
        "Muon for all, no buffers of kernels or of communication"
    )
    return Table(f"Training on GPUs: {words}", columns, cells, note)
