"""The app in a real browser: every page, sliders, background runs, uploads, addresses, downloads, both widths."""

import json
import os
import threading
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from forerun.tables import number
from simulator.running.metrics.run_folder import load_run

pytest.importorskip("dash")
WAIT_MS = 300_000
CUT_CAPTIONS = """[...document.querySelectorAll('.figure .gtitle')].filter(e => e.closest('.figure').offsetParent &&
    e.getBoundingClientRect().right > e.closest('.figure').getBoundingClientRect().right + 1).map(e => e.textContent)"""
SHOWN = "[...document.querySelectorAll('.js-plotly-plot')].filter(e => e.offsetParent && !e.closest('.wide'))"
DRAWN_WIDTHS = f"{SHOWN}.map(e => e._fullLayout.width)"
SHOWN_SHARE = f"Math.min(1, ...{SHOWN}.map(e => e._fullLayout._size.w / e.clientWidth))"
"""Smallest share of a figure's width that its axes take; the rest is names and margins."""
SETTLED = f"""() => {SHOWN}.every(e => Math.abs(e._fullLayout.width - e.clientWidth) < 2)
    && (window.innerWidth >= 560 || {SHOWN_SHARE} > 0.7)"""
"""Figures have been drawn anew in the room that the window leaves them, also when a wide window became narrow."""
PAPER = """paper => [...document.querySelectorAll('.js-plotly-plot')].filter(e => e.offsetParent)
    .every(e => e._fullLayout.paper_bgcolor == paper)"""
PAPERS = {"light": "#ffffff", "dark": "#161b22"}
TALLEST_ON_A_PHONE = {"replay": 4000}
"""Height of a page in pixels at the width of a phone."""
LOOKS = {"dark": (390,), "light": (1440, 390, 1024)}
"""Widths in which a page is looked at in each scheme, as it was opened first."""
PAGES = {
    "start": 1,
    "what-if": 2,
    "traffic": 1,
    "capacity": 1,
    "chips": 1,
    "speculation": 4,
    "attention": 6,
    "roofline": 1,
    "runs": 6,
    "replay": 1,
}
"""Figures that each page draws as it opens."""
SCENARIO = """
model: llama-3.1-8b
hardware: {chip: h100-sxm}
workload: {arrivals: {process: poisson, request_rate: 4}, input_tokens: 128, output_tokens: 16, num_requests: NUMBER}
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory, write_one, write_plan):
    from werkzeug.serving import make_server

    from dashboards.app import create_app

    served = tmp_path_factory.mktemp("served")
    write_one(served / "first")
    write_one(served / "second", replications=2)
    write_plan(served / "plan")
    place = tmp_path_factory.mktemp("session")
    app, context = create_app([served], place)
    server = make_server("127.0.0.1", 0, app.server, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", context, place
    context.jobs.close()
    server.shutdown()
    thread.join(timeout=10)
    server.server_close()


@pytest.fixture(scope="module")
def browser(chromium):
    return chromium.new_context()


class Visit:
    """A page with its errors and its requests to other hosts."""

    def __init__(self, browser, base, width=1280, scheme="light"):
        self.base = base
        self.page = browser.new_page()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_default_timeout(WAIT_MS)
        self.complaints = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type == "error" else None
        )
        self.page.on("request", lambda requested: self._local(requested.url))

    def _local(self, url):
        if not url.startswith((self.base, "data:", "blob:")):
            self.complaints.append(f"requested {url} from the network")

    def open(self, path, figures):
        self.page.goto(f"{self.base}/{path}")
        self.drawn(figures)

    def turn_to(self, name, figures):
        """By the menu, which on a narrow screen is behind a button."""
        if self.page.viewport_size["width"] < 600:
            self.page.get_by_role("button", name="menu").click()
        self.page.locator(f"nav a[href='/{name}']").click()
        self.page.wait_for_function("name => location.pathname == '/' + name", arg=name)
        self.page.wait_for_function('name => document.querySelector(`[id*=\'"page":"${name}"\']`)', arg=name)
        self.drawn(figures)

    def drawn(self, figures):
        self.page.wait_for_function(
            """figures => [...document.querySelectorAll('.figure-card .js-plotly-plot')].filter(
            e => e.offsetParent && e.data && e.data.length && e.querySelector('.main-svg')).length >= figures""",
            arg=figures,
        )

    def choose(self, scheme):
        """By the control in the head of every page."""
        self.page.get_by_text(scheme.capitalize(), exact=True).click()
        self.page.wait_for_function(PAPER, arg=PAPERS[scheme])

    def fits(self, width, name):
        """Nothing of the page is cut or leaves the window; a picture is left in the folder ``FORERUN_SCREENSHOTS``."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.wait_for_function(SETTLED)
        assert self.page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert all(0 < one <= width for one in self.page.evaluate(DRAWN_WIDTHS)), name
        assert self.page.evaluate(CUT_CAPTIONS) == [], name
        if folder := os.environ.get("FORERUN_SCREENSHOTS"):
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)

    def figure(self, name):
        """Data of a drawn figure, with packed columns unpacked."""
        return self.page.evaluate(
            """name => [...document.querySelectorAll('.js-plotly-plot')].filter(e =>
            (e.id || e.parentElement.id).includes(`"name":"${name}"`)).map(e => e._fullData.map(t => (
            {name: t.name, x: t.x && [...t.x], y: t.y && [...t.y]})))[0]""",
            name,
        )

    def state(self):
        return {key: value[0] for key, value in parse_qs(urlsplit(self.page.url).query).items()}

    def slide(self, label, key, times=1):
        thumb = self.page.get_by_role("slider", name=label, exact=True)
        thumb.focus()
        for _ in range(times):
            thumb.press(key)

    def close(self):
        self.page.close()
        assert self.complaints == []


