"""Pages of errors: whole, and true to what the constants' files say of their fits."""

from dataclasses import replace

import pytest

from dashboards.recorded_errors import ErrorRow, read_errors
from forerun.tables import Table
from forerun.version import VERSION
from hwprofiles import KernelLibrary, load_chip
from hwprofiles.choice import exact_names
from simulator.replay.fit import core_rows, family_rows
from simulator.replay.predict import predict_table
from simulator.replay.speed_of_light import impossible_rows
from simulator.replay.split import training_rows
from traces.kernels import concatenate, read_kernels
from validation.__main__ import main
from validation.constants import constants_table
from validation.facts import facts
from validation.kernels import measured_kernel_errors
from validation.page import (
    ROWS_FILE,
    by_title,
    error_rows,
    fitted_rows,
    plain,
    read_rows,
    rows_text,
    scored_shapes,
    trust_page,
)
from validation.requests import measured_request_errors
from validation.shipped import SPLIT, shipped_errors
from validation.speculation import compare_adaptive, compare_published, curve_scores, group_scores, load_published
from validation.speculation.adaptive import adaptive_tables
from validation.speculation_page import speculation_page, speculation_rows

ROW = ErrorRow("kernels", "gemm", "seconds", 10, 5.0, 4.0, 1.0, "calibrated", "nothing", True)


def rows(group):
    return [row for row in load_published() if row.group == group]


def test_every_row_of_the_record_is_a_row_of_the_sortable_page():
    rows = [ROW, *shipped_errors(["attention"]).rows]
    table = error_rows(rows)
    assert [line[1] for line in table.rows] == [row.name for row in rows]
    assert table.rows[0][:7] == ["kernels", "gemm", "seconds", 10, 5.0, 4.0, 1.0]


def test_every_kernel_row_says_whether_the_fit_saw_it():
    """A profile that names the split left the scored shapes out; one that does not may have seen them."""
    split = f"train={SPLIT.train:g},seed={SPLIT.seed}"
    assert scored_shapes("nothing") == "nothing fitted"
    assert scored_shapes(f"tables; errors of shapes held out ({split})") == "left out"
    assert scored_shapes("tables; errors of shapes held out (train=0.5,seed=3)") == "may be in the fit"
    assert scored_shapes("tables; in-sample error 6 %") == "may be in the fit"
    table = error_rows([ROW, replace(ROW, name="moe", fitted="all of it")])
    place = table.columns.index("shapes")
    assert [line[place] for line in table.rows] == ["nothing fitted", "may be in the fit"]


def test_every_fact_is_a_row_of_the_sortable_page():
    assert list(fitted_rows().rows) == list(facts())


def test_the_first_screen_is_ten_measurers_and_the_page_counts_its_rows(project_root):
    folder = project_root / "docs" / "validation"
    tables, rows = read_rows(folder / ROWS_FILE), read_errors(folder / "errors.json")
    page = trust_page(rows, VERSION, tables)
    assert page == (folder / "index.md").read_text(encoding="utf-8")
    top = page.splitlines()[:20]
    assert sum(line.startswith("| ") and "%" in line for line in top) == 10
    assert f"{sum(row.section == 'kernels' for row in rows):,} of kernels" in page
    assert len(page.split()) < 4000


def test_rows_keep_what_is_not_computed_anew(tmp_path):
    path, one, two = tmp_path / ROWS_FILE, Table("one", ("a", "b"), [["x", 1.5]]), Table("two", ("c",), [["y"]])
    path.write_text(rows_text(by_title(one)))
    path.write_text(rows_text(read_rows(path) | by_title(two)))
    assert [plain(table) for table in read_rows(path).values()] == [plain(one), plain(two)]


def test_constants_of_engines_are_listed_with_what_moves_with_them():
    table = constants_table()
    moved = {(line[0], line[1], line[3]): line[4:7] for line in table.rows}
    ttft, tpot, throughput = moved["vllm-0.11", "step_s", "8 streams"]
    assert tpot > 1.0 > ttft
    assert throughput < 0.0
    assert {line[0] for line in table.rows} > {"vllm", "sglang", "trtllm"}


