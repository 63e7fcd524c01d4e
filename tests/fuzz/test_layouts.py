"""Any layout is right in every respect, or refused with the value that is wrong."""

import json

from drawn import JSON, SCALARS, assert_names_one, assert_one_line, little_memory
from hypothesis import example, given
from hypothesis import strategies as st

from attnres.layout import MOST_SUBLAYERS, UNITS, BlockLayout

COUNTS = st.integers(1, 40)


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_possible(n_sublayers, units):
    given_units = {name: value for name, value in units.items() if value is not None}
    if not is_count(n_sublayers) or n_sublayers > MOST_SUBLAYERS or len(given_units) != 1:
        return False
    ((name, value),) = given_units.items()
    fits = name != "n_blocks" or not is_count(value) or value <= n_sublayers
    return name in UNITS and is_count(value) and fits


@given(
    n_sublayers=COUNTS | SCALARS,
    units=st.dictionaries(
        st.sampled_from((*UNITS, "block_size")), COUNTS | SCALARS, min_size=1, max_size=2
    ),
)
@example(n_sublayers=10**12, units={"sublayers_per_block": 1})
@example(n_sublayers=4, units={"n_blocks": 10**30})
@example(n_sublayers=4, units={"layers_per_block": 10**30})
def test_a_layout_is_right_or_refused(n_sublayers, units):
    with little_memory():
        try:
            layout = BlockLayout.of(n_sublayers, **units)
        except ValueError as error:
            assert not is_possible(n_sublayers, units), (n_sublayers, units)
            assert_names_one(error, [n_sublayers, *units.values()])
            return
    assert is_possible(n_sublayers, units), (n_sublayers, units)
    check(layout, n_sublayers)
    check_sizes(layout, **{name: value for name, value in units.items() if value is not None})


def check(layout, n_sublayers):
    """Against a walk over the sublayers that knows nothing but the sizes."""
    assert sum(layout.sizes) == layout.n_sublayers == n_sublayers
    assert len(layout.sizes) == layout.n_blocks
    n_closed, n_in_block = 0, 0
    for depth in range(n_sublayers):
        assert layout.n_sources(depth) == 1 + n_closed + (n_in_block > 0)
        n_in_block += 1
        closes = n_in_block == layout.sizes[n_closed]
        assert layout.closes_after(depth) == closes
        if closes:
            n_closed, n_in_block = n_closed + 1, 0
    assert n_in_block == 0
    assert layout.n_sources(n_sublayers) == len(layout.source_names(n_sublayers)) == 1 + n_closed
    assert BlockLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
    assert f"{n_sublayers} sublayers in {n_closed} blocks" in str(layout)


def check_sizes(layout, n_blocks=None, layers_per_block=None, sublayers_per_block=None):
    *full, last = layout.sizes
    if n_blocks:
        assert layout.n_blocks == n_blocks
        assert max(layout.sizes) - min(layout.sizes) <= 1
        assert list(layout.sizes) == sorted(layout.sizes, reverse=True)
        return
    size = 2 * layers_per_block if layers_per_block else sublayers_per_block
    assert set(full) <= {size}
    assert last <= size


@given(
    data=JSON
    | st.fixed_dictionaries(
        {
            "unit": st.just("sublayers") | SCALARS,
            "sizes": st.lists(COUNTS | SCALARS, max_size=4) | JSON,
            "counting": st.just(1) | SCALARS,
        }
    )
)
@example(data={"unit": "sublayers", "counting": 1, "sizes": [10**12]})
@example(data={"unit": "sublayers", "counting": 1, "sizes": 10**12})
def test_a_saved_layout_is_read_or_refused(data):
    try:
        with little_memory():
            layout = BlockLayout.from_json(data)
    except ValueError as error:
        assert_one_line(error)
    else:
        assert list(layout.sizes) == data["sizes"]
        check(layout, sum(data["sizes"]))