@pytest.fixture
def visit(browser, address):
    opened = Visit(browser, address[0])
    yield opened
    opened.close()


def test_every_page_opens_and_fits(browser, address, barriers_of, cut_tables):
    """And axe-core, which the app's content security policy would not let in, finds nothing: in the dark it looks at
    colours alone, as how a page is made does not depend on the scheme."""
    context = browser.browser.new_context(bypass_csp=True)
    visit = Visit(context, address[0], 390, "dark")
    visit.open("", PAGES["start"])
    visit.page.wait_for_function(PAPER, arg=PAPERS["dark"])
    for name, figures in PAGES.items():
        visit.page.set_viewport_size({"width": 390, "height": 900})
        visit.choose("dark")
        visit.turn_to(name, figures)
        visit.page.wait_for_function("() => document.querySelector('.page').innerText.toLowerCase().includes('basis:')")
        assert visit.page.title().endswith("Forerun")
        assert visit.page.locator("h1:visible").count() == 1, name
        assert visit.page.locator("html").get_attribute("lang") == "en"
        for scheme, widths in LOOKS.items():
            visit.choose(scheme)
            for width in widths:
                visit.fits(width, f"{name}-{width}-{scheme}")
                assert cut_tables(visit.page) == [], name
                if width == 390:
                    assert visit.page.evaluate("document.body.scrollHeight") < TALLEST_ON_A_PHONE.get(name, 8000)
            assert barriers_of(visit.page, colours_alone=scheme == "dark") == [], name
    for scheme in LOOKS:  # in the last width, in which the menu is seen
        visit.choose(scheme)
        assert barriers_of(visit.page, colours_alone=True) == []
    visit.close()
    context.close()


def test_colours_follow_the_system(visit):
    visit.open("what-if", 2)
    for scheme, paper in PAPERS.items():
        visit.page.emulate_media(color_scheme=scheme)
        visit.page.wait_for_function(PAPER, arg=paper)


def test_slider_moves_the_figure_and_the_address(visit):
    visit.open("what-if", 2)
    before = visit.page.inner_text(".tile >> nth=1")
    assert visit.state()["rate"] == "8"
    visit.slide("Load", "ArrowRight", 3)
    visit.page.wait_for_function("before => document.querySelectorAll('.tile')[1].innerText != before", arg=before)
    visit.page.wait_for_function("() => location.search.includes('rate=24')")
    visit.drawn(2)
    assert visit.page.get_by_role("textbox", name="Load").input_value() == "24"
    assert visit.page.get_by_role("slider", name="Load").get_attribute("aria-valuetext") == "24 req/s"
    plain = visit.figure("load")
    visit.slide("Mean prompt", "End")
    visit.page.wait_for_function("() => location.search.includes('prompt=32768')")
    visit.page.wait_for_function(
        "before => JSON.stringify([...document.querySelectorAll('.js-plotly-plot')][0]._fullData[0].x) != before",
        arg=json.dumps(plain[0]["x"]),
    )


