"""A run folder with all there is to show: a queue before two replicas that draft, a missed SLO, a failed request."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_comparison import made_comparison, made_swing, made_variant
from made_kernels import attention_rows, gemm_rows, measured
from plain_scenario import plain_data

import simulator
from alspec_report import atlas_html
from dashboards.recorded_errors import ErrorRow
from dashboards.report import write_report
from dashboards.study_report import study_html
from hwprofiles import KernelLibrary
from simulator.cli import main
from simulator.running.metrics import run_document
from simulator.running.metrics.files import write_text_atomically
from simulator.running.metrics.replications import combine_replications
from simulator.running.metrics.run_folder import RunFolder, load_run, write_run
from simulator.running.run import simulate
from simulator.running.scenario import Scenario, scenario_from
from simulator.studies.alspec import atlas_gains, atlas_layouts
from simulator.studies.compare.document import CompareResult
from simulator.studies.paired import HIGHER_IS_BETTER
from simulator.workload import generate_requests
from traces.kernels import concatenate
from validation.checks import write_check, write_errors
from validation.selfcheck.command import LABELS, METHODS, page_of

SCENARIO: dict[str, Any] = plain_data(
    "llama-3.1-8b",
    "l4",
    {"distribution": "uniform", "min": 10, "max": 2000},
    {"distribution": "uniform", "min": 1, "max": 300},
    240,
    hardware={"replicas": 2},
    engine={"max_num_seqs": 24, "max_model_len": 8192},
    speculation={"method": "eagle3", "num_speculative_tokens": 3, "acceptance": {"per_position": [0.73, 0.52, 0.35]}},
    workload={"arrivals": {"process": "poisson", "request_rate": 8.0}},
    slo={"p99_ttft_ms": 500.0, "p99_tpot_ms": 50.0},
    prices={"usd_per_chip_hour": 1.5},
)


def write_busy_run(folder: Path, replications: int = 1) -> Path:
    """Write a run folder and return it; of the requests the sixth is longer than the model allows."""
    scenario = scenario_from(SCENARIO, "busy")
    results = []
    for seed in range(replications):
        stream = generate_requests(scenario.workload, seed)
        prompts = np.where(np.arange(240) == 5, 10**6, stream.input_tokens)
        results.append(simulate(scenario, seed, stream=replace(stream, input_tokens=prompts)))
    documents = [run_document(result) for result in results]
    documents[0]["notes"].append("a remark with <markup> in it")
    write_run(folder, results[0], combine_replications(documents))
    return folder


def service(inputs: int = 256, outputs: int = 24, requests: int = 24, rate: float = 4.0, **changes: Any) -> Scenario:
    """A trickle of short requests to one replica that drafts."""
    chain = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": {"alpha": 0.7}}
    arrivals = {"arrivals": {"process": "poisson", "request_rate": rate}}
    sections = {"speculation": chain, "workload": arrivals} | changes
    chip = sections.get("hardware", {}).get("chip", "h100-sxm")
    model = sections.pop("model", "llama-3.1-8b")
    return Scenario.model_validate(plain_data(model, chip, inputs, outputs, requests, **sections))


def write_small_plan(folder: Path) -> Path:
    """Plan for a trickle of short requests, and write what ``forerun plan --out`` writes."""
    axes = {"hardware.tensor_parallel": (1, 2), "engine.max_num_batched_tokens": (2048,)}
    few = {"replications": 1, "requests": 20, "finalists": 2, "max_replicas": 2, "jobs": 1, "headroom": False}
    scenario = service(64, 16, 20, 2.0, speculation=None)
    return simulator.plan(scenario, rate=2.0, slo={"p99_ttft_ms": 1000}, vary=axes, **few).save(folder)


def vllm_result(slower: float = 1.3, model: str = "meta-llama/Llama-3.1-8B-Instruct", streams: int = 16) -> str:
    """Result of ``vllm bench`` of a closed loop on llama-3.1-8b and h100-sxm, slower than predicted."""
    arrivals = {"process": "closed-loop", "max_concurrency": streams}
    scenario = plain_data("llama-3.1-8b", "h100-sxm", 512, 256, 4 * streams, workload={"arrivals": arrivals})
    seen = simulate(scenario).document["summary"]
    ttft_ms, tpot_ms = slower * seen["mean_ttft_ms"], slower * seen["mean_tpot_ms"]
    duration = 4 * (ttft_ms + 255 * tpot_ms) / 1e3
    count = {"num_prompts": 4 * streams, "completed": 4 * streams, "max_concurrency": streams, "request_rate": "inf"}
    tokens = {"total_input_tokens": 512 * 4 * streams, "total_output_tokens": 256 * 4 * streams}
    rates = {"request_throughput": 4 * streams / duration, "output_throughput": 1024 * streams / duration}
    latencies = {f"{which}_{name}": one for which in ("mean", "median") for name, one in
                 (("ttft_ms", ttft_ms), ("tpot_ms", tpot_ms))}  # fmt: skip
    names = {"backend": "vllm", "model_id": model, "tokenizer_id": model}
    return json.dumps({**names, **count, **tokens, **rates, **latencies, "duration": duration})


@pytest.fixture(scope="session")
def result_text() -> Callable[..., str]:
    return vllm_result


@pytest.fixture(scope="session")
def write_plan() -> Callable[[Path], Path]:
    return write_small_plan


@pytest.fixture(scope="session")
def write_one() -> Callable[..., Path]:
    return write_busy_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_busy_run(tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture(scope="session")
def run(run_folder: Path) -> RunFolder:
    return load_run(run_folder)


def ratio(value, width=0.1):
    return {"ratio": value, "low": value - width, "high": value + width}


@pytest.fixture(scope="session")
def comparison():
    swings = [
        made_swing("host time of a step", [], 1.3, 1.1, parameter="vllm.step_s"),
        made_swing("what nobody asks for", [], 1.2, 1.2),
        made_swing("acceptance rates", ["b"], 0.9, 1.6, unit="s"),
    ]
    variants = [
        made_variant(
            name, dict.fromkeys(HIGHER_IS_BETTER) | s, summary={"mean_e2el_ms": 10.0, "output_throughput": None}
        )
        for name, s in (
            ("a", {"mean_e2el_ms": ratio(1.0, 0.0)}),
            ("b", {"mean_e2el_ms": ratio(1.2), "output_throughput": {"ratio": 0.9, "low": None, "high": None}}),
            ("c", {"mean_e2el_ms": None, "output_throughput": ratio(1.05)}),
        )
    ]
    points = [{"value": x, **ratio(y)} for x, y in ((1.0, 1.3), (2.0, 1.1), (4.0, 0.8))]
    crossing = {"variant": "b", "value": 2.4, "low": 2.0, "high": None, "better": "below"}
    path = "workload.arrivals.request_rate"
    along = {"path": path, "metric": "mean_e2el_ms"}
    curves = {**along, "requested": False, "curves": [{"variant": "b", "points": points}]}
    crossover = {**along, **crossing, "all": [crossing]}
    words = {"conclusion": "b wins | by <a lot>", "notes": ["a remark"], "scenario": SCENARIO, "seed": 3}
    optional = {"crossover": crossover, "load_curves": curves, "sensitivity": swings}
    return made_comparison(variants, "mean_e2el_ms", **optional, **words)


LLAMA_CPP: dict[str, Any] = {
    "engine": {"framework": "llama.cpp", "max_num_seqs": 4, "max_num_batched_tokens": 512, "max_model_len": 8192},
    "speculation": {
        "method": "draft-model",
        "num_speculative_tokens": 3,
        "draft": {"model": "qwen2.5-0.5b", "weights_dtype": "q8_0"},
        "acceptance": {"alpha": 0.75},
    },
}


def write_alspec(folder: Path) -> None:
    """A run with attention-level speculation, and the page of its atlas."""
    n150 = service(
        hardware={"chip": "n150", "tensor_parallel": 2, "speculative_parallel": 2},
        weights_dtype="bfp8",
        attention_speculation={"hit_rate": 0.875, "window_tokens": 128},
        speculation=None,
    )
    simulator.simulate(n150).save(folder / "alspec")
    cases = [case for group in atlas_layouts(["n150"], ["llama-3.1-8b"], [4]) for case in atlas_gains(group)]
    write_text_atomically(folder / "alspec" / "atlas.html", atlas_html(cases))


def write_replays(folder: Path) -> None:
    """Replays of kernels made from the formulas, of a run's own steps, and of benchmark results with custom columns."""
    generator = np.random.default_rng(0)
    table = concatenate([gemm_rows(200, generator), attention_rows(50, generator)])
    made = measured(table, "h100-sxm", "sglang", 0.05)
    simulator.replay_kernels(made, KernelLibrary("h100-sxm", "sglang")).save(folder / "replay-kernels")
    folder.joinpath("service.json").write_text(json.dumps(service().model_dump(mode="json", exclude_unset=True)))
    simulator.simulate(service()).save(folder / "measured")
    served = folder / "runs.csv"
    row = "llama-3.1-8b,h100-sxm,vllm,{0},256,24,{1},40,9,200,400"
    names = "model,chip,framework,max_concurrency,input_tokens,output_tokens,num_requests"
    rows = "\n".join(row.format(n, 4 * n) for n in (1, 2, 4))
    served.write_text(f"{names},mean_ttft_ms,mean_tpot_ms,mean_e2el_ms,output_throughput\n{rows}\n")
    for kind, file in (("steps", folder / "measured" / "steps.parquet"), ("requests", served)):
        command = ["replay", kind, str(file), "--scenario", str(folder / "service.json")]
        assert main([*command, "--out", str(folder / f"replay-{kind}")]) == 0


