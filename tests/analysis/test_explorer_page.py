"""The depth explorer in headless Chromium, with real keys and clicks."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from devtools import tab
from explorer_pages import NASTY, attends, effects_of, streams

from attnres.analysis.explorer.page import render

pytestmark = pytest.mark.browser

N_TOKENS = 50
SELECTED = "document.querySelector('#text [aria-selected=true]')"
CHOSEN_ROW = "document.querySelector('#sources tr.chosen')"
WHERE = "[byId.run, byId.reader, byId.source].map(x => x.selectedIndex)".replace(
    "byId", "document.forms[0].elements"
)


def runs():
    """By place: standard with effects, Block with effects, Full, one without a matrix."""
    block = attends("block", 3, N_TOKENS, sublayers_per_block=2, pieces=NASTY)
    standard = streams("standard", 3, N_TOKENS)
    with_effects = [
        replace(run, effects=effects_of(run.reading.sources, 3)) for run in (standard, block)
    ]
    return [
        *with_effects,
        attends("full", 3, N_TOKENS, seed=1),
        streams("laurel", 2, N_TOKENS, has_matrix=False),
    ]


RUNS = runs()
WEIGHTS = RUNS[1].reading.weights or []  # of the Block run


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with tab(tmp_path_factory.mktemp("profile")) as own:
        yield own


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "explorer.html"
    file.write_text(render("a <b>test</b>", RUNS), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser, address):
    """Open on the Block run, at its last reader; whatever a test does, nothing went wrong."""
    browser.open(address)
    browser.frame()
    yield browser
    assert browser.problems() == []


def where(page):
    """Run, reader and source that are chosen, and the token."""
    return [*page.eval(WHERE), int(page.eval(f"{SELECTED}.id").removeprefix("token-"))]


def numbers(page):
    """The table as text: name, meaning, weight, mean, loss."""
    return page.eval("[...document.querySelectorAll('#sources tbody tr')].map(row => "
                     "[...row.cells].map(cell => cell.textContent))")  # fmt: skip


def shown(value):
    return f"{value:.3f}"


def choose(page, name, index):
    """In one of the selects, by the keyboard."""
    page.eval(f"document.getElementById('{name}').focus()")
    page.press("Home", *["ArrowDown"] * index)


def test_it_opens_on_a_run_with_weights_and_shows_its_numbers(page):
    assert where(page) == [1, 6, 0, 0]
    means = WEIGHTS[6].mean(dim=1)
    for source, row in enumerate(numbers(page)):
        effect = 6 / 10 - source / 100 - 0.105
        weight = shown(WEIGHTS[6][source, 0])
        assert row[2:] == [weight, shown(means[source]), f"+{effect:.4f}"]
    assert [row[0] for row in numbers(page)] == ["b0", "b1", "b2", "b3"]
    assert numbers(page)[3][1] == "attention of layer 2 to MLP of layer 2"
    assert page.eval("document.querySelectorAll('h1 b, #text b').length") == 0


def test_tokens_are_shown_as_they_are_and_run_nothing(page):
    pieces = page.eval("[...document.querySelectorAll('.token')].map(each => each.textContent)")
    assert pieces[: len(NASTY)] == NASTY
    assert pieces[7] == "w7↵\n"
    assert page.eval("document.title") == "a <b>test</b>: depth explorer"
    assert page.eval("document.querySelectorAll('.sequence').length") == 4


def test_keys_move_through_tokens_readers_and_sources(page):
    page.eval("document.getElementById('text').focus()")
    page.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert where(page) == [1, 6, 0, 1]
    assert numbers(page)[0][2] == shown(WEIGHTS[6][0, 1])
    page.press("ArrowRight", shift=True)
    assert where(page) == [1, 6, 0, 11]
    page.press("ArrowUp")
    assert where(page) == [1, 5, 0, 11]
    page.press("PageDown", "PageDown")
    assert where(page) == [1, 5, 2, 11]
    assert numbers(page)[2][2] == shown(WEIGHTS[5][2, 11])
    page.press("ArrowUp", "End")  # b2 is no source of reader 4's yet: the nearest that it has
    assert where(page) == [1, 4, 2, N_TOKENS - 1]
    page.press("ArrowRight", "PageDown", "PageDown")  # no further
    assert where(page) == [1, 4, 2, N_TOKENS - 1]
    page.press("Home", *["ArrowUp"] * 9)
    assert where(page) == [1, 0, 0, 0]


def test_a_source_is_kept_by_its_name_from_reader_to_reader(page):
    choose(page, "reader", 3)
    choose(page, "source", 2)
    assert numbers(page)[2][0] == "partial"
    page.eval(  # not through the readers between, some of which have no partial sum
        "(reader => { reader.selectedIndex = 5; reader.dispatchEvent(new Event('change')); })"
        "(document.getElementById('reader'))"
    )
    page.frame()
    assert where(page) == [1, 5, 3, 0]
    assert numbers(page)[3][0] == "partial"


def test_clicks_do_what_keys_do(page):
    page.click("#token-20")
    assert where(page) == [1, 6, 0, 20]
    page.click("#sources tbody tr:nth-child(3)")
    assert where(page) == [1, 6, 2, 20]
    assert page.eval("document.activeElement.textContent") == "b2"
    assert page.eval(f"{CHOSEN_ROW}.rowIndex") == 3
    page.press("ArrowDown", "ArrowUp", "ArrowUp")  # on in the table
    assert where(page) == [1, 6, 1, 20]
    assert page.eval("document.activeElement.textContent") == "b1"


def test_a_map_is_clicked_and_walked_through(page):
    size = page.eval("(() => { const c = document.querySelector('#readers canvas');"
                     "return [c.clientWidth, c.clientHeight]; })()")  # fmt: skip
    cell = 24
    across, down = (34 + 0.5 * cell) / size[0], 3.5 * cell / size[1]
    page.click("#readers canvas", across, down)
    assert where(page) == [1, 3, 0, 0]
    said = "document.querySelector('#readers .said').textContent"
    assert page.eval(said) == f"before MLP of layer 1, b0: {shown(WEIGHTS[3][0, 0])}"
    page.eval("document.querySelector('#readers .plane').focus()")
    page.press("ArrowRight")
    assert where(page) == [1, 3, 1, 0]
    page.press("ArrowRight")  # b2 and b3 are not there yet: on to the partial sum
    assert numbers(page)[where(page)[2]][0] == "partial"
    page.press("ArrowDown", "Home")
    assert where(page) == [1, 4, 0, 0]
    page.press("End")
    assert where(page) == [1, 4, 2, 0]


def test_the_mixing_matrices_of_all_runs_are_read_at_one_place(page):
    titles = page.eval("[...document.querySelectorAll('#mixing strong')].map(x => x.textContent)")
    assert [title.split(":")[0] for title in titles] == ["standard", "block", "full"]
    note = page.eval("document.querySelector('#mixing p').textContent")
    assert note == "laurel: Laurel has no depth mixing matrix of scalars"
    page.eval("document.querySelectorAll('#mixing .plane')[1].focus()")
    page.press("ArrowRight", "ArrowUp", "ArrowUp")
    assert where(page)[1] == 4
    said = page.eval("[...document.querySelectorAll('#mixing .said')].map(x => x.textContent)")
    assert said[0] == "before attention of layer 2, output 1: −0.200"  # noqa: RUF001  as printed
    assert said[1] == said[2] == "before attention of layer 2, output 1: 0.200"


def test_a_run_without_weights_shows_its_matrix_and_what_was_measured(page):
    choose(page, "run", 0)
    assert where(page)[0] == 0
    assert page.eval("document.querySelectorAll('.token[class*=shade]').length") == 0
    assert "no depth weights" in page.eval("document.getElementById('legend').textContent")
    rows = numbers(page)
    assert [row[0] for row in rows] == ["emb", "1", "2", "3", "4", "5", "6"]
    assert rows[1][2:] == ["−0.200", "−0.200", f"+{0.6 - 0.115:.4f}"]  # noqa: RUF001
    figures = page.eval("[...document.querySelectorAll('#readers figure')].map(x => x.hidden)")
    assert figures == [True, False]
    choose(page, "run", 3)
    assert numbers(page)[0][2:] == ["–", "–", "–"]  # noqa: RUF001
    assert "attnres ablate" in page.eval("document.getElementById('sources-note').textContent")


def test_losses_below_zero_are_told_apart_by_sign_and_colour(page):
    page.eval("document.getElementById('text').focus()")
    page.press(*["ArrowUp"] * 5)
    assert where(page)[1] == 1
    assert [row[4] for row in numbers(page)] == ["−0.0050", "−0.0150"]  # noqa: RUF001
    bars = page.eval("[...document.querySelectorAll('#sources td:last-child .bar div div')]"
                     ".map(x => x.className)")  # fmt: skip
    assert bars == ["negative", "negative"]


def test_the_loss_without_a_layer_is_told(page):
    note = "document.getElementById('sources-note').textContent"
    assert "Without layer" not in page.eval(note)  # the final norm is in none
    page.eval("document.getElementById('text').focus()")
    page.press("ArrowUp")
    assert "Without layer 2 the loss gains +2.5000 nats a token." in page.eval(note)


def test_darker_is_more_and_the_legend_says_how_much(page):
    weights = WEIGHTS[6][0]
    classes = page.eval("[...document.querySelectorAll('.token')].map(x => x.className)")
    levels = [int(name.removeprefix("token shade-")) for name in classes]
    expected = [round(63 * float(x / weights.max())) for x in weights]
    assert all(abs(a - b) <= 1 for a, b in zip(levels, expected, strict=True))
    legend = "document.getElementById('legend').textContent"
    assert f"0.000  {shown(weights.max())}" in page.eval(legend)
    choose(page, "range", 1)
    assert f"{shown(weights.min())}  {shown(weights.max())}" in page.eval(legend)
    choose(page, "range", 2)
    assert "0.000  1.000" in page.eval(legend)


def luminance(color):
    """Of `rgb(1, 2, 3)`, as WCAG 2.2 defines it."""
    parts = [int(x) / 255 for x in re.findall(r"\d+", color)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_on_every_shade_and_steps_look_even(page, scheme):
    page.prefer(scheme)
    page.frame()
    pairs = page.eval(
        "Array.from({length: 64}, (_, i) => { const e = document.createElement('span');"
        "e.className = `token shade-${i}`; document.getElementById('text').append(e);"
        "const s = getComputedStyle(e); return [s.backgroundColor, s.color]; })"
    )
    assert min(contrast(*pair) for pair in pairs) >= 4.5
    lightness = [luminance(fill) ** (1 / 3) for fill, _ in pairs]  # of Oklab, nearly
    steps = [abs(b - a) for a, b in pairwise(lightness)]
    assert max(steps) < 2.5 * min(steps)
    assert sorted(lightness, reverse=scheme == "light") == lightness


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_legible_in_both_themes(page, scheme):
    page.prefer(scheme)
    page.frame()
    found = page.eval(
        "[...document.querySelectorAll('h1, p, label, td, th, dd, figcaption, .said, button, a, "
        "select, kbd')].filter(e => e.textContent.trim() && e.offsetParent).map(e => {"
        "let at = e; while (getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)') "
        "at = at.parentElement; return [getComputedStyle(e).color, "
        "getComputedStyle(at).backgroundColor]; })"
    )
    assert len(found) > 50
    assert min(contrast(*pair) for pair in found) >= 4.5


def test_the_theme_changes_what_is_drawn(page):
    fill = "getComputedStyle(document.querySelector('#text .token')).backgroundColor"
    pixels = "document.querySelector('#mixing canvas').toDataURL()"
    light = page.eval(f"[{fill}, {pixels}]")
    page.prefer("dark")
    page.frame()
    dark = page.eval(f"[{fill}, {pixels}]")
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    page.prefer("light")
    page.frame()
    assert page.eval(f"[{fill}, {pixels}]") == light


def test_tab_reaches_every_part_and_shows_where_it_is(page):
    reached = []
    page.eval("document.querySelector('header a').focus()")
    for _ in range(11):
        page.press("Tab")
        reached.append(page.eval("document.activeElement.id || document.activeElement.className"
                                 " || document.activeElement.textContent"))  # fmt: skip
        style = page.eval("(s => [s.outlineStyle, parseFloat(s.outlineWidth)])"
                          "(getComputedStyle(document.activeElement))")  # fmt: skip
        assert style[0] != "none"
        assert style[1] >= 2
    parts = ["run", "reader", "source", "range", "text", "b0"]
    assert reached == [*parts, *["plane"] * 5]


def test_what_is_chosen_is_said_and_kept_in_the_address(page, address):
    page.click("#token-21")
    page.wait_for("location.hash.includes('token=21')")
    said = page.eval("document.getElementById('said').textContent")
    weight = shown(WEIGHTS[6][0, 21])
    assert said == (
        f'Token 22 of 50, "w21\\n": before the final norm, b0 (the embedding) weighs {weight}.'
    )
    assert page.eval("document.getElementById('said').getAttribute('role')") == "status"
    hash_ = page.eval("location.hash")
    assert hash_ == "#run=block&reader=6&source=b0&token=21&range=largest"
    page.open(f"{address}#run=full&reader=4&source=b3&token=9&range=all")
    page.frame()
    assert where(page) == [2, 4, 3, 9]
    page.open(f"{address}#run=none&reader=-1&source=%3Cb%3E&token=9999")
    page.frame()
    assert where(page) == [1, 6, 0, N_TOKENS - 1]


def test_it_is_labelled(page):
    unlabelled = page.eval(
        "[...document.querySelectorAll('select, [tabindex=\"0\"], section, table button')].filter("
        "e => !(e.labels?.length || e.getAttribute('aria-label') || "
        "(e.matches('button') && e.textContent.trim()) || "
        "document.getElementById(e.getAttribute('aria-labelledby')))).map(e => e.outerHTML)"
    )
    assert unlabelled == []
    active = "document.getElementById('text').getAttribute('aria-activedescendant')"
    assert page.eval(active) == "token-0"
    assert page.eval("document.querySelectorAll('#text [aria-selected=true]').length") == 1


def test_nothing_moves_by_itself(page):
    durations = page.eval(
        "[...new Set([...document.querySelectorAll('*')].flatMap(e => { const s = "
        "getComputedStyle(e); return [s.transitionDuration, s.animationName, s.scrollBehavior]; "
        "}))]"
    )
    assert set(durations) == {"0s", "none", "auto"}


def test_it_fits_a_narrow_window(page):
    page.call("Emulation.setDeviceMetricsOverride", width=360, height=700, deviceScaleFactor=1,
              mobile=False)  # fmt: skip
    page.frame()
    assert page.eval("document.documentElement.scrollWidth") <= 360


def test_a_move_touches_only_what_changes(page):
    page.eval(
        "window.touched = 0; new MutationObserver(all => touched += all.length).observe("
        "document.getElementById('text'), {subtree: true, attributes: true, childList: true})"
    )
    page.click("#token-30")
    assert page.eval("touched") <= 3  # the token before, this one, and the list


def test_the_token_chosen_stays_in_view_and_the_page_where_it_is(browser, tmp_path):
    file = tmp_path / "long.html"
    file.write_text(render("long", [attends("long", 1, 1500, seq_len=128)]), encoding="utf-8")
    browser.open(file.as_uri())
    browser.frame()
    browser.eval("document.getElementById('text').focus()")
    inside = (
        f"(({{top, bottom}}, frame) => top >= frame.top && bottom <= frame.bottom)({SELECTED}"
        ".getBoundingClientRect(), document.getElementById('text').getBoundingClientRect())"
    )
    scrolled = browser.eval("scrollY")
    for keys in (["End"], ["Home"], ["ArrowRight"] * 60, ["End"], ["ArrowLeft"] * 60):
        for key in keys:
            browser.press(key, shift=True)
            assert browser.eval(inside)
    assert browser.eval("scrollY") == scrolled
    assert browser.problems() == []
