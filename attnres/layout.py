"""Which sublayer closes a block, and so what every reader sees (arXiv:2603.15031, section 3.2).

Sizes are always in sublayers: a transformer layer is two of them, attention and MLP. The paper and
FLA count blocks in sublayers, Kimi K3 and Megatron in transformer layers, so no argument here is
called `block_size`.
"""

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from attnres.fields import shown

SUBLAYERS_PER_LAYER = 2
UNITS = ("sublayers_per_block", "layers_per_block", "n_blocks")
UNITS_IN_WORDS = (
    "sublayers_per_block (the paper, FLA), layers_per_block (transformer layers of two sublayers: "
    "Kimi K3, Megatron) and n_blocks"
)
MOST_SUBLAYERS = 100_000  # of a model: a number that is larger is a mistake, and would fill memory
COUNTING = 1  # version of how sizes and sources are counted; stored with every checkpoint


@dataclass(frozen=True)
class BlockLayout:
    """Sublayers in each block, in order of depth.

    Full AttnRes is the layout of blocks of one sublayer. A block may end between the attention and
    the MLP of a transformer layer, and the last block may be short.
    """

    sizes: tuple[int, ...]
    ends: tuple[int, ...] = field(init=False, repr=False, compare=False)  # depths that close blocks

    def __post_init__(self):
        if not isinstance(self.sizes, list | tuple):
            raise ValueError(f"sizes must be sublayers in each block, got {self.sizes!r}")
        object.__setattr__(self, "sizes", tuple(self.sizes))  # a list would be no key, and unequal
        for size in self.sizes:
            check_count("sublayers in a block", size)
        if not self.sizes:
            raise ValueError("a layout needs at least one block, got sizes=()")
        check_n_sublayers(sum(self.sizes))
        ends = tuple(end - 1 for end in accumulate(self.sizes))
        object.__setattr__(self, "ends", ends)  # no cached_property: its lock stops torch.compile

    @classmethod
    def full(cls, n_sublayers: int) -> "BlockLayout":
        """Every sublayer is a block of its own."""
        return cls.of(n_sublayers, sublayers_per_block=1)

    @classmethod
    def of(
        cls,
        n_sublayers: int,
        *,
        sublayers_per_block: int | None = None,
        layers_per_block: int | None = None,
        n_blocks: int | None = None,
        **unknown: object,
    ) -> "BlockLayout":
        """Blocks of a given size, or a given number of blocks; exactly one of the three.

        Args:
            n_sublayers: residual branches in the model, two a transformer layer.
            sublayers_per_block: the last block takes what remains; a size beyond the model is one
                block.
            layers_per_block: the same in transformer layers of two sublayers.
            n_blocks: exactly so many blocks; sizes differ by at most one, larger blocks first.

        Raises:
            ValueError: none or several units, a size that is no positive integer, more blocks than
                sublayers.
        """
        check_n_sublayers(n_sublayers)
        name, value = one_unit(
            sublayers_per_block=sublayers_per_block,
            layers_per_block=layers_per_block,
            n_blocks=n_blocks,
            **unknown,
        )
        if name == "n_blocks":
            return cls(_even_sizes(n_sublayers, value))
        size = value * SUBLAYERS_PER_LAYER if name == "layers_per_block" else value
        full_blocks, remainder = divmod(n_sublayers, size)
        return cls((size,) * full_blocks + (remainder,) * (remainder > 0))

    @property
    def n_sublayers(self) -> int:
        return sum(self.sizes)

    @property
    def n_blocks(self) -> int:
        return len(self.sizes)

    def closes_after(self, depth: int) -> bool:
        """Whether the sublayer at `depth` completes a block."""
        self._check_depth(depth, self.n_sublayers - 1)
        return depth in self.ends

    def n_sources(self, depth: int) -> int:
        """Sources of the reader before sublayer `depth`; `n_sublayers` is the output read."""
        self._check_depth(depth, self.n_sublayers)
        n_closed = sum(end < depth for end in self.ends)
        begun = depth > 0 and depth - 1 not in self.ends
        return 1 + n_closed + begun

    def source_names(self, depth: int) -> tuple[str, ...]:
        """b0 is the embedding, b1, b2, ... the sums of blocks, `partial` the unfinished block."""
        n_closed = sum(end < depth for end in self.ends)
        names = [f"b{i}" for i in range(1 + n_closed)]
        return tuple(names + ["partial"] * (self.n_sources(depth) - len(names)))

    def to_json(self) -> dict[str, Any]:
        return {"unit": "sublayers", "sizes": list(self.sizes), "counting": COUNTING}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "BlockLayout":
        """The layout that `to_json` wrote; ValueError for another unit or counting version."""
        is_ours = isinstance(data, dict) and data.get("unit") == "sublayers"
        if not is_ours or data.get("counting") != COUNTING:
            raise ValueError(
                f"a layout counted in sublayers, version {COUNTING}, was expected, "
                f"got {shown(data)}"
            )
        return cls(data.get("sizes", ()))

    def __str__(self) -> str:
        rows = [("block", "sublayers", "first read", "later reads", "closes after")]
        start = 0
        for block, (size, end) in enumerate(zip(self.sizes, self.ends, strict=True), 1):
            later = _sources_text(block, " + partial") if size > 1 else "-"
            span = f"{start} to {end}" if size > 1 else f"{start}"
            rows.append((f"b{block}", span, _sources_text(block), later, f"sublayer {end}"))
            start = end + 1
        rows.append(("output", "-", _sources_text(self.n_blocks + 1), "-", "-"))
        return "\n".join([*_align(rows), self._summary()])

    def _summary(self) -> str:
        n = self.n_sublayers
        return (
            f"{n} sublayers in {self.n_blocks} blocks; {n} readers with parameters; "
            f"{self.n_sources(n)} sources at the output read"
        )

    def _check_depth(self, depth: int, last: int) -> None:
        if not 0 <= depth <= last:
            raise ValueError(f"depth must be from 0 to {last}, got {depth}")


