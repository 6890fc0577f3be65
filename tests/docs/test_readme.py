"""README: short, its commands print what it shows, its links lead somewhere, its errors are those on record."""

import re
from pathlib import Path

import pytest
from doc_blocks import SHELLS, blocks, run_block

from dashboards.recorded_errors import read_errors

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
MOST_WORDS = 900


def test_it_is_a_screen_and_a_half():
    assert len(README.read_text(encoding="utf-8").split()) < MOST_WORDS


@pytest.mark.parametrize(
    "block", [b for b in blocks(README) if b.language == "console"], ids=lambda b: f"line {b.line}"
)
def test_commands_print_what_is_shown(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run_block(block, {}, capsys)


def test_no_other_command_block_shows_output():
    for block in blocks(README):
        assert block.language not in SHELLS - {"console"}


def test_files_shown_are_those_of_the_repository():
    for block in blocks(README):
        if block.language == "yaml":
            name, _, text = block.text.partition("\n")
            shipped = (ROOT / name.removeprefix("# ")).read_text(encoding="utf-8")
            assert text == shipped.partition("\n")[2], name


PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not re.match(r"https?:|mailto:", target):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_errors_shown_are_those_on_record():
    """Rows of the README's table, in their order, from the record that ``forerun validate --check`` guards."""
    rows = {row.name: row for row in read_errors(ROOT / "docs" / "validation" / "errors.json")}
    usual = [f"{op} bf16, usual shapes, h100-sxm, vllm" for op in ("gemm", "attention_prefill", "attention_decode")]
    experts = [name for name in rows if re.fullmatch(r"moe \S+, h100-sxm, vllm", name)]
    speedups = [row for row in rows.values() if row.section == "speculation" and row.metric == "speedup"]
    mean = sum(row.n * row.mape for row in speedups) / sum(row.n for row in speedups)
    shown = re.findall(r"^\|[^|]+\| ([^|]+?) \| ([^|]+?) \|$", README.read_text(encoding="utf-8"), re.M)[1:]
    assert [error for error, _ in shown] == [
        f"{min(rows[name].mape for name in usual):.0f} to {max(rows[name].mape for name in usual):.0f} %",
        f"{min(rows[name].mape for name in experts):.0f} to {max(rows[name].mape for name in experts):.0f} %",
        f"{rows['acceptance curves, deepest K'].median_ape:.1f} %",
        f"{mean:.0f} %",
    ]
    assert shown[3][1] == f"{sum(row.n for row in speedups)} published results"


KINDS = {"TPOT": "tpot", "TTFT": "ttft", "E2E latency": "e2el", "throughput": "throughput"}


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/measure-once.md"])
def test_widths_shown_are_those_on_the_page_of_bands(page):
    """Median error and width of nine in ten, before and after measuring, as on the page that the fit wrote."""
    bands = (ROOT / "docs" / "validation" / "bands.md").read_text(encoding="utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in bands.splitlines() if line[:1] == "|"]
    known = {tuple(line[:2]): (line[4:6] if "run" in line[0] else [line[-1], line[4]]) for line in lines}
    rows = re.findall(r"^\| ([^|]+?) \|((?: \d+ %; [\d.]+x \|)+)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
    assert len(rows) == len(KINDS)
    columns = (("known releases",) if page == "README.md" else ()) + ("all", "one run", "three runs")
    for name, cells in rows:
        kind = next(kind for words, kind in KINDS.items() if words in name)
        for column, cell in zip(columns, cells.strip(" |").split(" | "), strict=True):
            error, width = known[column, kind]
            shown = re.fullmatch(r"(\d+) %; ([\d.]+)x", cell)
            assert float(shown[1]) == pytest.approx(float(error.removesuffix(" %")), abs=0.51)
            assert float(shown[2]) == pytest.approx(
                float(width.removesuffix("x")), abs=0.06 if "." in shown[2] else 0.51
            )