def write_checks(folder: Path) -> None:
    """The pages of ``validate`` and ``selfcheck``, of figures made up."""
    kinds = {
        "mean_ttft_ms": ("requests", "serving/of a service with a long name.csv", "datasheet"),
        "gemm": ("kernels", "gemm bf16, h100-sxm, vllm", "calibrated"),
        "attention_decode": ("kernels", "attention_decode bf16, h100-sxm", "extrapolated"),
    }
    rows = [
        ErrorRow(kind, name, metric if kind == "requests" else "seconds", 9, 7.5, 6.0, -1.0, basis, "some", True)
        for metric, (kind, name, basis) in kinds.items()
    ]
    write_errors(folder / "validate", rows)
    figures = {name: {"predicted": 41.5, "measured": 40.25, "error_percent": 3.1} for name in LABELS}
    document = {
        "comparisons": [{"speculation": name, "figures": figures} for name in METHODS],
        "machine": {"device": "An Example Of A Long Processor Name @ 3.00GHz", "clock": "cpu", "threads": 1}
        | {"dtype": "fp32", "drift_percent": 4.0, "wall_over_clock": 1.02},
        "batches": {"equal": 40, "steps": 41},
        "host": {"step_s": 0.0003},
        "calibration": {"rows": 90, "families": [{"family": "attention_decode", "held_out_mape": 7.0}]},
        "folder": None,
    }
    write_check(folder / "selfcheck", "selfcheck.json", document, page_of(document))


