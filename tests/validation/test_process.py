"""The process behind measured runs: its covariance is one, and its intervals come true on simulated deployments."""

import numpy as np
import pytest
from scipy.special import stdtrit

from simulator.running.metrics.posterior import CAUSES, KINDS, FigureRow, Posterior, Process, figure_rows, quantile
from simulator.running.metrics.served import served_facts
from validation.served.bands import read_facts
from validation.served.process import held_out_trials, rows_from, trial_scores, trials

PROCESS = Process.of(served_facts()["process"])


def deployments(least_runs=4):
    groups = {}
    for figure in read_facts():
        groups.setdefault(figure.deployment, []).append(figure)
    return [own for own in groups.values() if len({one.run for one in own}) >= least_runs]


def drawn(rows, generator):
    """Errors of a made-up deployment: a Student-t draw with the covariance of the process."""
    lower = np.linalg.cholesky(PROCESS.covariance(rows) + 1e-3 * np.eye(len(rows.kind)))
    degrees = float(PROCESS.degrees)
    heavy = np.sqrt((degrees - 2.0) / generator.chisquare(degrees))
    return PROCESS.means(rows) + heavy * (lower @ generator.standard_normal(len(rows.kind)))


def test_covariances_of_all_measured_deployments_are_symmetric_and_positive():
    for own in deployments():
        covariance = PROCESS.covariance(rows_from(own))
        assert np.allclose(covariance, covariance.T)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9


def test_intervals_come_true_on_deployments_that_the_process_describes(monkeypatch):
    monkeypatch.setattr("simulator.running.metrics.posterior.MOST", 1e9)
    generator, inside = np.random.default_rng(1), {0.9: [], 0.5: []}
    for own in deployments():
        rows = rows_from(own)
        errors = drawn(rows, generator)
        seen = rows.run == sorted({*rows.run.tolist()})[0]
        posterior = Posterior(PROCESS, taken(rows, seen), errors[seen])
        new = taken(rows, ~seen)
        forecast = posterior.forecast(new)
        mean = posterior.shift(new) + new.moves @ posterior.cause_means()
        for level, hits in inside.items():
            reach = stdtrit(forecast.degrees, (1 + level) / 2) * forecast.deviation
            hits.append(np.mean(np.abs(errors[~seen] - mean) <= reach))
    assert np.mean(inside[0.9]) == pytest.approx(0.9, abs=0.04)
    assert np.mean(inside[0.5]) == pytest.approx(0.5, abs=0.08)


def taken(rows, part):
    return type(rows)(**{name: getattr(rows, name)[part] for name in rows.__dataclass_fields__})


def test_the_order_of_measurements_changes_nothing():
    own = deployments()[0]
    rows, errors = rows_from(own), np.linspace(-0.2, 0.3, len(own))
    order = np.random.default_rng(0).permutation(len(own))
    one, other = Posterior(PROCESS, rows, errors), Posterior(PROCESS, taken(rows, order), errors[order])
    assert one.shift(rows) == pytest.approx(other.shift(rows))
    for name in CAUSES:
        assert one.learnt()[name]["value"] == pytest.approx(other.learnt()[name]["value"], abs=1e-9)


def test_a_slower_decode_step_is_found_where_all_figures_say_so():
    """TPOT measured 1.3 times as long in six runs at loads from 1 to 128: most of it is in the decode steps."""
    figures = [
        FigureRow(KINDS.index(kind), 0.9, move, (np.log(load), 7.0, 5.0), "", run, (0.0,) * 5)
        for run, load in enumerate((1, 4, 16, 32, 64, 128))
        for kind, move in (("tpot", (1.0, 0.0, 0.1, 0.0)), ("e2el", (0.9, 0.1, 0.1, 0.0)))
    ]  # fmt: skip
    errors = np.array([np.log(1.3), 0.9 * np.log(1.3)] * 6)
    learnt = Posterior(PROCESS, figure_rows(figures), errors).learnt()
    assert learnt["decode"]["low"] < learnt["decode"]["value"] < learnt["decode"]["high"]
    assert learnt["decode"]["value"] > 1.07
    assert abs(learnt["prompts"]["value"] - 1) < 0.05


@pytest.mark.parametrize("degrees", [3.5, 4.5, 6.5, 20.0, 1000.0])
def test_quantiles_of_students_t_are_those_of_scipy(degrees):
    for share in (0.75, 0.95):
        assert quantile(degrees, share) == pytest.approx(stdtrit(degrees, share), rel=0.02)


GATES = {"tpot": (10.0, 2.0), "ttft": (21.0, 5.0), "e2el": (10.5, 2.1), "throughput": (10.0, 2.0)}
"""By kind of figure, after one measured run: largest median error in percent, and largest width of nine in ten."""


def test_one_measured_run_brings_the_others_near():
    """Deployments that were measured, with the parameters that ship; each predicted from its middle run."""
    facts, ends = read_facts(), served_facts()["process"]["ends"]
    own = list(trials(PROCESS, facts, (0.5,)))
    for kind, (error, width) in GATES.items():
        outcome = trial_scores([(one, ends[kind]) for one in own if one.figure.kind == kind])
        assert outcome.after < 0.85 * outcome.before or kind == "e2el"
        assert outcome.after <= error
        assert outcome.wide.width <= width
        assert outcome.wide.inside >= 0.86
        assert (0.40 if kind == "e2el" else 0.42) <= outcome.likely.inside <= 0.58


def test_every_fold_is_predicted_by_the_others():
    facts = [
        figure for figure in read_facts() if figure.table in ("inferencex", "gpustack-performance-lab", "sgl-cookbook")
    ]
    held_out = held_out_trials(facts, [PROCESS] * 3)
    assert {one.figure.table for one in held_out["one run"]} == {figure.table for figure in facts}
