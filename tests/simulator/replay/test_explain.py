"""Causes of a measured run's gap: a run made under a cause is explained by it, one as predicted by none."""

import json
from dataclasses import replace

import pytest

from forerun.errors import ForerunError
from forerun.yaml_files import packaged
from simulator.replay import explain as module
from simulator.replay.explain import EQUAL, Cause, explanation_of, judged_figures, ranked_causes
from simulator.replay.rerun import rerun
from simulator.running.scenario import scenario_from
from traces.benchmark_results import MeasuredRun

BASE = scenario_from(
    {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h100-sxm", "tensor_parallel": 2},
        "weights_dtype": "fp8",
        "workload": {
            "arrivals": {"process": "closed-loop", "max_concurrency": 16},
            "input_tokens": 512,
            "output_tokens": 32,
            "num_requests": 32,
        },
    },
    "base.yaml",
)
RUN = MeasuredRun("served", "served.json", process="closed-loop", max_concurrency=16, input_tokens=512,
                  output_tokens=32, num_requests=32, measured={"mean_ttft_ms": 1.0})  # fmt: skip
JUDGED = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput")
MADE_UNDER = [
    ("graphs are off", {"engine.cuda_graphs": False}),
    ("fewer sequences run at once", {"engine.max_num_seqs": 2}),
    ("another token budget", {"engine.max_num_batched_tokens": 512}),
    ("weights are widened", {"weights_dtype": "bf16"}),
    ("a slower link", {"hardware.link": "ethernet-100g"}),
    ("a build older", {"engine.framework": "vllm-2024"}),
    ("below its power limit", {"hardware.power_limit_w": 420.0}),
]


def as_measured(run: MeasuredRun, **settings: object) -> MeasuredRun:
    """The run with the figures that a simulation of it under other settings gives."""
    predicted = rerun(replace(run, settings=settings), BASE)["predicted"]
    return replace(run, measured={metric: predicted[metric] for metric in JUDGED})


def causes_of(run: MeasuredRun) -> dict[str, Cause]:
    judged = judged_figures(run, rerun(run, BASE) | {"model_error": None})
    return {cause.cause: cause for cause in ranked_causes(run, BASE, judged)}


@pytest.mark.parametrize(("cause", "settings"), MADE_UNDER, ids=[cause for cause, _ in MADE_UNDER])
def test_a_run_made_under_a_cause_is_explained_by_it(cause: str, settings: dict[str, object]) -> None:
    causes = causes_of(as_measured(RUN, **settings))
    named = next(row for name, row in causes.items() if cause in name)
    assert named.share > 0.99
    assert named.share > max(row.share for row in causes.values()) - EQUAL


def test_a_client_that_sends_less_is_seen() -> None:
    fewer = as_measured(replace(RUN, max_concurrency=2))
    causes = causes_of(replace(RUN, measured=fewer.measured))
    assert causes["the client keeps fewer requests outstanding"].share > 0.99


def test_a_run_as_predicted_needs_no_cause() -> None:
    explanation = explanation_of(as_measured(RUN), BASE)
    assert explanation.causes == []
    assert explanation.verdict.startswith("The server is as fast as it should be")
    assert {row.place for row in explanation.judged} == {"likely"}


def test_causes_that_explain_equally_much_are_not_chosen_between() -> None:
    """A client with 2 outstanding and a server that runs 2 at once give the same TPOT and throughput."""
    fewer = as_measured(replace(RUN, max_concurrency=2))
    measured = {metric: fewer.measured[metric] for metric in ("mean_tpot_ms", "output_throughput")}
    explanation = explanation_of(replace(RUN, measured=measured), BASE)
    assert "Nothing is claimed" in explanation.verdict
    assert "fewer sequences run at once" in explanation.verdict
    assert "fewer requests outstanding" in explanation.verdict


def test_two_causes_are_tried_together_where_none_alone_explains_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 0.7)
    both = {"engine.framework": "vllm-2024", "hardware.power_limit_w": 420.0}
    causes = causes_of(as_measured(RUN, **both))
    pair = max(causes.values(), key=lambda cause: cause.share)
    assert len(pair.change) == 2
    assert pair.share > 0.99


