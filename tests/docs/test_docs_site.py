"""The documentation site builds without a warning, needs no network to read, and covers what it promises."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the docs extra")
pytest.importorskip("material", reason="needs the docs extra")
ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//[^>]+>"
    r"|<link[^>]+rel=[\"']?(?:stylesheet|preconnect)[^>]+//[^>]+>"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nothing_is_fetched(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8").replace('"', "").replace("'", ""), sheet


@pytest.fixture
def page():
    """A page of a browser without network."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on the path")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        yield page
        browser.close()


def test_search_works_from_disk(site, page):
    """As a reader would who unpacked the site: no server, no network."""
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.wait_for_function("() => document.querySelector('.md-search-result__meta').innerText.includes('Type')")
    for words, known in (("watermark", "watermark"), ("OOM", "out of memory"), ("max_num_seqs", "which max_num_seqs")):
        page.locator("input.md-search__input").fill("")
        page.keyboard.type(words)
        listed = f"() => document.querySelector('.md-search-result__list').innerText.toLowerCase().includes({known!r})"
        page.wait_for_function(listed)
    assert all(address.startswith(("file:", "data:", "blob:", "about:")) for address in requested), requested


def test_reference_is_whole(site):
    from typer.main import get_command

    from simulator.cli.app import application
    from simulator.running.scenario import Scenario

    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    for name in get_command(application()).commands:
        assert f"forerun {name}" in commands
    fields = (site / "reference/scenario.html").read_text(encoding="utf-8")
    for name in Scenario.model_fields:
        assert f"<code>{name}</code>" in fields
    for row in re.findall(r"<tr>(.*?)</tr>", fields, re.S):
        cells = [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)]
        assert not cells or cells[2], f"{cells[0]}: no example"
        assert not cells or cells[1], f"{cells[0]}: no meaning"
    assert "--max-num-batched-tokens" in fields
    assert "--chunked-prefill-size" in fields
    assert "prompt_tokens" in (site / "reference/traces.html").read_text(encoding="utf-8")
    api = (site / "reference/api.html").read_text(encoding="utf-8")
    for name in re.findall(r"^::: (\S+)", (ROOT / "docs/reference/api.md").read_text(encoding="utf-8"), re.M):
        assert f'id="{name}"' in api, name


def test_rows_of_every_comparison_are_sorted_and_narrowed(site, page):
    page.goto((site / "validation" / "rows.html").as_uri())
    page.get_by_role("button", name="mean error %").click()

    def column(number):
        cells = page.locator(f"#rows tbody td:nth-child({number})").all_inner_texts()
        return [float(cell.replace(",", "")) for cell in cells]

    first = column(5)
    assert len(first) > 300
    assert first == sorted(first)
    page.get_by_role("button", name="mean error %").click()
    assert column(5) != first
    page.get_by_role("searchbox").fill("a100-sxm gemm")
    names = page.locator("#rows tbody td:nth-child(2)").all_inner_texts()
    assert names
    assert all("a100-sxm" in name and "gemm" in name for name in names)
    tables = page.get_by_label("table").locator("option").all_inner_texts()
    assert len(tables) >= 7


def test_every_metric_is_defined():
    """Keys of a run with everything in it, and columns of its tables, against the page of definitions."""
    from plain_scenario import plain_scenario

    from simulator.running.run import simulate

    scenario = plain_scenario(
        *("llama-3.1-8b", "h100-sxm", 8, 4, 2),
        pools={"prefill": {"role": "prefill"}, "decode": {"role": "decode"}},
        faults={"events": [{"replica": 0, "at_s": 100.0, "down_s": 1.0}]},
        speculation={"method": "ngram", "num_speculative_tokens": 2, "acceptance": {"alpha": 0.5}},
        slo={"p99_ttft_ms": 500.0},
        prices={"usd_per_chip_hour": 2.0},
    )
    run = simulate(scenario)
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    defined = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]+) \|", page, re.M))))
    latency = re.compile(r"(?:mean|median|std|p\d+)_(\w+_ms)")
    summary = {latency.sub(r"\1", key) for key in run.summary}
    columns = {name for table in ("requests", "steps") for name in run.to_arrow(table).column_names}
    assert summary | columns <= defined, (summary | columns) - defined
    assert set(run.document) - {"summary", "slo", "interval_level"} <= defined
