"""The report in a real browser: draws every figure, asks the network for nothing, fits wide and narrow screens."""

import pytest

from dashboards.report import write_report

DRAWN = "() => [...document.querySelectorAll('.figure')].every(e => e.querySelector('.main-svg'))"
SETTLED = (
    "() => [...document.querySelectorAll('.figure')].every(e => Math.abs(e._fullLayout.width - e.clientWidth) < 2)"
)
"""Figures have been drawn anew in the room that the window leaves them."""
PAPER = "paper => [...document.querySelectorAll('.figure')].every(e => e._fullLayout.paper_bgcolor == paper)"
PAPERS = {"light": "#ffffff", "dark": "#161b22"}
CUT = """[...document.querySelectorAll(
    'h2, .tile *, header *, .figure :is(.gtitle, .xtitle, .ytitle, .legendtext, .ytick text, .xtick text)'
)].filter(e => {
    const own = e.getBoundingClientRect(), box = e.closest('.figure, .card, .tile, header').getBoundingClientRect();
    return own.width && (own.right > box.right + 1 || own.left < box.left - 1
        || own.bottom > box.bottom + 1 || own.top < box.top - 1);
}).map(e => e.textContent)"""
"""Words of a figure, a heading or a tile that leave the place they stand in."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_report_draws_and_fits(chromium, run_folder, tmp_path, width, scheme):
    path = write_report(run_folder, tmp_path / "report.html")
    page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints, requests = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function(DRAWN)
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate("[...document.querySelectorAll('.figure')].map(e => e._fullLayout.width)")
    assert len(drawn) == 4
    assert all(0 < one <= width for one in drawn)
    assert page.evaluate(PAPER, PAPERS[scheme])
    page.close()


AT_EACH_FRAME = """
    window.seen = [];
    const drawn = () => [...document.querySelectorAll('.figure')].filter(e => e.querySelector('.main-svg')).length;
    (function look() {
        window.seen.push(drawn());
        if (PRINTED && drawn() == 1) { window.dispatchEvent(new Event('beforeprint')); window.printed = drawn(); }
        requestAnimationFrame(look);
    })();
"""


@pytest.mark.parametrize("printed", [False, True])
def test_the_first_figure_is_there_before_the_others_and_a_print_has_all(chromium, run_folder, tmp_path, printed):
    path = write_report(run_folder, tmp_path / "report.html")
    page = chromium.new_page()
    page.add_init_script(AT_EACH_FRAME.replace("PRINTED", "true" if printed else "false"))
    page.goto(path.as_uri())
    page.wait_for_function(DRAWN)
    page.wait_for_function("() => window.seen.includes(4)")
    seen = page.evaluate("window.seen")
    assert 1 in seen
    assert page.evaluate("window.printed ?? null") == (4 if printed else None)
    assert (2 in seen) != printed
    page.close()


def test_a_tap_on_a_term_shows_its_definition(chromium, run_folder, tmp_path):
    path = write_report(run_folder, tmp_path / "report.html")
    page = chromium.new_page(has_touch=True, viewport={"width": 390, "height": 800})
    page.goto(path.as_uri())
    term = page.locator("abbr[title]").first
    term.tap()
    tooltip = page.get_by_role("tooltip")
    assert tooltip.inner_text() == term.get_attribute("title")
    box = tooltip.bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 390
    page.locator("h1").tap()
    assert tooltip.count() == 0
    page.close()


def test_every_kind_of_report_fits(chromium, every_report, barriers_of, cut_tables):
    """And axe-core finds nothing in what it unfolds to: in the dark, which then turns light, in colours alone, as how
    a page is made does not depend on the scheme."""
    page = chromium.new_page(bypass_csp=True)
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for name, file in every_report.items():
        assert file.stat().st_size < 1.5e6, name
        page.set_viewport_size({"width": 390, "height": 900})
        page.emulate_media(color_scheme="dark")
        page.goto(file.as_uri())
        page.wait_for_function(DRAWN)
        for scheme, widths in (("dark", (390,)), ("light", (1024, 1440))):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(PAPER, arg=PAPERS[scheme])
            for width in widths:
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_function(SETTLED)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, name
                assert page.evaluate(CUT) == [], name
                assert cut_tables(page) == [], name
            page.evaluate("() => document.querySelectorAll('details').forEach(e => { e.open = true; })")
            assert cut_tables(page) == [], name
            assert barriers_of(page, colours_alone=scheme == "dark") == [], name
    assert complaints == []
    page.close()


PAGE = """<html lang="en"><title>A page</title><main><h1>A page</h1>{}</main></html>"""


@pytest.mark.parametrize(
    ("markup", "barriers"),
    [
        ("<p>plain</p>", []),
        ("<img src='a.png'>", ["image-alt"]),
        ("<p style='color: #aaa; background: #fff'>faint</p>", ["color-contrast"]),
        ("<table><tbody><tr><td style='color: #aaa'>faint</td></tr></tbody></table>", ["color-contrast"]),
    ],
)
def test_barriers_are_detected(chromium, barriers_of, markup, barriers):
    page = chromium.new_page()
    page.set_content(PAGE.format(markup))
    assert [name for _, name, _ in barriers_of(page)] == barriers
    assert [name for _, name, _ in barriers_of(page, colours_alone=True)] == [b for b in barriers if "color" in b]
    page.close()
