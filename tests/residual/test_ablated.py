"""Each ablation of AttnRes: by hand, as AttnRes where it changes nothing, and where it starts."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from error_budget import assert_as_good_as
from torch import Tensor, nn

from attnres import AttnRes, BlockLayout
from attnres.analysis.mixing import mixing_matrix
from attnres.residual import AttnResConfig, Ways, format_residual
from attnres.residual.ablated import Ablated, counts
from attnres.residual.ablations import Ablations

DIM, N_SUBLAYERS, EPS = 6, 4, 1e-3
Row = list[float]  # one token of one vector
Read = tuple[Row, ...]  # a mix, or those of query and key, and of values


def build(**changes: Any) -> Any:
    """Over four sublayers in float64, with every parameter drawn."""
    units = {name: changes.pop(name) for name in ("sublayers_per_block",) if name in changes}
    residual = AttnResConfig(eps=EPS, **units, **changes).build(DIM, N_SUBLAYERS).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in residual.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(noise)
    return residual


def random_outputs(*shape: int, n: int = N_SUBLAYERS + 1) -> list[Tensor]:
    """The embedding and the output of every sublayer, of unequal size."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    return [out_D * (1 + i % 3) for i, out_D in enumerate(normal)]


def read_all(residual: Any, outputs: list[Tensor]) -> list[Any]:
    """What every reader reads of outputs that do not depend on it."""
    state, reads = residual.start(outputs[0]), []
    for depth, out_BTD in enumerate(outputs[1:]):
        h_BTD, state = residual.read(state, depth)
        reads.append(h_BTD)
        state = residual.write(state, depth, out_BTD)
    return [*reads, residual.finish(state)]


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def key(source: Row, gain: Row | None) -> Row:
    if gain is None:
        return source
    rms = math.sqrt(sum(x * x for x in source) / len(source) + EPS)
    return [g * x / rms for g, x in zip(gain, source, strict=True)]


def softmax(logits: Row, null: float | None = None) -> Row:
    total = sum(map(math.exp, logits)) + (0 if null is None else math.exp(null))
    return [math.exp(x) / total for x in logits]


def mix(weights: Row, sources: list[Row]) -> Row:
    pairs = list(zip(weights, sources, strict=True))
    return [sum(w * s[d] for w, s in pairs) for d in range(len(sources[0]))]


def plain(p: dict[str, Any], sources: list[Row], name: str = "query") -> Row:
    gain = p.get("key_weight")
    return softmax([dot(p[name], key(source, gain)) for source in sources])


def projected(p, sources, before):
    query = [dot(row, before) for row in p["query"]]
    return (mix(plain({**p, "query": query}, sources), sources),)


def scalars(p, sources, before):
    return (mix(softmax(p["scalars"]), sources),)


def sigmoid(p, sources, before):
    logits = [dot(p["query"], key(source, p["key_weight"])) for source in sources]
    return (mix([1 / (1 + math.exp(-x)) for x in logits], sources),)


def one_route(p, sources, before):
    """With or without a gain, as the parameters have it."""
    return (mix(plain(p, sources), sources),)


def three_heads(p, sources, before):
    keys = [key(source, p["key_weight"]) for source in sources]
    mixes: Row = []
    for head in (slice(0, 2), slice(2, 4), slice(4, 6)):
        weights = softmax([dot(p["query"][head], k[head]) for k in keys])
        mixes += mix(weights, [source[head] for source in sources])
    return (mixes,)


def last_four_channels(p, sources, before):
    logits = [dot(p["query"], key(source[2:], p["key_weight"])) for source in sources]
    return (mix(softmax(logits), sources),)


def null(p, sources, before):
    logits = [dot(p["query"], key(source, p["key_weight"])) for source in sources]
    return (mix(softmax(logits, p["null_logit"][0]), sources),)


def routes(p, sources, before):
    names = ("query", "value_query") if "value_query" in p else ("query",)
    return tuple(mix(plain(p, sources, name), sources) for name in names)


BY_HAND: dict[Any, Any] = {
    AttnResConfig(query="input"): projected,
    AttnResConfig(weights="scalars"): scalars,
    AttnResConfig(kernel="sigmoid"): sigmoid,
    AttnResConfig(key_norm=False): one_route,
    AttnResConfig(query_std=0.5): one_route,
    AttnResConfig(n_heads=3): three_heads,
    AttnResConfig(key_rank=4): last_four_channels,
    AttnResConfig(null_source=True): null,
    AttnResConfig(routes="qk_v"): routes,
}
COUNTED = AttnResConfig(sublayers_per_block=3, count_prior=1.5, count_power=0.5)
every_ablation = pytest.mark.parametrize("config", [*BY_HAND, COUNTED], ids=format_residual)


def parameters_of(residual: Any, depth: int) -> dict[str, Any]:
    return {name: x.tolist() for name, x in residual.readers[depth].named_parameters()}


