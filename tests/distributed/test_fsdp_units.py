"""What FSDP2 gathers of a model with depth attention, when, in which dtype, and the gradients."""

from collections import Counter
from typing import Any

import pytest
import torch
from error_budget import assert_as_good_as
from processes import run_processes
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from transformers import LlamaConfig

from attnres.distributed.data_parallel import own_rows, shard, whole
from attnres.models import AttnResCausalLMConfig, AttnResForCausalLM
from attnres.residual.depth_reader import DepthReader

pytestmark = pytest.mark.dist
N_LAYERS = 6
RESIDUALS = ("attn_res:n_blocks=4", "two_phase:n_blocks=3")


def _build(residual: str, dtype: torch.dtype) -> Any:
    """Odd widths, a tied head, queries away from zero: the same model each time."""
    text = LlamaConfig(
        vocab_size=67,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: Any = AttnResForCausalLM(AttnResCausalLMConfig(text_config=text, residual=residual))
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(dtype).train()


def _tokens() -> Tensor:
    return torch.randint(67, (4, 9), generator=torch.Generator().manual_seed(1))


def _gradients(model: Any, tokens_BT: Tensor) -> dict[str, Tensor]:
    model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss.backward()
    return {name: whole(each.grad).float() for name, each in model.named_parameters()}


def _sharded(residual: str, dtype: torch.dtype, bfloat16: bool) -> tuple[Any, Tensor]:
    mesh = init_device_mesh("cpu", (2,))
    model = _build(residual, dtype)
    model.activation_checkpointing_enable()
    shard(model, mesh, bfloat16)
    return model, own_rows(_tokens(), mesh)


def _exact(rank: int, residual: str) -> dict[str, Tensor]:
    model, own_BT = _sharded(residual, torch.float64, bfloat16=False)
    assert all(isinstance(each, DTensor) for each in model.parameters())
    return _gradients(model, own_BT)


def _counted(rank: int) -> tuple[Counter, Counter]:
    """Collectives of a step, and how often an MLP and a reader begin in it."""
    model, own_BT = _sharded(RESIDUALS[0], torch.float32, bfloat16=False)
    calls: Counter[str] = Counter()
    model.model.layers[2].mlp.register_forward_pre_hook(lambda *_: calls.update(["mlp"]))
    model.residual.readers[5].register_forward_pre_hook(lambda *_: calls.update(["reader"]))
    with CommDebugMode() as sent:
        _gradients_alone(model, own_BT)
    return Counter({str(op): n for op, n in sent.get_comm_counts().items()}), calls


def _gradients_alone(model: Any, tokens_BT: Tensor) -> None:
    model(input_ids=tokens_BT, labels=tokens_BT, use_cache=False).loss.backward()


def _low(rank: int) -> tuple[set[str], dict[str, Tensor]]:
    """Dtypes seen while a model computes in bfloat16, and its gradients."""
    model, own_BT = _sharded(RESIDUALS[0], torch.float32, bfloat16=True)
    seen: set[str] = set()

    def look(module, arguments):
        for name, each in module.named_parameters(recurse=False):
            seen.add(f"{type(module).__name__.removeprefix('FSDP')}.{name} {each.dtype}")

    for module in model.modules():
        if isinstance(module, DepthReader | torch.nn.Linear | torch.nn.Embedding):
            module.register_forward_pre_hook(look)
    gradients = _gradients(model, own_BT)
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    return seen, gradients


def _everything(rank: int) -> dict[str, Any]:
    return {
        "exact": [_exact(rank, residual) for residual in RESIDUALS],
        "counted": _counted(rank),
        "low": _low(rank),
    }


def test_units_of_a_model_with_depth_attention():
    first, second = run_processes(_everything, 2, timeout_s=300)
    for residual, gradients in zip(RESIDUALS, first["exact"], strict=True):
        expected = _gradients(_build(residual, torch.float64), _tokens())
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=2e-6, atol=1e-9, msg=name)

    (sent, calls), n_units = first["counted"], N_LAYERS + 1
    assert calls == {"mlp": 2, "reader": 2}
    assert sent["c10d._reduce_scatter_base_"] == n_units
    # the root stays gathered from the forward to the end of the backward
    assert sent["c10d._allgather_base_"] == n_units + N_LAYERS
    assert first["counted"] == second["counted"]

    seen, gradients = first["low"]
    assert seen == {
        "DepthReader.query torch.float32",
        "DepthReader.key_weight torch.float32",
        "Linear.weight torch.bfloat16",
        "Embedding.weight torch.bfloat16",
    }
    exact = _by_kind(_gradients(_build(RESIDUALS[0], torch.float64), _tokens()))
    plain = _by_kind(_gradients(_build(RESIDUALS[0], torch.bfloat16), _tokens()))
    for name, gradient in _by_kind(gradients).items():
        assert_as_good_as(gradient, plain[name], exact[name], name)


def _by_kind(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """One budget for all layers and readers: luck of rounding decides in which one errs most."""
    kinds: dict[str, list[Tensor]] = {}
    for name, gradient in gradients.items():
        words = [word for word in name.split(".") if not word.isdecimal()]
        kinds.setdefault(".".join(words), []).append(gradient.flatten())
    return {name: torch.cat(each) for name, each in kinds.items()}