DRAWN_ADAPTIVE = """() => [...document.querySelectorAll('.js-plotly-plot')].some(e =>
    (e.id || e.parentElement.id).includes('"name":"adaptive"') && e._fullData && e._fullData.length)"""


def test_a_better_confidence_head_moves_verification_by_confidence_alone(visit):
    best, adaptive = {}, {}
    for head in ("constant", "perfect"):
        visit.open(f"speculation?head={head}", figures=1)
        visit.page.wait_for_function(DRAWN_ADAPTIVE)
        if folder := os.environ.get("FORERUN_SCREENSHOTS"):
            visit.page.screenshot(path=f"{folder}/speculation-{head}.png", full_page=True)
        lines = {line["name"]: line["y"] for line in visit.figure("adaptive")}
        assert visit.state()["head"] == head
        best[head], adaptive[head] = lines.values()
    assert best["constant"] == best["perfect"]
    assert adaptive["perfect"][-1] > adaptive["constant"][-1]


@pytest.mark.parametrize(("typed", "rate"), [("1.5e1", 15.0), ("2.5", 2.5), ("1e9", None), ("2,5", None)])
def test_a_typed_number_is_taken_as_it_stands_or_refused(visit, typed, rate):
    visit.open("what-if", 2)
    visit.page.get_by_role("textbox", name="Load").fill(typed)
    if rate is None:
        visit.page.get_by_text(f"Load: '{typed}' is not a number from").wait_for()
    else:
        visit.page.get_by_text(f"Holds {rate:g} of at most").wait_for()
    assert visit.page.get_by_role("textbox", name="Load").input_value() == typed
    assert visit.state()["rate"] == typed


def test_address_restores_a_view(browser, address, visit):
    visit.open("what-if?model=qwen3-8b&method=eagle3&k=5&rate=24&tp=2&alpha=0.55", 2)
    page = visit.page
    page.wait_for_function("() => document.body.innerText.includes('eagle3, K=5')")
    state = visit.state()
    wanted = {"model": "qwen3-8b", "method": "eagle3", "k": "5", "rate": "24", "tp": "2", "alpha": "0.55"}
    assert wanted.items() <= state.items()
    first = visit.figure("load")
    again = Visit(browser, address[0])
    again.open(f"what-if?{urlsplit(page.url).query}", 2)
    again.page.wait_for_function("() => document.body.innerText.includes('eagle3, K=5')")
    assert again.figure("load") == first
    again.page.evaluate(f"{SHOWN}.forEach(e => e.on('plotly_afterplot', () => (e.drawn ??= []).push(e.clientWidth)))")
    again.page.set_viewport_size({"width": 390, "height": 900})  # captions take more lines
    again.page.wait_for_function(SETTLED)
    again.page.wait_for_function(f"() => {CUT_CAPTIONS}.length == 0")
    assert again.page.evaluate(f"{SHOWN}.every(e => new Set(e.drawn).size == 1)")  # not in widths on the way
    again.close()


def test_background_run_refines_and_can_be_cancelled(visit, address):
    visit.open("what-if?requests=200000&rate=1&method=ngram", 2)
    page = visit.page
    page.get_by_role("button", name="Simulate this load").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled.").wait_for()
    assert address[1].served.runs().keys() == {"first", "second"}
    visit.open("what-if?requests=500&rate=4", 2)
    page.get_by_role("button", name="Simulate this load").click()
    page.wait_for_function("() => document.querySelectorAll('.tile')[0].innerText.includes('p99')")
    summary = last_run(address)
    assert number(summary["p99_ttft_ms"]) in page.inner_text(".tile >> nth=0")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.js-plotly-plot')]"
        ".some(e => (e.data || []).some(t => t.name == 'simulated'))"
    )
    simulated = [trace for trace in visit.figure("load") if trace["name"] == "simulated"]
    assert [trace["x"] for trace in simulated] == [[4]] * 3
    assert [trace["y"][0] for trace in simulated] == [
        summary[key] for key in ("mean_ttft_ms", "mean_tpot_ms", "output_throughput")
    ]


def last_run(address):
    """Summary of the newest run that any session made."""
    result = sorted(address[2].glob("*/*/summary.json"), key=lambda path: path.stat().st_mtime)
    return load_run(result[-1].parent).document["summary"]