def as_rows(read: Any) -> Read:
    if not isinstance(read, Ways):
        return (read.tolist(),)
    assert read.query_BTD is read.key_BTD
    return (read.key_BTD.tolist(), read.value_BTD.tolist())


@pytest.mark.parametrize(("config", "by_hand"), BY_HAND.items(), ids=map(format_residual, BY_HAND))
def test_reads_are_those_worked_out_by_hand(config, by_hand):
    changes = config.ablations.changes()
    residual, outputs = build(**changes), random_outputs(DIM)
    rows = [out_D.tolist() for out_D in outputs]
    before: Row = rows[0]
    for depth, read in enumerate(read_all(residual, outputs)):
        if depth == 0:
            assert torch.equal(read, outputs[0])
            continue
        expected = by_hand(parameters_of(residual, depth), rows[: depth + 1], before)
        before = expected[-1]
        assert len(as_rows(read)) == len(expected) == 1 + residual.has_ways(depth)
        for mixed, value in zip(as_rows(read), expected, strict=True):
            assert mixed == pytest.approx(value, rel=1e-12)


def test_counted_sources_are_those_worked_out_by_hand():
    """Blocks of three and of one: sums over the root of their count, logits with 1.5 log(count)."""
    residual = build(sublayers_per_block=3, count_prior=1.5, count_power=0.5)
    outputs = random_outputs(DIM)
    *_, fourth, last = read_all(residual, outputs)
    total_D = outputs[1] + outputs[2] + outputs[3]
    for depth, read, sources in [
        (3, fourth, [outputs[0], total_D]),
        (4, last, [outputs[0], total_D, outputs[4]]),
    ]:
        p, n = parameters_of(residual, depth), [1, 3, 1][: len(sources)]
        rows = [(s / c**0.5).tolist() for s, c in zip(sources, n, strict=True)]
        logits = [dot(p["query"], key(row, p["key_weight"])) for row in rows]
        logits = [x + 1.5 * math.log(c) for x, c in zip(logits, n, strict=True)]
        assert read.tolist() == pytest.approx(mix(softmax(logits), rows), rel=1e-12)


def test_counts_are_outputs_in_each_source():
    layout = BlockLayout.of(7, sublayers_per_block=3)
    found = [counts(layout, depth) for depth in range(8)]
    expected = [(1,), (1, 1), (1, 2), (1, 3), (1, 3, 1), (1, 3, 2), (1, 3, 3), (1, 3, 3, 1)]
    assert found == expected
    assert [len(each) for each in found] == [layout.n_sources(depth) for depth in range(8)]


NEUTRAL: list[dict[str, Any]] = [
    {"kernel": "softmax"},
    {"key_norm": True},
    {"n_heads": 1},
    {"key_rank": 13},
    {"null_source": False},
    {"count_prior": 0.0},
]


@pytest.mark.parametrize("changes", NEUTRAL, ids=str)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_change_that_is_none_is_attn_res_within_the_error_budget(changes, size, dtype):
    """Several draws share one budget: luck of rounding decides which one errs most."""
    layout = BlockLayout.of(5, sublayers_per_block=size)
    ours = Ablated(13, layout, Ablations(**changes))
    plain = AttnRes(13, layout, impl="reference")
    drawn = [as_ablated_and_plain(ours, plain, seed, dtype) for seed in range(8)]
    actual, expected, exact = (_together(values) for values in zip(*drawn, strict=True))
    for name, value in actual.items():
        assert_as_good_as(value, expected[name], exact[name], name)


def as_ablated_and_plain(
    ours: Any, plain: Any, seed: int, dtype: torch.dtype
) -> tuple[dict[str, Tensor], ...]:
    """What both compute with the same drawn parameters, and the plain one in float64."""
    outputs, generator = random_outputs(2, 7, 13, n=6), torch.Generator().manual_seed(seed)
    for parameter in plain.parameters():
        nn.init.normal_(parameter, generator=generator)
    ours.load_state_dict(plain.state_dict())
    exact = forward_backward(plain.double(), outputs, torch.float64)
    expected = forward_backward(plain.float(), outputs, dtype)
    return forward_backward(ours, outputs, dtype), expected, exact


def _together(draws: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}