@pytest.fixture(scope="session")
def every_report(tmp_path_factory: pytest.TempPathFactory, comparison: dict[str, Any]) -> dict[str, Path]:
    """A page of every kind that commands and studies write, by name."""
    folder = tmp_path_factory.mktemp("reports")
    write_report(write_busy_run(folder / "run", replications=2))
    write_small_plan(folder / "plan")
    folder.joinpath("compare").mkdir()
    folder.joinpath("compare", "report.html").write_text(study_html(CompareResult(comparison)))
    simulator.tune(service(), batch=[1, 8, 64], context=[512, 4096], tokens=[1, 3]).save(folder / "tune")
    desktop = service(model="qwen2.5-7b", weights_dtype="q4_k_m", hardware={"chip": "rtx-4090"}, **LLAMA_CPP)
    simulator.tune_machine(desktop, measured=["100"], tokens=[2], p_min=[0.0]).save(folder / "tune-machine")
    axes = {"engine.max_num_seqs": (1, 4, 64), "engine.max_num_batched_tokens": (512, 2048)}
    simulator.sweep(service(), vary=axes, jobs=1).save(folder / "sweep")
    write_alspec(folder)
    write_replays(folder)
    write_checks(folder)
    return {str(path.relative_to(folder)): path for path in sorted(folder.glob("*/*.html"))}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium; without one on this machine the test is skipped."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def cut_tables():
    """First words of the tables of a page that their place cuts, once it has been laid out."""
    cut = """() => [...document.querySelectorAll('.scroll > table')].filter(e => e.checkVisibility({
        contentVisibilityAuto: true}) && e.parentElement.scrollWidth > e.parentElement.clientWidth + 1
        ).map(e => e.textContent.slice(0, 80))"""

    def cut_of(page):
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page.evaluate(cut)

    return cut_of


@pytest.fixture(scope="session")
def barriers_of():
    """What axe-core complains of in a page that a browser shows (opened with ``bypass_csp``): all, or colours alone.

    Colours are looked for outside drawings, where axe-core finds no contrast ("imgNode"), and in the first rows of a
    table, as which the others look.
    """
    source = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    tags = "['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']"
    kinds = f"runOnly: {tags}, rules: {{'color-contrast': {{enabled: false}}}}"
    places = "{exclude: [['.main-svg'], ['tbody tr:nth-child(n + 21)']]}"

    def complaints(page, colours_alone=False):
        if not page.evaluate("'axe' in window"):
            page.evaluate(source)
        looks = [(places, "runOnly: {type: 'rule', values: ['color-contrast']}")]
        looks += [] if colours_alone else [("document", kinds)]
        runs = [f"axe.run({where}, {{{what}, resultTypes: ['violations']}})" for where, what in looks]
        result = [one for run in runs for one in page.evaluate(f"{run}.then(report => report.violations)")]
        return [(one["impact"], one["id"], one["nodes"][0]["html"][:120]) for one in result]

    return complaints
