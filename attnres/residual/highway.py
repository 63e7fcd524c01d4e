"""Highway: a gate chooses between the stream and the sublayer's output (arXiv:1505.00387).

    h_{l+1} = (1 - g_l) h_l + g_l f_l(h_l)        g_l = sigmoid(W_l h_l + b_l)

with one gate a channel ("dense", as in the paper) or one a token ("scalar", the form whose depth
mixing matrix arXiv:2603.15031, section 6, gives). The gate reads the stream as it is, which cannot
grow: a step averages. The paper starts b at -1 to -3 and leaves W open; here W starts at zero, so
that every gate of the start is sigmoid(b), whatever the size of the embedding. Its gradient is not
zero there.

The start is not the standard model: with b = -2 the stream keeps 0.88 of itself in each step.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from attnres.layout import check_count
from attnres.ops.border import check_finite
from attnres.residual.arithmetic import project, wide
from attnres.residual.base import Output, Residual, Traffic, Tuning, check_depth, whole
from attnres.residual.coordinates import row_of_read

GateKind = Literal["scalar", "dense"]


class Gate(nn.Module):
    """sigmoid(W h + b), with one value or D, in float32 at least."""

    def __init__(self, dim: int, n_gates: int, start_bias: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, n_gates))
        self.bias = nn.Parameter(torch.empty(n_gates))
        self.start_bias = start_bias
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, self.start_bias)

    def forward(self, h_D: Tensor) -> Tensor:
        return torch.sigmoid(project(h_D, self.weight) + self.bias)


class Highway(Residual[Tensor]):
    """The state is the stream, BTD.

    Args:
        dim: width of the hidden state.
        n_sublayers: number of sublayers; each has a gate.
        gate: "scalar", D + 1 parameters a sublayer, or "dense", D^2 + D.
        bias: b at the start; the more negative, the more a stream carries over.

    Raises:
        ValueError: a size that is not positive, an unknown gate, a bias that is not finite.
    """

    def __init__(self, dim: int, n_sublayers: int, gate: GateKind = "scalar", bias: float = -2.0):
        super().__init__()
        check_count("dim", dim)
        check_count("n_sublayers", n_sublayers)
        _check_gate(gate, bias)
        self.dim, self.n_sublayers, self.is_dense = dim, n_sublayers, gate == "dense"
        n_gates = dim if self.is_dense else 1
        self.gates = nn.ModuleList(Gate(dim, n_gates, bias) for _ in range(n_sublayers))

    def start(self, embed_BTD: Tensor) -> Tensor:
        return embed_BTD

    def read(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        check_depth(depth, self.n_sublayers - 1)
        return state, state

    def write(self, state: Tensor, depth: int, out_BTD: Output) -> Tensor:
        check_depth(depth, self.n_sublayers - 1)
        out_BTD = whole(out_BTD, state, depth)
        gate_BTG = self.gates[depth](state[..., : self.dim])
        mixed_BTD = (1 - gate_BTG) * wide(state) + gate_BTG * wide(out_BTD)
        return mixed_BTD.to(state.dtype)

    def finish(self, state: Tensor) -> Tensor:
        return state

    def reset_parameters(self) -> None:
        for gate in self.gates:
            cast(Gate, gate).reset_parameters()

    def stream(self, state: Tensor) -> Tensor:
        return state

    def mixing(self, state: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Of scalar gates.

        Dense ones give every channel a matrix of its own, of products of gates that depend on the
        token: their mean needs D numbers an output, not one, so they are refused.
        """
        if self.is_dense:
            raise NotImplementedError("Highway with dense gates has a mixing matrix a channel")
        return row_of_read(self, state, depth, self.dim)

    def traffic(self, depth: int) -> Traffic:
        """As standard: stream and output in, stream out. A dense gate's product reads the stream.

        Its gates need not be written where the product ends in the sum.
        """
        check_depth(depth, self.n_sublayers - 1)
        return Traffic(n_read=3 if self.is_dense else 2, n_written=1)

    def tuning(self) -> tuple[Tuning, ...]:
        """Matrices decay like those of the model; biases and vectors do not, or gates would open.

        Decay pulls a bias of -2 to 0, a gate of a half.
        """
        names = [name for name, _ in self.named_parameters()]
        decayed = [name for name in names if self.is_dense and name.endswith("weight")]
        others = Tuning(tuple(name for name in names if name not in decayed))
        return (Tuning(tuple(decayed), is_decayed=True), others) if decayed else (others,)


@dataclass(frozen=True, kw_only=True)
class HighwayConfig:
    """Gates of a token ("scalar") or of a channel ("dense")."""

    gate: GateKind = "scalar"
    bias: float = -2.0  # at the start

    def __post_init__(self):
        _check_gate(self.gate, self.bias)

    def build(self, dim: int, n_sublayers: int) -> Highway:
        return Highway(dim, n_sublayers, self.gate, self.bias)

    def describe(self, n_sublayers: int) -> dict[str, Any]:
        """Nothing: the kind of gate shows in its shape, and the bias is a parameter."""
        return {}


def _check_gate(gate: object, bias: object) -> None:
    if gate not in get_args(GateKind):
        raise ValueError(f"gate must be 'scalar' or 'dense', got {gate!r}")
    check_finite("bias", bias)