def forward_backward(residual: Any, outputs: list[Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """All reads, and the gradients of all outputs and of every parameter."""
    leaves = [out_BTD.to(dtype).requires_grad_() for out_BTD in outputs]
    reads_RBTD = torch.stack(read_all(residual, leaves))
    upstream = torch.randn(reads_RBTD.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    parameters = dict(residual.named_parameters())
    gradients = torch.autograd.grad(reads_RBTD, [*leaves, *parameters.values()], upstream)
    n = len(leaves)
    return {
        "reads": reads_RBTD.detach(),
        "outputs": torch.stack(gradients[:n]),
        **_stacked(dict(zip(parameters, gradients[n:], strict=True))),
    }


def _stacked(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """All readers share one budget: luck of rounding decides which one errs most."""
    kinds = {name.rpartition(".")[2]: [] for name in gradients}
    for name, gradient in gradients.items():
        kinds[name.rpartition(".")[2]].append(gradient)
    return {kind: torch.stack(found) for kind, found in kinds.items()}


@every_ablation
def test_a_start_is_what_it_is_said_to_be(config):
    residual = config.build(DIM, N_SUBLAYERS).double()
    assert starts_as_multiple(residual) == (residual.starts_as == "multiple")


def starts_as_multiple(residual: Any) -> bool:
    outputs = random_outputs(2, 3, DIM)
    sums = torch.stack(outputs).cumsum(dim=0)
    pairs = zip(read_all(residual, outputs), sums, strict=True)
    ways = [(read if isinstance(read, Ways) else (read,), total) for read, total in pairs]
    return all(is_multiple_of(way, total) for each, total in ways for way in each)


def is_multiple_of(read_BTD: Tensor, sum_BTD: Tensor) -> bool:
    factor = (read_BTD * sum_BTD).sum() / sum_BTD.square().sum()
    return bool(factor > 0 and (read_BTD - factor * sum_BTD).norm() < 1e-12 * read_BTD.norm())


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("prior", [0.0, 0.5, 1.0])
def test_counted_sources_start_as_the_stream_where_power_is_prior(power, prior):
    config = AttnResConfig(sublayers_per_block=3, count_prior=prior, count_power=power)
    residual = config.build(DIM, N_SUBLAYERS).double()
    assert starts_as_multiple(residual) == (power == prior)
    assert (residual.starts_as == "multiple") == (power == prior)


def test_a_power_that_is_not_given_is_the_prior():
    given = AttnResConfig(n_blocks=2, count_prior=1.0, count_power=1.0)
    left_out = AttnResConfig(n_blocks=2, count_prior=1)
    assert left_out.ablations.alpha == 1
    assert left_out.describe(4) == given.describe(4)


def test_sigmoids_start_at_half_the_stream():
    outputs = random_outputs(DIM)
    reads = read_all(AttnResConfig(kernel="sigmoid").build(DIM, N_SUBLAYERS).double(), outputs)
    torch.testing.assert_close(reads[-1], sum(outputs[1:], outputs[0]) / 2)


def test_a_random_query_has_its_deviation_and_draws_anew():
    residual: Any = AttnResConfig(query_std=0.02).build(5000, 2)
    query_D = residual.readers[1].query
    assert query_D.std().item() == pytest.approx(0.02, rel=0.1)
    before = query_D.detach().clone()
    residual.reset_parameters()
    assert not torch.equal(query_D, before)


@every_ablation
def test_a_fresh_method_is_untrained_until_a_query_is_not_zero(config):
    residual = config.build(DIM, N_SUBLAYERS)
    assert residual.is_untrained() == (config.query_std is None)
    reader = residual.readers[2]
    nn.init.ones_(
        next(x for x in (reader.value_query, reader.scalars, reader.query) if x is not None)
    )
    assert not residual.is_untrained()


ONE_WEIGHT = [config for config in (*BY_HAND, COUNTED) if config.n_heads is None]


@pytest.mark.parametrize("config", ONE_WEIGHT, ids=format_residual)
def test_mixing_rebuilds_what_is_read(config):
    residual = build(sublayers_per_block=config.sublayers_per_block, **config.ablations.changes())
    outputs = random_outputs(2, 3, DIM)
    for read, row_LBT in zip(
        read_all(residual, outputs), mixing_matrix(residual, outputs), strict=True
    ):
        value_BTD = read.value_BTD if isinstance(read, Ways) else read
        rebuilt_BTD = torch.einsum("lbt,lbtd->btd", row_LBT, torch.stack(outputs))
        torch.testing.assert_close(rebuilt_BTD, value_BTD, atol=1e-12, rtol=1e-12)


def test_mixing_of_heads_is_their_mean():
    residual, outputs = build(n_heads=3), random_outputs(DIM)
    mixing_RL = mixing_matrix(residual, outputs)
    p, rows = parameters_of(residual, 4), [out_D.tolist() for out_D in outputs]
    keys = [key(row, p["key_weight"]) for row in rows]
    heads = [slice(0, 2), slice(2, 4), slice(4, 6)]
    weights = [softmax([dot(p["query"][head], k[head]) for k in keys]) for head in heads]
    means = [sum(column) / 3 for column in zip(*weights, strict=True)]
    assert mixing_RL[4].tolist() == pytest.approx(means, rel=1e-12)
    state = residual.start(outputs[0])
    for depth, out_D in enumerate(outputs[1:]):
        state = residual.write(state, depth, out_D)
    assert residual.weights(state, 4).tolist() == pytest.approx(means, rel=1e-12)
