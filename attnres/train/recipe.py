"""A run in one frozen dataclass; a recipe is a function that returns it."""

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from attnres.distributed import even_cuts
from attnres.distributed import schedule as order_of
from attnres.layout import SUBLAYERS_PER_LAYER, check_n_sublayers
from attnres.residual import ResidualConfig, StandardConfig, residual_to_json
from attnres.train.data import DataConfig
from attnres.train.optim import OptimConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM


ROTARY = ("llama", "mistral", "qwen2", "qwen3")
ON_DISK = ("first_k_dense_replace",)  # settings that only a saved config has
FAMILIES = (*ROTARY, "kimi_linear")  # whose sizes are those of a recipe
PipelineSchedule = Literal["auto", "gpipe", "1f1b", "interleaved", "looped"]
DataParallelism = Literal["fsdp", "ddp"]
HOW_IT_RUNS = ("pipeline", "virtual_stages", "schedule", "data_parallel", "timeout_s")
"""Fields of a recipe that change no number but by rounding: a run may go on with others."""


def _check_counts(config: Any, *others: str) -> None:
    """ValueError for the first field declared an int, other than `others`, that is no count."""
    for name in (each.name for each in fields(config) if each.type is int):
        value = getattr(config, name)
        if name in others:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of a transformers family and the residual that joins its sublayers."""

    family: str = "llama"  # llama, mistral, qwen2, qwen3 or kimi_linear
    dim: int = 128  # width of the hidden state
    n_layers: int = 8  # of two sublayers each: attention and MLP
    n_heads: int = 4  # of attention
    n_kv_heads: int = 4  # heads of keys and values; divides n_heads
    mlp_dim: int = 384  # width of the MLP
    init_std: float = 0.02  # standard deviation of fresh weights, at most 1
    tie_embeddings: bool = True  # embedding and head share their weights
    residual: ResidualConfig = field(default_factory=StandardConfig)
    """standard, attn_res (Full), attn_res:n_blocks=8, attn_res:layers_per_block=2 or
    two_phase:n_blocks=8, the same model with finished blocks read once for many sublayers"""

    others: dict[str, int | float] = field(default_factory=dict)
    """further settings of the family's config in transformers, by its own names"""

    def __post_init__(self):
        _check_counts(self)
        if not 0 < self.init_std <= 1:
            raise ValueError(f"init_std must be above 0 and at most 1, got {self.init_std}")
        if self.family in ROTARY and self.dim % (2 * self.n_heads):
            raise ValueError(
                f"dim={self.dim} is not a multiple of 2 * n_heads={2 * self.n_heads}: rotary "
                "embeddings need an even head_dim"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} is no multiple of n_kv_heads={self.n_kv_heads}"
            )
        check_n_sublayers(self.n_layers * SUBLAYERS_PER_LAYER)
        self.residual.describe(self.n_layers * SUBLAYERS_PER_LAYER)  # a wrong layout shows here

    def build(self, vocab_size: int, seq_len: int) -> "AttnResForCausalLM":
        """The model with fresh weights, drawn from torch's global generator."""
        from attnres.models import AttnResForCausalLM

        return AttnResForCausalLM(self.config(vocab_size, seq_len))

    def config(self, vocab_size: int, seq_len: int) -> "AttnResCausalLMConfig":
        """The model without weights."""
        from huggingface_hub.errors import StrictDataclassError

        from attnres.models import AttnResCausalLMConfig

        try:
            return AttnResCausalLMConfig(
                text_config=self.text_config(vocab_size, seq_len),
                residual=residual_to_json(self.residual),
            )
        except StrictDataclassError as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"transformers refuses the model: {reason}") from error

    def text_config(self, vocab_size: int, seq_len: int) -> "PreTrainedConfig":
        """Of the model alone, without the residual; ValueError for another family."""
        from transformers import AutoConfig

        if self.family not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ValueError(f"a recipe has no sizes for {self.family!r}; it has for: {known}")
        plain = AutoConfig.for_model(self.family)  # transformers itself keeps any keyword
        for name in self.others:
            if not hasattr(plain, name) and name not in ON_DISK:
                raise ValueError(f"others: a {self.family} config has no {name!r}")
        return AutoConfig.for_model(
            self.family,
            vocab_size=vocab_size,
            hidden_size=self.dim,
            num_hidden_layers=self.n_layers,
            num_attention_heads=self.n_heads,
            num_key_value_heads=self.n_kv_heads,
            intermediate_size=self.mlp_dim,
            initializer_range=float(self.init_std),  # transformers takes no int
            max_position_embeddings=seq_len,
            tie_word_embeddings=self.tie_embeddings,
            bos_token_id=None,
            eos_token_id=None,
            **self._of_the_family(),
        )

    def _of_the_family(self) -> dict[str, Any]:
        if self.family in ROTARY:
            return {"head_dim": self.dim // self.n_heads, **self.others}
        from attnres.models.kimi_linear import layer_types

        return {
            "layer_types": layer_types(self.n_layers),
            "linear_num_heads": self.n_heads,
            "pad_token_id": None,
            **self.others,
        }


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run. Steps are optimiser steps."""

    name: str  # of the run, and of its folder
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    seed: int = 0  # of weights and of the order of the text
    n_steps: int = 300  # optimiser steps
    batch_size: int = 16  # sequences a forward pass, over all processes that share them
    n_accumulations: int = 1  # forward passes a step
    seq_len: int = 256  # tokens
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16 is autocast
    compile: bool = False  # by torch.compile
    checkpoint_gradients: bool = False  # keep less for the backward pass, and compute it again
    device: str = "auto"  # CUDA where there is one, a GPU for each process of a machine
    pipeline: int = 1  # stages; each takes as many processes as share its data
    virtual_stages: int = 1  # chunks of the model a stage has
    schedule: PipelineSchedule = "auto"  # 1f1b, or interleaved where a stage has several chunks
    data_parallel: DataParallelism = "fsdp"  # of processes beyond the stages; ddp copies
    timeout_s: int = 600  # after which a process that waits for another gives up
    n_validation_sequences: int = 128  # at most, spread evenly over the held-out text
    n_probe_sequences: int = 8  # held-out sequences that a probe looks at, at most
    log_every: int = 10  # steps, as all of these
    validate_every: int = 50  # steps from one validation to the next
    probe_every: int = 100  # steps from one probe of every depth to the next
    save_every: int = 100  # steps from one checkpoint to the next
    keep_checkpoints: int = 2  # the newest; older ones are deleted

    def __post_init__(self):
        _check_counts(self, "seed")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {self.seed!r}")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be float32 or bfloat16, got {self.precision!r}")
        for name, allowed in {
            "schedule": PipelineSchedule,
            "data_parallel": DataParallelism,
        }.items():
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name} {getattr(self, name)!r} is not in {get_args(allowed)}")
        if not self.name.strip() or set("/\0") & set(self.name) or self.name.startswith("."):
            raise ValueError(f"name must do as the name of a folder, got {self.name!r}")
        if self.pipeline > 1:
            self._check_stages()

    def _check_stages(self) -> None:
        """ValueError for a pipeline that the model or the schedule cannot be."""
        if self.compile:
            raise ValueError(f"compile=True goes with pipeline=1, got {self.pipeline}")
        n_sublayers = self.model.n_layers * SUBLAYERS_PER_LAYER
        even_cuts(n_sublayers, self.pipeline * self.virtual_stages)
        order_of(self.runner, self.pipeline, self.virtual_stages, self.n_accumulations)

    @property
    def runner(self) -> str:
        """The schedule of its pipeline, chosen where it is "auto"."""
        if self.schedule != "auto":
            return self.schedule
        return "1f1b" if self.virtual_stages == 1 else "interleaved"

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.n_accumulations * self.seq_len

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["model"]["residual"] = residual_to_json(self.model.residual)
        return data
