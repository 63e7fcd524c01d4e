"""The forms that keep a model as it was: centered is `Standard` bit for bit at zero queries."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnres import AttnRes, BlockLayout, Residual, Standard
from attnres.residual import Centered, Summed

DIM, N_SUBLAYERS = 24, 7
LAYOUTS = {
    "full": BlockLayout.full(N_SUBLAYERS),
    "blocks of 3": BlockLayout.of(N_SUBLAYERS, sublayers_per_block=3),
    "one block": BlockLayout((7,)),
    "ragged": BlockLayout((1, 4, 2)),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)


class Branches(nn.Module):
    """Sublayers without an input norm, so that any scale of what they read shows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linears = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(N_SUBLAYERS))

    def run(self, residual: Residual[Any], embed_TD: Tensor) -> Tensor:
        state = residual.start(embed_TD)
        for depth, linear in enumerate(self.linears):
            h_TD, state = residual.read(state, depth)
            state = residual.write(state, depth, torch.sin(linear(h_TD)))
        return residual.finish(state)


def forward_backward(residual: Residual[Any], dtype: torch.dtype) -> dict[str, Tensor]:
    branches = Branches().to(dtype)
    generator = torch.Generator().manual_seed(1)
    embed_TD = torch.randn(5, DIM, generator=generator).to(dtype).requires_grad_()
    out_TD = branches.run(residual.to(dtype), embed_TD)
    parameters = dict(branches.named_parameters())
    readers = dict(residual.named_parameters())
    upstream_TD = torch.randn(5, DIM, generator=generator).to(dtype)
    gradients = torch.autograd.grad(
        out_TD, [embed_TD, *parameters.values(), *readers.values()], upstream_TD
    )
    names = ["out", "embed", *parameters, *readers]
    return dict(zip(names, [out_TD.detach(), *gradients], strict=True))


def trained(residual: Any) -> Any:
    generator = torch.Generator().manual_seed(2)
    for name, parameter in residual.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise / 3 if name.endswith("query") else 1 + noise / 4)
    return residual


@every_layout
@every_dtype
def test_zero_queries_give_output_and_gradients_of_the_standard_residual(layout, dtype):
    expected = forward_backward(Standard(N_SUBLAYERS), dtype)
    actual = forward_backward(Centered(DIM, layout), dtype)
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


@every_layout
@pytest.mark.parametrize("share_gradients", [True, False])
def test_every_query_has_a_gradient_at_the_start(layout, share_gradients):
    residual = Centered(DIM, layout, share_gradients=share_gradients)
    found = forward_backward(residual, torch.float32)
    queries = [value for name, value in found.items() if name.endswith("query")]
    assert len(queries) == N_SUBLAYERS
    assert all(query.abs().max() > 1e-3 for query in queries)


@every_layout
def test_sum_with_zero_queries_is_the_standard_residual_to_rounding(layout):
    expected = forward_backward(Standard(N_SUBLAYERS), torch.float64)
    actual = forward_backward(Summed(DIM, layout), torch.float64)
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-12, atol=1e-13)


@every_layout
def test_the_three_forms_are_one_model_for_every_query(layout):
    """In float64, where the mean form is read through branches that multiply by n."""
    summed = trained(Summed(DIM, layout))
    centered = Centered(DIM, layout)
    centered.load_state_dict(summed.state_dict())
    expected = forward_backward(summed, torch.float64)
    for name, value in forward_backward(centered, torch.float64).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-11, msg=name)
    mean = AttnRes(DIM, layout)
    mean.load_state_dict(summed.state_dict())
    mean.double()
    embed_TD = torch.randn(5, DIM, dtype=torch.float64)
    states: list[Any] = [residual.start(embed_TD) for residual in (mean, centered)]
    for depth in range(N_SUBLAYERS):
        (mix_TD, _), (h_TD, _) = mean.read(states[0], depth), centered.read(states[1], depth)
        torch.testing.assert_close(layout.n_sources(depth) * mix_TD, h_TD)
        out_TD = torch.randn(5, DIM, dtype=torch.float64)
        states = [r.write(s, depth, out_TD) for r, s in zip((mean, centered), states, strict=True)]
        assert torch.equal(
            mean.weights(states[0], depth + 1), centered.weights(states[1], depth + 1)
        )


def test_readers_know_whether_they_are_trained():
    residual = Centered(DIM, LAYOUTS["full"])
    assert residual.is_untrained()
    residual.readers[-1].get_parameter("key_weight").data.fill_(2.0)
    assert residual.is_untrained()
    residual.readers[3].get_parameter("query").data[5] = 1e-30
    assert not residual.is_untrained()
    assert not Standard(3).is_untrained()


def test_the_stream_is_the_ordinary_sum_of_all_outputs():
    residual = Centered(DIM, LAYOUTS["blocks of 3"])
    state = residual.start(torch.ones(2, DIM))
    for depth in range(N_SUBLAYERS):
        state = residual.write(state, depth, torch.full((2, DIM), 2.0**depth))
        assert torch.equal(residual.stream(state), torch.full((2, DIM), 2.0 ** (depth + 1)))
