"""Figures and page of a kernel replay."""

import json

import numpy as np
import pytest
from made_kernels import attention_rows, gemm_rows, measured

from dashboards.figures.replays import error_data, error_figure, parity_data, parity_figure
from dashboards.replay_report import replay_html
from hwprofiles import KernelLibrary
from simulator.replay import replay_kernels
from traces.kernels import concatenate


@pytest.fixture(scope="module")
def report():
    generator = np.random.default_rng(0)
    table = concatenate([gemm_rows(6000, generator), attention_rows(50, generator)])
    return replay_kernels(measured(table, "h100-sxm", "sglang", 0.05), KernelLibrary("h100-sxm", "sglang"))


def test_a_large_replay_is_thinned_and_says_how_many_rows_there_are(report):
    data = parity_data(report)
    assert len(data.measured_s) == len(data.predicted_s) == len(data.regime) == 4000
    assert data.rows == 6050
    assert "6,050 kernels" in parity_figure(data).layout.title.text


def test_error_curves_rise_to_all_rows(report):
    data = error_data(report)
    assert [curve.op for curve in data.curves] == ["gemm", "attention_decode"]
    for curve in data.curves:
        assert (np.diff(curve.ape) >= 0).all()
        assert curve.share[-1] == 1.0
    assert len(error_figure(data).data) == 2


def test_the_page_stands_alone(report):
    page = replay_html(report.document, report)
    assert f"(with the learned correction; physics alone: {report.beside.mape:.1f} % off)" in page
    figures = page.split('id="figures">')[1].split("</script>")[0]
    assert set(json.loads(figures)) == {"figure-parity", "figure-errors"}
    for group in report.groups:
        assert group.op in page
