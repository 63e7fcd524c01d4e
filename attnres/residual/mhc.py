"""Manifold-constrained Hyper-Connections: streams mixed so that their mean is kept
(arXiv:2512.24880).

    h_l = sum_i p_i X_i        X'_i = sum_j H_ij X_j + q_i f_l(h_l)        over n streams
    p = sigmoid(s x P + b)     q = 2 sigmoid(s' x P' + b')     H = constraint(s'' x P'' + b'')

where x is all streams of a token in one vector, [N D], over its root mean square. P is zero and
s is 0.01 at the start. The constraint makes H doubly stochastic:

    "sinkhorn"     rows and columns of exp(.) normed in turn, 20 times (the paper)
    "permutation"  a convex sum of the n! permutations, by a softmax (arXiv:2601.05732)
    "identity"     H = 1 (arXiv:2607.28611)

Left open, and chosen here: the norm has no gain, which would be a factor of P. H starts near the
identity: logits 0 for it and -8 for the rest, as arXiv:2601.05732 has them. As in Hyper-Connections
the last step is the mean of the streams. q starts at 1 and p adds up to 1, so that every start is
the standard model, for streams that begin alike.

How p starts matters afterwards. With "even", p = 1/n, streams begin alike and get the same
gradients, so that nothing but the data's noise would part them: they stay one (arXiv:2606.03483).
With "cyclic", the default, stream l mod n has 0.9 and the others share the rest, in the manner of
Hyper-Connections; a sigmoid reaches no 1.

The first sublayer has no H: all streams are one before it, and a mix of rows that add up to 1 is
that one, whatever its weights.

What is learned of b is the difference to the start. P decays as the model's matrices do; b and s do
not.
"""

import math
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from attnres.layout import check_count
from attnres.ops.border import check_eps
from attnres.residual.arithmetic import project, rms_normed, weighted, wide
from attnres.residual.base import Output, Traffic, Tuning, whole
from attnres.residual.streams import Streams

Constraint = Literal["sinkhorn", "permutation", "identity"]
Reading = Literal["cyclic", "even"]

START_SCALE = 0.01  # arXiv:2512.24880
N_ITERATIONS = 20  # arXiv:2512.24880
START_LOGIT = -8.0  # of what is not the identity; arXiv:2601.05732
MAIN_SHARE = 0.9  # of stream l mod n in what sublayer l reads at the start
MOST_PERMUTED = 5  # streams; 120 permutations


class Coefficients(nn.Module):
    """s x P + b, where b is what is learned and the start."""

    def __init__(self, dim: int, start: list[float]):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, len(start)))
        self.bias = nn.Parameter(torch.empty(len(start)))
        self.scale = nn.Parameter(torch.empty(1))
        self.start = start
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.constant_(self.scale, START_SCALE)

    def forward(self, x_D: Tensor) -> Tensor:
        change_C = self.scale * project(x_D, self.weight) + self.bias
        return change_C + torch.tensor(self.start, dtype=change_C.dtype, device=change_C.device)


class Connection(nn.Module):
    """The weights of one sublayer: what it reads, how streams go on, what each gets of it."""

    def __init__(
        self, dim: int, n_streams: int, depth: int, constraint: Constraint, reading: Reading
    ):
        super().__init__()
        self.n_streams, self.constraint = n_streams, constraint
        shares = start_shares(n_streams, depth, reading)
        self.read = Coefficients(n_streams * dim, [math.log(p / (1 - p)) for p in shares])
        self.write = Coefficients(n_streams * dim, [0.0] * n_streams)
        start = start_logits(n_streams, constraint) if depth else []  # streams are one at first
        self.carry = Coefficients(n_streams * dim, start) if start else None

    def reset_parameters(self) -> None:
        for coefficients in (self.read, self.write, self.carry):
            if coefficients is not None:
                coefficients.reset_parameters()

    def read_weights(self, x_D: Tensor) -> Tensor:
        """p, [..., N]."""
        return torch.sigmoid(self.read(x_D))

    def write_weights(self, x_D: Tensor) -> Tensor:
        """q, [..., N]."""
        return 2 * torch.sigmoid(self.write(x_D))

    def carry_weights(self, x_D: Tensor) -> Tensor | None:
        """H, [..., N, N], or None for the identity."""
        if self.carry is None:
            return None
        logits = self.carry(x_D)
        if self.constraint == "permutation":
            return mean_permutation(logits, self.n_streams)
        return sinkhorn(logits.unflatten(-1, (self.n_streams, self.n_streams)))


