"""Hyper-Connections: n copies of the stream, mixed at every sublayer (arXiv:2409.19606).

    h_l = sum_i a_i X_i        X'_j = sum_i A_ij X_i + b_j f_l(h_l)        over streams i, j

Static: a, A and b are learned. Dynamic: each gets a part that depends on the token,

    a_i += s tanh(x_i . w_a)    A_ij += s tanh(x_i . W_j)    b_i += s' tanh(x_i . w_b)

where x_i = X_i / rms(X_i) is stream i alone, normed. The start is a = e_{l mod n}, A = 1, b = 1,
W = 0, s = s' = 0.01. What is learned of a, A and b is the difference to that, so that zero is the
start. The norm has no gain, which would be a factor of W.

All streams begin as the embedding. The paper ends with their sum; here it is their mean, so that a
model starts exactly as the standard one, whatever reads it; the final norm takes the difference
away, up to its epsilon.

Where b is learned apart for each stream and reads differ by depth, streams come to differ. The
dynamic matrices decay as the model's do; what is static and the scales do not, or gates would be
pulled to the start.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnres.layout import check_count
from attnres.ops.border import check_eps
from attnres.residual.arithmetic import project, rms_normed, weighted, wide
from attnres.residual.base import Output, Traffic, Tuning, check_depth, whole
from attnres.residual.streams import Streams

START_SCALE = 0.01  # of what depends on the token; arXiv:2409.19606


class Connection(nn.Module):
    """The weights of one sublayer: what it reads, how streams go on, what each gets of it."""

    def __init__(self, dim: int, n_streams: int, depth: int, dynamic: bool, eps: float):
        super().__init__()
        self.n_streams, self.newest, self.eps = n_streams, depth % n_streams, eps
        self.read = nn.Parameter(torch.empty(n_streams))
        self.carry = nn.Parameter(torch.empty(n_streams, n_streams))
        self.write = nn.Parameter(torch.empty(n_streams))
        self.dynamic = Dynamic(dim, n_streams) if dynamic else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for difference in (self.read, self.carry, self.write):
            nn.init.zeros_(difference)
        if self.dynamic is not None:
            self.dynamic.reset_parameters()

    def read_weights(self, streams_ND: Tensor) -> Tensor:
        """a, [..., N]."""
        read_N = wide(self.read)
        weight_N = read_N + _identity(read_N)[self.newest]
        if self.dynamic is None:
            return weight_N
        logit_N1 = project(rms_normed(streams_ND, self.eps), self.dynamic.read)
        return weight_N + self.dynamic.scale * torch.tanh(logit_N1).squeeze(-1)

    def carry_and_write_weights(self, streams_ND: Tensor) -> tuple[Tensor, Tensor]:
        """A, [..., N, N], and b, [..., N]."""
        carry_NN = wide(self.carry)
        carry_NN, write_N = carry_NN + _identity(carry_NN), wide(self.write) + 1
        if self.dynamic is None:
            return carry_NN, write_N
        normed_ND = rms_normed(streams_ND, self.eps)
        change_NN = torch.tanh(project(normed_ND, self.dynamic.carry))
        change_N = torch.tanh(project(normed_ND, self.dynamic.write)).squeeze(-1)
        carry_NN = carry_NN + self.dynamic.scale * change_NN
        return carry_NN, write_N + self.dynamic.write_scale * change_N


def _identity(like_N: Tensor) -> Tensor:
    return torch.eye(like_N.shape[-1], dtype=like_N.dtype, device=like_N.device)


class Dynamic(nn.Module):
    """The parameters of what depends on the token."""

    def __init__(self, dim: int, n_streams: int):
        super().__init__()
        self.read = nn.Parameter(torch.empty(dim, 1))
        self.carry = nn.Parameter(torch.empty(dim, n_streams))
        self.write = nn.Parameter(torch.empty(dim, 1))
        self.scale = nn.Parameter(torch.empty(1))
        self.write_scale = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for matrix in (self.read, self.carry, self.write):
            nn.init.zeros_(matrix)
        for scale in (self.scale, self.write_scale):
            nn.init.constant_(scale, START_SCALE)


class HyperConnections(Streams):
    """The state is all streams, [..., N, D].

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers.
        n_streams: number of streams; one does not help, by the paper.
        dynamic: whether weights depend on the token.
        eps: RMSNorm epsilon of what dynamic weights are made of.

    Raises:
        ValueError: a size that is not positive, a `dynamic` that is no bool, an epsilon that is
            negative or not finite.
    """

    def __init__(
        self,
        dim: int,
        n_sublayers: int,
        n_streams: int = 4,
        dynamic: bool = True,
        eps: float = 1e-6,
    ):
        super().__init__()
        check_count("dim", dim)
        check_count("n_sublayers", n_sublayers)
        _check_settings(n_streams, dynamic, eps)
        self.dim, self.n_sublayers = dim, n_sublayers
        self.n_streams, self.is_dynamic = n_streams, dynamic
        self.connections = nn.ModuleList(
            Connection(dim, n_streams, depth, dynamic, eps) for depth in range(n_sublayers)
        )

    def read(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        weight_N = self.connection(depth).read_weights(state[..., : self.dim])
        return weighted("...i,...id->...d", weight_N, state), state

    def write(self, state: Tensor, depth: int, out_BTD: Output) -> Tensor:
        connection: Connection = self.connection(depth)
        out_BT1D = whole(out_BTD, state[..., 0, :], depth).unsqueeze(-2)
        carry_NN, write_N = connection.carry_and_write_weights(state[..., : self.dim])
        carried_BTND = weighted("...ij,...id->...jd", carry_NN, wide(state))
        return (carried_BTND + write_N.unsqueeze(-1) * wide(out_BT1D)).to(state.dtype)

    def traffic(self, depth: int) -> Traffic:
        """(5n + 1) read and (3n + 1) written, step by step, as mHC in arXiv:2603.15031, table 1.

        Weights of the token read n, which static ones save; the mix of what is read n and 1
        written; the output's share 1 and n; the streams' mix n and n; the sum 2n and n.
        """
        check_depth(depth, self.n_sublayers - 1)
        n = self.n_streams
        return Traffic(n_read=(5 if self.is_dynamic else 4) * n + 1, n_written=3 * n + 1)

    def tuning(self) -> tuple[Tuning, ...]:
        """Dynamic matrices decay; static weights and scales do not. See the module's text."""
        names = [name for name, _ in self.named_parameters()]
        matrices = [n for n in names if ".dynamic." in n and not n.endswith("scale")]
        others = Tuning(tuple(name for name in names if name not in matrices))
        return (Tuning(tuple(matrices), is_decayed=True), others) if matrices else (others,)


@dataclass(frozen=True, kw_only=True)
class HyperConnectionsConfig:
    """Four streams with weights of the token; `dynamic=False` for weights that are the same."""

    n_streams: int = 4
    dynamic: bool = True
    eps: float = 1e-6

    def __post_init__(self):
        _check_settings(self.n_streams, self.dynamic, self.eps)

    def build(self, dim: int, n_sublayers: int) -> HyperConnections:
        return HyperConnections(dim, n_sublayers, self.n_streams, self.dynamic, self.eps)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """What decides the function of a model and shows in no tensor's shape."""
        return {"eps": self.eps} if self.dynamic else {}


def _check_settings(n_streams: object, dynamic: object, eps: float) -> None:
    check_count("n_streams", n_streams)
    if not isinstance(dynamic, bool):
        raise ValueError(f"dynamic must be True or False, got {dynamic!r}")
    check_eps(eps)
