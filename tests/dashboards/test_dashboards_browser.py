"""The report in a real browser: draws every figure, asks the network for nothing, fits wide and narrow screens."""

import shutil

import pytest

from dashboards.checks import write_errors
from dashboards.report import write_report
from dashboards.study_report import study_html
from simulator.replay.validation import ErrorRow
from simulator.studies.compare.comparison import CompareResult

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
CUT_CAPTIONS = """[...document.querySelectorAll('.figure .gtitle')].filter(e =>
    e.getBoundingClientRect().right > e.closest('.figure').getBoundingClientRect().right + 1).map(e => e.textContent)"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_report_draws_and_fits(browser, run_folder, tmp_path, width, scheme):
    path = write_report(run_folder, tmp_path / "report.html")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints, requests = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelectorAll('.figure .main-svg').length >= 4")
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate("[...document.querySelectorAll('.figure')].map(e => e._fullLayout.width)")
    assert len(drawn) == 4
    assert all(0 < one <= width for one in drawn)
    paper = page.evaluate("document.querySelector('.figure')._fullLayout.paper_bgcolor")
    assert paper == {"light": "#ffffff", "dark": "#161b22"}[scheme]
    page.close()


def errors_page(folder):
    names = (
        "serving/of a service with a long name.csv",
        "gemm bf16, h100-sxm, vllm",
        "attention_decode bf16, h100-sxm",
    )
    metrics = ("mean_ttft_ms", "seconds", "seconds")
    rows = [
        ErrorRow("kernels" if metric == "seconds" else "requests", name, metric, 9, 7.5, 6.0, -1.0, basis, "some", True)
        for name, metric, basis in zip(names, metrics, ("datasheet", "calibrated", "extrapolated"), strict=True)
    ]
    write_errors(folder, rows)


@pytest.fixture(scope="module")
def reports(tmp_path_factory, write_plan, comparison):
    """A report of every kind of page there is, by name."""
    folder = tmp_path_factory.mktemp("reports")
    write_plan(folder / "plan")
    errors_page(folder / "errors")
    (folder / "compare").mkdir()
    (folder / "compare" / "report.html").write_text(study_html(CompareResult(comparison)))
    return {"plan": 1, "errors": 1, "compare": 3}, folder


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_every_kind_of_report_fits(browser, reports, width):
    figures, folder = reports
    page = browser.new_page(viewport={"width": width, "height": 900})
    for name, count in figures.items():
        file = folder / name / "report.html"
        assert file.stat().st_size < 1.5e6
        page.goto(file.as_uri())
        page.wait_for_function(f"document.querySelectorAll('.figure .main-svg').length >= {count}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(CUT_CAPTIONS) == [], name
    page.close()
