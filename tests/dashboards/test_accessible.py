"""axe-core finds nothing on any page or report in light and dark. Needs Chromium.

Under CI each is looked at in one of the two, in turn: half the time, and both schemes' colours all the same.
"""

import os
import shutil
import threading
from importlib.resources import files

import pytest

pytest.importorskip("dash")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.xdist_group("dashboard"),
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
PAGES = ("start", "what-if", "traffic", "capacity", "speculation", "attention", "roofline", "runs", "replay", "beside")
DRAWN = "() => [...document.querySelectorAll('.figure')].every(e => e.querySelector('.main-svg'))"
RUN = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']})"


@pytest.fixture(scope="module")
def address(tmp_path_factory, write_one, write_plan):
    from werkzeug.serving import make_server

    from dashboards.app import create_app

    served = tmp_path_factory.mktemp("served")
    write_one(served / "first")
    write_plan(served / "plan")
    app, context = create_app([served], tmp_path_factory.mktemp("session"))
    server = make_server("127.0.0.1", 0, app.server, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    context.jobs.close()
    server.shutdown()
    thread.join(timeout=10)
    server.server_close()


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context(color_scheme=request.param, bypass_csp=True).new_page()
        page.turn = int(request.param == "dark")
        yield page
        browser.close()


def others_turn(page, number):
    return "CI" in os.environ and number % 2 != page.turn


def complaints(page):
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(RUN)["violations"]
    return [(one["impact"], one["id"], one["nodes"][0]["html"][:120]) for one in found]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_barrier(page, address, name):
    if others_turn(page, PAGES.index(name)):
        pytest.skip("looked at in the other scheme")
    page.goto(f"{address}/{name}")
    page.locator(".basis, .beside").first.wait_for(timeout=300_000)
    assert page.locator("h1").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    assert complaints(page) == []


def test_no_report_has_a_barrier(page, every_report):
    for number, (name, file) in enumerate(every_report.items()):
        if others_turn(page, number):
            continue
        page.goto(file.as_uri())
        page.wait_for_function(DRAWN)
        page.evaluate("() => document.querySelectorAll('details').forEach(e => { e.open = true; })")
        assert complaints(page) == [], name