def test_the_summary_quotes_the_record(project_root):
    page = " ".join((project_root / "docs" / "trust.md").read_text(encoding="utf-8").split())
    rows = {row.name: row for row in read_errors(project_root / "docs" / "validation" / "errors.json")}
    curves, deepseek = rows["acceptance curves, deepest K"], rows["trtllm_dsr1_mtp"]
    assert f": {curves.median_ape:.1f} % (median of {curves.n} measured curves)" in page
    assert f"nothing of that table fitted: {deepseek.mape:.1f} %; K = 4 is chosen" in page
    speedups = [row for row in rows.values() if row.section == "speculation" and row.metric == "speedup"]
    count = sum(row.n for row in speedups)
    mean = sum(row.n * row.mape for row in speedups) / count
    assert f"{count} published speedups are predicted with a mean error of {mean:.0f} %" in page


def test_pages_name_no_place_of_the_machine_that_wrote_them(project_root):
    for page in sorted((project_root / "docs" / "validation").iterdir()):
        assert str(project_root) not in page.read_text(encoding="utf-8"), page.name


def test_command_updates_a_part_and_keeps_the_rest(tmp_path, capsys):
    assert main(["alspec", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"errors.json", "index.md", "rows.json"}
    assert main(["kernels", "--data", "nowhere"]) == 2
    assert main(["requests"]) == 2
    assert "--data names the folder" in capsys.readouterr().err


def test_rows_and_page_hold_every_row_and_every_refusal():
    chosen = rows("trtllm_dsr1_mtp")[:1] + rows("chen2023")
    compared, left = compare_published(chosen)
    page = speculation_page(compared, left, curve_scores(), compare_adaptive(), "1.2.3")
    assert [line[0] for line in speculation_rows(compared).rows] == [item.row.id for item in compared]
    assert f"| {len(left)} | {left[0].reason} |" in page
    assert all(item.row.source in page for item in compared)
    assert "1.2.3" in page
    assert all(f"* `{name}`: " in page for name in adaptive_tables())
    score = group_scores(compared)[0]
    assert score.mape == pytest.approx(100 * abs(compared[0].error))


def test_profiles_that_name_the_split_obeyed_it(shared_data):
    """The A100's fits have as many rows as the split leaves them, of the tables that they are scored on."""
    folder = shared_data / "kernels" / "aiconfigurator"
    tables = {}
    for path in sorted(folder.rglob("*.parquet")):
        if "a100" in str(path):
            table = read_kernels(path)
            for library in set(table.word("library").names):
                tables.setdefault(library, []).append(table.where(table.word("library").equals(library)))
    chip, compared = load_chip("a100-sxm-80gb"), 0
    for library, parts in tables.items():
        table = concatenate(parts)
        for (family, dtype), index in family_rows(table).items():
            sets = chip.kernels.get(library, {}).get(family, {})
            fitted = next((sets[name] for name in exact_names(family, dtype) if name in sets), None)
            if fitted is None or scored_shapes(fitted.source.reference) != "left out":
                continue
            rows = table.where(index)
            out, _ = impossible_rows(rows, predict_table(rows, KernelLibrary(chip, library)), chip)
            rows = rows.where(~out)
            seen = rows.where(training_rows(rows, SPLIT))
            left = int(core_rows(family, seen).sum())
            assert fitted.source.rows <= left, (library, family, dtype)
            compared += fitted.source.rows == left
    assert compared >= 16, "rows that beat the datasheet are left out of a fit, in one set of TensorRT-LLM's"


def test_measured_tables_are_recognised(shared_data):
    rows, left = measured_kernel_errors(shared_data / "kernels" / "blis")
    assert any(row.name.startswith("gemm fp8") and "h100-sxm" in row.name for row in rows)
    tables = [path for path in (shared_data / "kernels" / "blis").rglob("*") if path.suffix in (".csv", ".parquet")]
    assert left["files that are no kernel trace"] < len(tables)
    served, _ = measured_request_errors(shared_data / "serving" / "blis", limit=1)
    assert served
    assert all(row.n <= 1 for row in served)