def test_uploads_good_and_bad(visit, address):
    visit.open("runs", 5)
    page = visit.page
    for text, complaint in (
        (SCENARIO.replace("h100-sxm", "/etc/passwd"), "no file of the served folders"),
        (SCENARIO.replace("NUMBER", "many"), "num_requests"),
    ):
        page.set_input_files("input[type=file]", {"name": "bad.yaml", "mimeType": "text/yaml", "buffer": text.encode()})
        page.get_by_role("alert").filter(has_text=complaint).wait_for()
    good = SCENARIO.replace("NUMBER", "25").encode()
    page.set_input_files("input[type=file]", {"name": "mine.yaml", "mimeType": "text/yaml", "buffer": good})
    page.wait_for_function("() => new URLSearchParams(location.search).get('run').startsWith('this session/mine')")
    summary = last_run(address)
    assert summary["completed"] == 25
    page.get_by_text(f"median {number(summary['median_ttft_ms'])} ms").wait_for()


LOG = "ts,prompt_toks,gen\n" + "".join(f"{i * 0.5},{100 + i % 50},{20 + i % 7}\n" for i in range(120))


def test_a_log_of_ones_own_is_taken_shown_and_planned_for(visit):
    visit.open("traffic", 1)
    page = visit.page
    for name, text, message in (
        ("mine.xlsx", LOG, "a log of requests is CSV"),
        ("mine.csv", "a,b\n1,2\n", "no trace format fits"),
    ):
        page.set_input_files("input[type=file]", {"name": name, "mimeType": "text/csv", "buffer": text.encode()})
        page.get_by_role("alert").filter(has_text=message).wait_for()
    page.evaluate("() => window.dash_clientside.set_props('largest', {data: 5000})")
    big = {"name": "mine.csv", "mimeType": "text/csv", "buffer": LOG.encode()}
    page.set_input_files("input[type=file]", big)
    page.get_by_role("alert").filter(has_text="larger than what may be sent").wait_for()
    page.evaluate("() => window.dash_clientside.set_props('largest', {data: 25165824})")
    page.set_input_files("input[type=file]", {**big, "buffer": (LOG + "60,5,5\n").encode()})
    page.get_by_text("121 requests in 60 s").wait_for()
    assert visit.state()["log"] == "this session/mine.csv"
    page.get_by_role("link", name="Plan capacity for this log").click()
    page.wait_for_function("() => location.pathname == '/capacity'")
    page.wait_for_function("() => new URLSearchParams(location.search).get('log') == 'this session/mine.csv'")
    page.get_by_role("textbox", name="Mean prompt").wait_for(state="hidden")


def test_benchmark_results_of_ones_own_are_learnt_from_and_removed(visit, result_text):
    visit.open("what-if", 2)
    page, before = visit.page, visit.page.inner_text(".tile >> nth=1")
    assert not page.get_by_text("intervals rest on").is_visible()

    def drop(*files):
        sent = [{"name": name, "mimeType": "application/json", "buffer": text.encode()} for name, text in files]
        page.set_input_files("input[type=file]", sent)

    drop(("run 16.json", result_text()), ("run 4.json", result_text(streams=4)))
    page.get_by_text("intervals rest on 2 measured runs of this deployment: decode steps take").wait_for()
    page.wait_for_function("before => document.querySelectorAll('.tile')[1].innerText != before", arg=before)
    page.wait_for_function("() => document.querySelector('.figure-card').innerText.includes('after measuring')")
    names = [trace["name"] for trace in visit.figure("load")]
    assert [names.count(f"without speculation {when} measuring") for when in ("before", "after")] == [3, 3]
    assert visit.state()["measured"] == "this session/run-16.json,this session/run-4.json"
    for scheme, widths in LOOKS.items():
        visit.choose(scheme)
        for width in widths:
            visit.fits(width, f"measured-{width}-{scheme}")
    for files, complaint in (
        ([("bad.json", "hello")], "bad.json: no table or block of results"),
        (
            [("other.json", result_text(model="Qwen/Qwen3-8B"))],
            "other.json: a run of another deployment: model qwen3-8b",
        ),
        ([(f"{index}.json", "{}") for index in range(11)], "At most 10 files at a time: 11 were given."),
    ):
        drop(*files)
        page.get_by_role("alert").filter(has_text=complaint).wait_for()
    assert page.get_by_text("intervals rest on 2 measured runs").is_visible()
    for left in (1, 0):
        page.locator(".mantine-Pill-remove").first.click()
        page.wait_for_function("left => document.querySelectorAll('.mantine-Pill-remove').length == left", arg=left)
    page.get_by_text("intervals rest on").wait_for(state="hidden")
    page.wait_for_function("before => document.querySelectorAll('.tile')[1].innerText == before", arg=before)
    assert visit.state()["measured"] == "-"


