"""Measured engine steps: which lines of a server's log count, and which rows of a profile."""

import csv

import pytest

from validation.requests import base_scenario
from validation.steps import LOG, LOG_RUNS, PROFILE, step_errors


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def line(running, prompt=0, generated=100.0, seconds=0):
    return {"run": "a", "t_s": seconds, "engine": 0, "prompt_tok_s": prompt, "gen_tok_s": generated, "running": running,
            "waiting": 0, "kv_usage_pct": 10.0}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / LOG_RUNS, [
        {"run": "a", "model": "nvidia/DeepSeek-R1-0528-FP4", "gpu": "B200", "tp": 8, "ep": 8,
         "framework": "vllm 0.19.1", "gpu_kv_tokens": 1_000_000, "kv_gib_per_gpu": 33.0,
         "command": "vllm serve --tensor-parallel-size 8"}
    ])  # fmt: skip
    quiet = [line(2), line(2), line(2), line(2, prompt=5.0), line(2), line(3), line(3, generated=0.0), line(3)]
    write(tmp_path / LOG, [row | {"t_s": 10 * place} for place, row in enumerate(quiet)])
    return tmp_path


def test_only_windows_between_quiet_ones_count(folder):
    (row,) = step_errors(folder, base_scenario(), 40)
    assert (row.metric, row.n, row.ships) == ("step_ms", 1, False)
    assert row.bias < 0, "a step of two sequences takes less than 20 ms"


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        ([(0, 100.0), (10, 100.0), (20, 100.0), (30, 100.0)], 2),
        ([(0, 100.0), (10, 100.0), (20, 100.0), (52, 100.0)], 1),  # the next line is late
        ([(0, 100.0), (10, 100.0), (20, 80.0), (30, 100.0)], 1),  # chunks of a prompt that has not ended
    ],
)
def test_windows_of_late_or_uneven_lines_do_not_count(folder, lines, counted):
    write(folder / LOG, [line(2, generated=rate, seconds=seconds) for seconds, rate in lines])
    assert sum(row.n for row in step_errors(folder, base_scenario(), 40)) == counted


def test_the_command_tells_the_tensor_parallelism(folder):
    write(folder / LOG, [line(2, seconds=10 * place) for place in range(3)])
    (wide,) = step_errors(folder, base_scenario(), 40)
    text = (folder / LOG_RUNS).read_text()
    (folder / LOG_RUNS).write_text(text.replace("size 8", "size 4"))
    (narrow,) = step_errors(folder, base_scenario(), 40)
    assert narrow.bias > wide.bias, "four chips take longer than eight"


def test_medians_of_a_profile_are_steps_that_verify(folder):
    (folder / LOG).unlink()
    common = {"model": "DeepSeek-V4-Flash", "gpu": "B300", "tp": 4, "framework": "vllm", "kv_context_tokens": 8192}
    kinds = [("verify", "median of 5", 16), ("verify", "single step", 16), ("draft", "median of 5", 16),
             ("verify", "median of 5", 256)]  # fmt: skip
    rows = [{"row_id": size, "panel": panel, "kind": kind, "size": size, "step_ms": 1e3, "path": "cuda graph", **common}
            for panel, kind, size in kinds]  # fmt: skip
    write(folder / PROFILE, rows)
    (row,) = step_errors(folder, base_scenario(), 40)
    assert row.n == 2
    assert -100 < row.bias < -95, "steps of a second are none of its"