def test_what_would_help_is_measured_from_the_claimed_cause() -> None:
    explanation = explanation_of(as_measured(RUN, **{"engine.max_num_seqs": 2}), BASE)
    assert [help.change for help in explanation.helps].count("twice the replicas") <= 1
    assert sum(path.startswith("hardware.") for help in explanation.helps for path in help.set) <= 1
    assert any("engine.max_num_seqs" in help.set for help in explanation.helps)
    assert all(help.ratio > 1.0 and help.interval[0] <= help.ratio <= help.interval[1] for help in explanation.helps)


def test_every_try_names_fields_that_a_scenario_has() -> None:
    entries = packaged("simulator.replay", "causes.yaml")
    halved = {"engine.max_num_seqs": 2, "workload.arrivals.max_concurrency": 2}
    for cause in entries["causes"]:
        assert cause["check"], cause
        for change in cause["tries"]:
            fields = {path: value for path, value in change.items() if "." in path}
            fields |= {change["halved"]: halved[change["halved"]]} if "halved" in change else {}
            if "engine.framework" not in fields:
                BASE.with_values(fields)
    for help in entries["helps"]:
        BASE.with_values(help.get("set", {}) or {help["doubled"]: 2})


def test_the_command_prints_the_verdict_first(tmp_path, capsys) -> None:
    from simulator.cli import main

    scenario, result = tmp_path / "base.yaml", tmp_path / "result.json"
    scenario.write_text(json.dumps(BASE.model_dump(mode="json", exclude_unset=True)), "utf-8")
    run = as_measured(RUN, **{"engine.max_num_seqs": 2})
    sent = {"max_concurrency": 16, "completed": 32, "total_input_tokens": 32 * 512, "total_output_tokens": 32 * 32}
    result.write_text(json.dumps({"backend": "openai", "request_rate": "inf", **sent, **run.measured}), "utf-8")
    assert main(["replay", "requests", str(result), "--scenario", str(scenario), "--explain"]) == 0
    assert capsys.readouterr().out.startswith("The server is ")
    assert main(["replay", "requests", str(result), "--scenario", str(scenario), "--explain", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["explanation"]["causes"][0]["cause"] == "fewer sequences run at once"


def test_a_run_without_a_judged_figure_is_refused() -> None:
    with pytest.raises(ForerunError, match="judges TTFT, TPOT or throughput"):
        explanation_of(replace(RUN, measured={"p99_ttft_ms": 30.0}), BASE)


def test_the_throughput_of_arrivals_that_are_kept_up_with_is_not_judged() -> None:
    offered = replace(RUN, process="poisson", request_rate=2.0, max_concurrency=None, num_requests=512)
    predicted = rerun(offered, BASE)
    measured = {"mean_tpot_ms": 20.0, "output_throughput": 1.02 * predicted["predicted"]["output_throughput"]}
    judged = judged_figures(replace(offered, measured=measured), predicted | {"model_error": None})
    assert [row.metric for row in judged] == ["mean_tpot_ms"]
    few = measured | {"output_throughput": 0.5 * measured["output_throughput"]}
    judged = judged_figures(replace(offered, measured=few), predicted | {"model_error": None})
    assert [row.metric for row in judged] == ["mean_tpot_ms", "output_throughput"]


def test_another_draw_of_arrivals_is_no_slower_server() -> None:
    """A simulated run is as fast as it should be whatever the seeds of both sides draw."""
    few = replace(RUN, process="poisson", max_concurrency=None, request_rate=4.0, num_requests=200)
    for seed in range(1, 5):
        predicted = rerun(few, BASE, seed)["predicted"]
        run = replace(few, measured={metric: predicted[metric] for metric in JUDGED})
        judged = judged_figures(run, rerun(run, BASE, intervals=True))
        assert all(row.interval[0] <= row.measured <= row.interval[1] for row in judged), (seed, judged)


def test_the_report_shows_the_explanation_and_names_the_run_among_several() -> None:
    from dashboards.replay_report import replay_html
    from simulator.replay.requests import replay_requests

    slow = as_measured(RUN, **{"engine.max_num_seqs": 2})
    replay = replay_requests([as_measured(replace(RUN, name="usual")), replace(slow, name="slow")], BASE, explain=True)
    assert replay.conclusion.startswith("slow: The server is ")
    page = replay_html(replay.document)
    assert "slow: The server is " in page
    assert "fewer sequences run at once" in page