def test_run_explorer_shows_what_the_summary_says(visit, address):
    visit.open("runs?run=first&others=second&request=7", 8)
    page = visit.page
    assert page.title() == "Runs \u00b7 Forerun"
    document = address[1].served.run("first").document
    shares = {trace["name"]: trace["x"][0] for trace in visit.figure("bottleneck")}
    assert shares == pytest.approx({name: share * 100 for name, share in document["bottleneck"].items()})
    assert number(document["summary"]["p99_tpot_ms"]) in page.inner_text(".tile >> nth=2")
    changes = visit.figure("change")[0]
    other = address[1].served.run("second").document["summary"]["output_throughput"]
    one = document["summary"]["output_throughput"]
    assert changes["x"][changes["y"].index("output tokens/s")] == pytest.approx((other / one - 1) * 100)
    assert "Request 7" in page.inner_text(".page")
    with page.expect_download() as report:
        page.get_by_role("button", name="Save the report").click()
    assert "plotly" in report.value.path().read_text().lower()


def test_figures_over_time_share_crosshair_and_range_and_any_column_is_an_axis(visit, address):
    visit.open("runs?run=first&across=arrival_s&up=e2el_ms", 6)
    page, requests = visit.page, address[1].served.run("first").requests
    completed = np.isfinite(np.asarray(requests["e2el_ms"], dtype=float))
    assert not completed.all(), "a failed request has no latency, and so no point"
    assert visit.figure("columns")[0]["x"] == pytest.approx(list(np.asarray(requests["arrival_s"])[completed]))
    ranges = """() => [...document.querySelectorAll('.js-plotly-plot')].filter(e => e.layout.meta?.clock)
        .map(e => [e, e._fullLayout.xaxis3 || e._fullLayout.xaxis])"""
    page.wait_for_function(f"() => ({ranges})().length == 2")
    pointed = f"""() => {{ const graphs = ({ranges})().map(([e]) => e);
        graphs.forEach(e => e.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}})));"""
    page.wait_for_function(
        f"{pointed} graphs[0].emit('plotly_hover', {{points: [{{x: 5}}]}});"
        "return graphs.slice(1).every(e => e._hoverdata && e._hoverdata.length); }"
    )  # again and again: a figure that is drawn anew meanwhile forgets the pointer
    page.wait_for_function(
        f"{pointed} const [first] = ({ranges})(), zoomed = ([, axis]) => axis.range[0] == 2 && axis.range[1] == 9;"
        "if (!zoomed(first)) Plotly.relayout(first[0], {'xaxis3.range[0]': 2, 'xaxis3.range[1]': 9});"
        f"return ({ranges})().every(zoomed); }}"
    )
    visit.open("runs?run=first&across=run: output_throughput&up=run: p99_ttft_ms", 6)
    page.wait_for_function("() => /one point a run, \\d+ runs/.test(document.body.innerText)")
    assert {"first", "second"} <= {trace["name"] for trace in visit.figure("columns")}  # and runs of other tests


def test_figures_can_be_saved(visit):
    visit.open("speculation", 4)
    page = visit.page
    for kind in ("PNG", "SVG", "CSV", "HTML"):
        with page.expect_download() as saved:
            page.locator(".figure-card").first.get_by_role("button", name=f"as {kind}").click()
        data = saved.value.path().read_bytes()
        start = {"PNG": b"\x89PNG", "SVG": b"<svg", "CSV": b"trace,x,y,z", "HTML": b"<!doctype html>"}[kind]
        assert data.startswith(start), kind
        assert len(data) > 1000, kind


def test_wrong_choices_are_one_sentence(visit, address):
    visit.page.goto(f"{visit.base}/what-if?model=llama-3.1-405b&chip=l4")
    message = visit.page.locator(".message")
    message.wait_for()
    assert "\n" not in message.inner_text().strip()
    visit.page.goto(f"{visit.base}/runs?run=../../etc&request=-3")
    visit.drawn(5)
    assert visit.state()["run"].startswith(("this session/", "first", "second"))
    visit.page.get_by_text("'../../etc' is not offered").wait_for()
    visit.page.goto(f"{visit.base}/nowhere")
    visit.page.get_by_text("No such page").wait_for()