class ManifoldHyperConnections(Streams):
    """The state is all streams, [..., N, D].

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers.
        n_streams: number of streams, two or more.
        constraint: "sinkhorn", "permutation" (up to five streams) or "identity".
        reading: how shares of the streams start, "cyclic" or "even".
        eps: RMSNorm epsilon of what the weights are made of.

    Raises:
        ValueError: a size that is not positive, too few or too many streams, an unknown constraint
            or reading, an epsilon that is negative or not finite.
    """

    def __init__(
        self,
        dim: int,
        n_sublayers: int,
        n_streams: int = 4,
        constraint: Constraint = "sinkhorn",
        reading: Reading = "cyclic",
        eps: float = 1e-6,
    ):
        super().__init__()
        check_count("dim", dim)
        check_count("n_sublayers", n_sublayers)
        _check_settings(n_streams, constraint, reading, eps)
        self.dim, self.n_sublayers, self.eps = dim, n_sublayers, eps
        self.n_streams, self.constraint = n_streams, constraint
        self.connections = nn.ModuleList(
            Connection(dim, n_streams, depth, constraint, reading) for depth in range(n_sublayers)
        )

    def read(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        weight_N = self.connection(depth).read_weights(self._normed(state))
        return weighted("...i,...id->...d", weight_N, state), state

    def write(self, state: Tensor, depth: int, out_BTD: Output) -> Tensor:
        connection: Connection = self.connection(depth)
        out_BT1D = whole(out_BTD, state[..., 0, :], depth).unsqueeze(-2)
        x_D, carried_BTND = self._normed(state), wide(state)
        carry_NN = connection.carry_weights(x_D)
        if carry_NN is not None:
            carried_BTND = weighted("...ij,...jd->...id", carry_NN, carried_BTND)
        weight_N1 = connection.write_weights(x_D).unsqueeze(-1)
        return (carried_BTND + weight_N1 * wide(out_BT1D)).to(state.dtype)

    def traffic(self, depth: int) -> Traffic:
        """(8n + 2) with the parts as in arXiv:2603.15031, table 1, which goes step by step.

        Weights of the token read n; the mix of what is read n and 1 written; the output's share 1
        and n; the streams' mix n and n, which the identity saves, and the first sublayer; the sum
        2n and n.
        """
        n, is_mixed = self.n_streams, self.connection(depth).carry is not None
        return Traffic((5 if is_mixed else 4) * n + 1, (3 if is_mixed else 2) * n + 1)

    def tuning(self) -> tuple[Tuning, ...]:
        """P decays; b and s do not."""
        names = [name for name, _ in self.named_parameters()]
        weights = tuple(name for name in names if name.endswith("weight"))
        others = tuple(name for name in names if name not in weights)
        return Tuning(weights, is_decayed=True), Tuning(others)

    def _normed(self, state: Tensor) -> Tensor:
        """All streams of a token as one vector over its root mean square, [..., N D]."""
        return rms_normed(state[..., : self.dim].flatten(-2), self.eps)


def sinkhorn(logits_NN: Tensor) -> Tensor:
    """exp(logits) with columns and rows normed in turn, rows last; in logarithms, for any size.

    Tokens go last meanwhile: a norm over four neighbours takes six times as long.
    """
    logits = logits_NN.movedim((-2, -1), (0, 1)).contiguous()  # [N, N, ...]
    for _ in range(N_ITERATIONS):
        logits = logits.log_softmax(0).log_softmax(1)
    return logits.exp().movedim((0, 1), (-2, -1))


def mean_permutation(logits_C: Tensor, n_streams: int) -> Tensor:
    """The sum of all permutation matrices, weighed by a softmax, [..., N, N]."""
    order_CN = torch.tensor(list(permutations(range(n_streams))), device=logits_C.device)
    matrix_CNN = torch.eye(n_streams, dtype=logits_C.dtype, device=logits_C.device)[order_CN]
    return weighted("...c,cij->...ij", logits_C.softmax(-1), matrix_CNN)


def start_shares(n_streams: int, depth: int, reading: Reading) -> list[float]:
    """p of each stream at the start; they add up to 1."""
    if reading == "even":
        return [1 / n_streams] * n_streams
    other = (1 - MAIN_SHARE) / (n_streams - 1)
    return [MAIN_SHARE if i == depth % n_streams else other for i in range(n_streams)]


def start_logits(n_streams: int, constraint: Constraint) -> list[float]:
    """What the constraint gets at the start, for an H near the identity; none for the identity."""
    match constraint:
        case "sinkhorn":
            places = range(n_streams * n_streams)
            return [0.0 if i % (n_streams + 1) == 0 else START_LOGIT for i in places]
        case "permutation":
            return [0.0] + [START_LOGIT] * (math.factorial(n_streams) - 1)
        case _:
            return []


@dataclass(frozen=True, kw_only=True)
class ManifoldHyperConnectionsConfig:
    """Four streams, mixed by a matrix that Sinkhorn's iteration makes doubly stochastic."""

    n_streams: int = 4
    constraint: Constraint = "sinkhorn"
    reading: Reading = "cyclic"
    eps: float = 1e-6

    def __post_init__(self):
        _check_settings(self.n_streams, self.constraint, self.reading, self.eps)

    def build(self, dim: int, n_sublayers: int) -> ManifoldHyperConnections:
        settings = (self.n_streams, self.constraint, self.reading, self.eps)
        return ManifoldHyperConnections(dim, n_sublayers, *settings)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape.

        The start is part of it, as what is learned is the difference to it.
        """
        return {"constraint": self.constraint, "reading": self.reading, "eps": self.eps}


def _check_settings(n_streams: int, constraint: object, reading: object, eps: float) -> None:
    check_count("n_streams", n_streams)
    if n_streams < 2:
        raise ValueError(f"n_streams must be 2 or more, got {n_streams}")
    if constraint not in get_args(Constraint):
        known = ", ".join(get_args(Constraint))
        raise ValueError(f"constraint must be one of {known}, got {constraint!r}")
    if constraint == "permutation" and n_streams > MOST_PERMUTED:
        raise ValueError(
            f"n_streams must be up to {MOST_PERMUTED} for all permutations, got {n_streams}"
        )
    if reading not in get_args(Reading):
        raise ValueError(f"reading must be 'cyclic' or 'even', got {reading!r}")
    check_eps(eps)