def one_unit(**units: Any) -> tuple[str, int]:
    """Name and value of the one unit that is not None; ValueError where it is not just one."""
    given = {name: value for name, value in units.items() if value is not None}
    if len(given) != 1 or not given.keys() <= set(UNITS):
        found = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "none"
        raise ValueError(f"give exactly one of {UNITS_IN_WORDS}; got {found}")
    ((name, value),) = given.items()
    check_count(name, value)
    return name, value


def check_count(name: str, value: object) -> None:
    """ValueError with the value where it is no positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def check_n_sublayers(n_sublayers: object) -> None:
    """ValueError with the value where no model has so many."""
    check_count("n_sublayers", n_sublayers)
    if isinstance(n_sublayers, int) and n_sublayers > MOST_SUBLAYERS:
        raise ValueError(f"n_sublayers is at most {MOST_SUBLAYERS}, got {n_sublayers}")


def check_layers(n_sublayers: int, sublayers_per_layer: int) -> int:
    """The number of transformer layers; ValueError where sublayers do not fill them."""
    check_n_sublayers(n_sublayers)
    check_count("sublayers_per_layer", sublayers_per_layer)
    if n_sublayers % sublayers_per_layer:
        raise ValueError(
            f"sublayers_per_layer={sublayers_per_layer} does not divide {n_sublayers} sublayers"
        )
    return n_sublayers // sublayers_per_layer


def _even_sizes(n_sublayers: int, n_blocks: int) -> tuple[int, ...]:
    if n_blocks > n_sublayers:
        raise ValueError(f"n_blocks={n_blocks} is more than the model's {n_sublayers} sublayers")
    size, n_larger = divmod(n_sublayers, n_blocks)
    return (size + 1,) * n_larger + (size,) * (n_blocks - n_larger)


def _sources_text(n_finished: int, partial: str = "") -> str:
    """The embedding, the blocks before, and the partial sum where there is one."""
    text = "b0" if n_finished == 1 else f"b0 to b{n_finished - 1}"
    return f"{text}{partial} ({n_finished + bool(partial)})"


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
