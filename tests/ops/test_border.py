"""The public border: what does not fit is refused with what was given; nothing falls back."""

import math
from types import SimpleNamespace

import pytest
import torch
from implementations import IMPLEMENTATIONS, install

from attnres import depth_attention, depth_weights
from attnres.ops import fastest_impl

every_op = pytest.mark.parametrize("op", [depth_attention, depth_weights])
D4 = torch.ones(4)
V = torch.ones(2, 3, 4)


@every_op
@pytest.mark.parametrize(
    ("query_D", "sources", "key_weight_D", "message"),
    [
        (D4, [], D4, "at least one source, got none"),
        (D4, [torch.tensor(1.0)], D4, r"shape \[..., D\] with D > 0, got \[\]"),
        (torch.ones(0), [torch.ones(2, 0)], torch.ones(0), r"with D > 0, got \[2, 0\]"),
        (
            D4,
            [V, V.int()],
            D4,
            r"source 1 must be floating point, 16 bits or more, got torch\.int32",
        ),
        (D4, [V.bool()], D4, r"source 0 must be floating point, 16 bits or more, got torch\.bool"),
        (
            D4,
            [V.to(torch.complex64)],
            D4,
            r"source 0 must be floating point, 16 bits or more, got torch\.complex64",
        ),
        (D4, [V.to(torch.float8_e5m2)], D4, r"source 0 must be .* got torch\.float8_e5m2"),
        (D4, [V, V.to_sparse()], D4, r"source 1 must be a dense tensor, got one of .*sparse_coo"),
        ([1.0] * 4, [V], D4, "query_D must be a tensor, got a list"),
        (D4, [V, V, V[:1]], D4, r"source 2 has \[1, 3, 4\], source 0 has \[2, 3, 4\]"),
        (D4, [V, D4], D4, r"source 1 has \[4\], source 0 has \[2, 3, 4\]"),
        (D4, [V, V.to("meta")], D4, "source 1 is on meta, source 0 on cpu"),
        (torch.ones(3), [V], D4, r"query_D must have shape \[4\].*got \[3\]"),
        (torch.ones(1, 4), [V], D4, r"query_D must have shape \[4\].*got \[1, 4\]"),
        (torch.ones(1), [V], D4, r"query_D must have shape \[4\].*got \[1\]"),
        (D4, [V], torch.ones(5), r"key_weight_D must have shape \[4\].*got \[5\]"),
        (D4.int(), [V], D4, r"query_D must be floating point, 16 bits or more, got torch\.int32"),
        (
            D4,
            [V],
            D4.long(),
            r"key_weight_D must be floating point, 16 bits or more, got torch\.int64",
        ),
        (D4.to("meta"), [V], D4, "query_D is on meta, the sources on cpu"),
        (D4, [V], D4.to("meta"), "key_weight_D is on meta, the sources on cpu"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(op, query_D, sources, key_weight_D, message):
    with pytest.raises(ValueError, match=message):
        op(query_D, sources, key_weight_D)


@every_op
@pytest.mark.parametrize("eps", [-1e-6, math.nan, math.inf])
def test_epsilon_must_be_finite_and_not_negative(op, eps):
    with pytest.raises(ValueError, match=f"eps must be finite and not negative, got {eps}"):
        op(D4, [V], D4, eps=eps)


@every_op
@pytest.mark.parametrize("name", ["no_such_kernel", "Reference", "", 3])
def test_an_unknown_implementation_is_an_error_that_names_the_known_ones(op, name):
    with pytest.raises(
        ValueError, match=f"{name!r}.*there are: closed_form, cpu, reference, triton"
    ):
        op(D4, [V], D4, impl=name)


@every_op
@pytest.mark.parametrize("impl", [None, *IMPLEMENTATIONS])
def test_the_implementation_asked_for_is_the_one_that_runs(op, impl, monkeypatch):
    called = []

    def record(name):
        return lambda query_D, sources, *_: called.append(name) or sources[0]

    for name in IMPLEMENTATIONS:
        fake = SimpleNamespace(depth_attention=record(name), depth_weights=record(name))
        install(monkeypatch, name, fake)
    op(D4, [V, V], D4, impl=impl)
    assert called == [impl or fastest_impl(V.device)]


def test_fastest_impl_exists_for_devices_without_a_kernel():
    assert fastest_impl(torch.device("meta")) == "closed_form"


@every_op
def test_a_list_a_tuple_and_a_stack_of_sources_are_alike(op):
    v_SD = torch.randn(3, 2, 4)
    query_D = torch.randn(4)
    expected = op(query_D, list(v_SD), D4)
    assert torch.equal(op(query_D, tuple(v_SD), D4), expected)


@every_op
@pytest.mark.parametrize("source_dim", [2, -1, -4, 0.0, None])
def test_the_axis_of_the_sources_is_one_before_the_last(op, source_dim):
    with pytest.raises(ValueError, match=rf"before the last of \[2, 3, 4\], got {source_dim}"):
        op(D4, V, D4, source_dim=source_dim)
