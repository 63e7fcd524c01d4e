"""A read that gives its mix normed: the norm of Llama, and no other."""

from typing import Any

import pytest
import torch
from error_budget import EPS, assert_as_good_as, random_read
from implementations import needs_compiler
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from attnres.ops import cpu, cpu_build
from attnres.ops.cpu import CpuKernel
from attnres.ops.plain_norm import plain_norm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
VARIANTS = cpu_build.variants()


def norm_of(dim: int, kind: Any = LlamaRMSNorm, eps: float = 0.3, dtype=torch.float32):
    norm = kind(dim, eps=eps)
    nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(2))
    return norm.to(dtype)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder, found = tmp_path_factory.getbasetemp() / "variants", {VARIANTS[0]: cpu.kernel()}
    for variant in VARIANTS[1:]:
        file = cpu_build.library(variant, folder)
        found[variant] = CpuKernel(variant, file, f"cpu_norm_{variant}")
    return found


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n_sources", "shape"), [(1, (1, 1, 8)), (5, (2, 3, 123)), (9, (1, 512)), (3, (7, 1))]
)
def test_the_mix_is_normed_within_the_budget(n_sources, shape, dtype, variant, kernels):
    read, norm = random_read(n_sources, *shape, dtype=dtype), norm_of(shape[-1], dtype=dtype)
    given = [read.query_D], [read.key_weight_D], [*read.sources], EPS
    with torch.no_grad():
        mix = kernels[variant].quick.read(*given).mixes[0]
        found = kernels[variant].quick.read(*given, norm=plain_norm(norm, mix)).mixes[0]
        exact = mix.double()
        exact *= torch.rsqrt(exact.square().mean(-1, keepdim=True) + norm.variance_epsilon)
        assert_as_good_as(found, norm(mix), exact * norm.weight.double(), "normed mix")


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm])
def test_weight_and_epsilon_are_the_modules(kind):
    norm = norm_of(6, kind)
    found = plain_norm(norm, torch.zeros(2, 6))
    assert found is not None
    assert found.weight_D is norm.weight
    assert found.eps == norm.variance_epsilon == 0.3


class Scaled(LlamaRMSNorm):
    def forward(self, hidden_states):
        return 1.5 * super().forward(hidden_states)


class Biased(LlamaRMSNorm):
    def __init__(self, dim: int, eps: float):
        super().__init__(dim, eps=eps)
        self.bias = nn.Parameter(torch.ones(dim))

    def forward(self, hidden_states):
        return super().forward(hidden_states) + self.bias


class WithoutEpsilon(LlamaRMSNorm):
    def forward(self, hidden_states):
        return nn.functional.rms_norm(hidden_states, hidden_states.shape[-1:], self.weight, 1e-6)


@pytest.mark.parametrize(
    "norm",
    [norm_of(6, kind) for kind in (GemmaRMSNorm, GptOssRMSNorm, Scaled, Biased, WithoutEpsilon)]
    + [nn.RMSNorm(6), nn.LayerNorm(6), nn.Identity(), torch.relu],
    ids=lambda norm: type(norm).__name__,
)
def test_another_norm_is_called(norm):
    assert plain_norm(norm, torch.zeros(2, 6)) is None


class Subclass(torch.Tensor):
    pass


def hook(norm):
    norm.register_forward_hook(lambda *_: None)


def pre_hook(norm):
    norm.register_forward_pre_hook(lambda *_: None)


def forward(norm):
    norm.forward = torch.relu


def parameter(norm):
    norm.bias = nn.Parameter(torch.zeros(6))


def adapter(norm):
    norm.adapter = nn.Linear(6, 6)


def buffer(norm):
    norm.register_buffer("scale", torch.ones(6))


def view(norm):
    norm.weight = nn.Parameter(torch.ones(12)[::2])


def width(norm):
    norm.weight = nn.Parameter(torch.ones(1))


def dtype(norm):
    norm.bfloat16()


def subclass(norm):
    norm.weight = nn.Parameter(torch.ones(6).as_subclass(Subclass))


def epsilon(norm):
    norm.variance_epsilon = torch.tensor(0.3)


@pytest.mark.parametrize(
    "change",
    [
        hook,
        pre_hook,
        forward,
        parameter,
        adapter,
        buffer,
        view,
        width,
        dtype,
        subclass,
        epsilon,
    ],
)
def test_a_norm_that_is_listened_to_or_changed_is_called(change):
    norm = norm_of(6)
    assert plain_norm(norm, torch.zeros(2, 6)) is not None
    change(norm)
    assert plain_norm(norm, torch.zeros(2, 6)) is None


def test_a_class_whose_forward_was_replaced_is_asked_anew(monkeypatch):
    norm, forward = norm_of(6), LlamaRMSNorm.forward
    monkeypatch.setattr(LlamaRMSNorm, "forward", lambda norm, x: 2 * forward(norm, x))
    assert plain_norm(norm, torch.zeros(2, 6)) is None
    monkeypatch.undo()
    assert plain_norm(norm, torch.zeros(2, 6)) is not None


def test_float64_is_left_to_the_module_which_makes_float32_of_it():
    norm = norm_of(6).double()
    assert plain_norm(norm, torch.zeros(2, 6, dtype=torch.float64)) is None
