"""Comparison with other simulators: which rows are compared, and figures that follow from the rows on record."""

import csv
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.benchmark_results import MeasuredRun
from validation.__main__ import main
from validation.served import peers

FACTS = {"chip": "h100_sxm", "tensor_parallel": 1, "process": "closed-loop", "max_concurrency": 8,
         "input_tokens": 256, "output_tokens": 32, "measured": {"mean_ttft_ms": 20.0, "mean_tpot_ms": 8.0}}  # fmt: skip
RUNS = st.builds(
    lambda number, table, **facts: (table, MeasuredRun(f"run {number}", f"{table}.csv:{number}", **FACTS | facts)),
    number=st.integers(0, 10**6),
    table=st.sampled_from(["a", "b"]),
    model=st.sampled_from(["Qwen/Qwen3-8B", "unknown"]),
    framework=st.sampled_from(["vllm", "sglang"]),
    framework_version=st.sampled_from(["0.9.2", "0.10.0", "nightly", None]),
    speculation=st.sampled_from([None, "eagle"]),
)


@pytest.fixture(scope="module")
def record(project_root):
    return project_root / "docs" / "validation"


@given(st.lists(RUNS, max_size=80, unique_by=lambda one: one[1].name), st.randoms())
def test_of_each_group_the_latest_release_with_enough_complete_rows_is_compared(runs, random):
    chosen = peers.cohort(runs)
    releases = {}
    for table, run in chosen:
        assert run.speculation is None
        assert releases.setdefault(peers.group_of(run), (run.framework_version, table)) == (
            run.framework_version,
            table,
        )
    for table, run in runs:
        same = [r for t, r in runs if (t, r.framework_version, peers.group_of(r)) ==
                (table, run.framework_version, peers.group_of(run)) and peers.complete(r)]  # fmt: skip
        if len(same) >= peers.LEAST_ROWS:
            newest = peers.release_numbers(releases[peers.group_of(run)][0] or "") or ()
            assert newest >= (peers.release_numbers(run.framework_version or "") or ())
    counts = [sum(peers.group_of(run) == group for _, run in chosen) for group in releases]
    assert all(peers.LEAST_ROWS <= count <= peers.MOST_ROWS for count in counts)
    random.shuffle(runs)
    dearer = [(table, replace(run, measured={"mean_ttft_ms": 1.0, "mean_tpot_ms": 99.0})) for table, run in runs]
    assert [run.name for _, run in peers.cohort(dearer)] == [run.name for _, run in chosen]


def test_the_page_follows_from_the_rows_on_record_and_begins_where_a_peer_is_nearer(
    record, project_root, tmp_path, capsys
):
    for name in (peers.PEER_ROWS, peers.PUBLISHED):
        shutil.copy(record / name, tmp_path)
    assert main(["peers", "--out", str(tmp_path)]) == 0
    page = (tmp_path / peers.PAGE).read_text(encoding="utf-8")
    assert page == (record / peers.PAGE).read_text(encoding="utf-8")
    assert next(line for line in page.splitlines() if line.startswith("## ")) == "## Where a peer is nearer"
    rows = list(csv.DictReader((record / peers.PEER_ROWS).read_text(encoding="utf-8").splitlines()))
    readme = " ".join((project_root / "README.md").read_text(encoding="utf-8").split())
    printed = capsys.readouterr().out
    for figure in ("TPOT", "TTFT"):
        values = np.array([[float(row[f"{who} {figure}"]) for who in ("measured", *peers.TOOLS)]
                           for row in rows if all(row[f"{who} {figure}"] for who in peers.TOOLS)])  # fmt: skip
        assert len(values) >= 150
        errors = np.abs(values[:, 1:] / values[:, :1] - 1)
        own, other = (f"{100 * median:.1f} %" for median in np.median(errors, axis=0))
        line = next(one for one in page.splitlines() if one.startswith(f"| {peers.PEER} | {figure} | all |"))
        assert [cell.strip() for cell in line.split("|")][4:9:2] == [
            str(len(values)),
            *(f"{100 * mean:.1f} %" for mean in errors.mean(axis=0)),
        ]
        assert own in printed
        assert f"same {len(values)} public runs" in readme
        assert f"{other} in {figure}" in readme
        assert own in readme


def test_every_row_names_its_source_and_a_tool_that_predicts_nothing_says_why(record):
    rows, _ = peers.read_peers(record)
    for row in rows:
        assert row["source"], row["row"]
        assert not re.search(r"/(tmp|work|home|root|usr)/|site-packages", " ".join(row.values())), row["row"]
        for tool in peers.TOOLS:
            assert bool(row[f"{tool} TPOT"]) != bool(row[f"{tool} refused"]), row["row"]


def test_a_folder_of_runs_is_predicted_again_and_the_other_tool_only_once(tmp_path, capsys, monkeypatch):
    loads = "framework,framework_version,input_len,output_len,max_concurrency,mean_ttft_ms,mean_tpot_ms"
    head = f"source,model,gpu,tp,{loads}"
    line = "a blog,meta-llama/Llama-3.1-8B-Instruct,H100,1,vllm,0.11.0,64,8,{},20,7"
    (tmp_path / "mine.csv").write_text("\n".join([head, *(line.format(load) for load in (1, 2, 3, 4))]))
    command = ["peers", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--jobs", "1"]
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert main(command) == 2
    assert "pip install aiconfigurator" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with monkeypatch.context() as wheel:
        wheel.setattr(peers, "find_spec", lambda name: True)
        wheel.setattr(peers, "version", lambda name: "0.0")
        wheel.setattr(peers, "peer_estimate", lambda run: {"TPOT": 7.7, "TTFT": run.max_concurrency})
        assert main(command) == 0
    rows, published = peers.read_peers(tmp_path / "out")
    assert main(command) == 0
    assert peers.read_peers(tmp_path / "out") == (rows, published)
    assert [(row["source"], row["AIConfigurator TPOT"], float(row["Forerun TPOT"]) > 4) for row in rows] == [
        ("a blog", "7.7", True)
    ] * 4
    tpot, ttft = peers.peer_scores(rows)[0], next(score for score in peers.peer_scores(rows) if score.figure == "TTFT")
    assert (tpot.n, tpot.mean, ttft.mean) == (4, 10.0, 87.5)


def test_options_that_do_not_apply_are_refused(tmp_path, capsys):
    for arguments in (["peers"], ["peers", "--data", str(tmp_path)], ["peers", "--out", str(tmp_path)]):
        assert main(arguments) == 2
        assert peers.PEER_ROWS in capsys.readouterr().err
