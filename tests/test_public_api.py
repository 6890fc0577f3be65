"""``import forerun as fr``: typed, complete by completion, and one line for whatever is wrong."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from plain_scenario import plain_data
from tiny_scenario import tiny_data

import forerun as fr
from simulator.serving.engine import UnifiedScheduler
from simulator.speculation.methods import METHODS
from simulator.studies.plan.options import PlanOptions

CONTRACT = (
    *("Scenario", "load_scenario", "simulate", "compare", "plan", "tune", "sweep", "estimate", "predict"),
    *("replay_kernels", "replay_requests", "calibrate", "Chip", "Model", "plot", "register", "ForerunError"),
    *("studies", "parts", "testing"),
)
SCRIPT = """
import forerun as fr

chat = fr.Scenario(model="llama-3.1-8b", chip="h100-sxm", trace="azure-conv-2023", slo={"p99_ttft_ms": 500})
run = fr.simulate(chat)
slowest: float | None = run.ttft_ms.p99
print(run.requests.head(), run.conclusion)
fr.plot.latency(run).write_html("latency.html")
print(fr.compare(chat, vary={"speculation.method": ["none", "ngram"]}).conclusion)
planned = fr.plan(chat, rate=40)
if planned.best is not None:
    chips: int = planned.best.chips
    command: str = planned.best.launch_command("vllm")
variant: str = fr.compare(chat, vary={"speculation.method": ["none", "ngram"]}).best.name
seconds: float = fr.predict("h100-sxm", "gemm", m=4096, n=4096, k=4096, dtype="bf16").seconds
step: float = fr.StepTime("llama-3.1-8b", "h100-sxm").seconds(prefill=[(512, 0)], decode=[100], draft_tokens=0)
served: float = fr.estimate(chat, rate=40).output_throughput
"""


@pytest.fixture(scope="module")
def chat():
    return fr.Scenario(model="llama-3.1-8b", chip="h100-sxm", input_tokens=64, output_tokens=8, num_requests=20,
                       request_rate=4.0, slo={"p99_ttft_ms": 500})  # fmt: skip


@pytest.fixture(scope="module")
def run(chat):
    return fr.simulate(chat)


def test_completion_shows_the_public_names_and_nothing_else():
    assert set(CONTRACT) <= set(dir(fr))
    assert all(not name.startswith("_") for name in set(dir(fr)) - {"__version__"})
    assert len(fr.__all__) <= 37
    shown = [name for name in dir(fr.plot) if inspect.isfunction(getattr(fr.plot, name))]
    assert {"latency", "bottleneck", "parity", "pareto", "speedup"} <= set(shown)
    shown = [name for name in dir(fr.register) if inspect.isfunction(getattr(fr.register, name))]
    assert {"scheduler", "drafter", "policy", "router", "admission", "reader"} <= set(shown)


def test_a_user_script_passes_strict_type_checks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    root = Path(__file__).resolve().parent.parent
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    checked = subprocess.run(
        [*words, "--config-file", str(root / "pyproject.toml"), str(script)], cwd=root, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    wrong = script.with_name("wrong.py")
    faults = "run.ttft_ms.p98\nfr.plot.latensy(run)\nfr.simulat(chat)\nfr.plan(chat, rates=4)\n"
    wrong.write_text(SCRIPT + faults, encoding="utf-8")
    checked = subprocess.run(
        [*words, "--config-file", str(root / "pyproject.toml"), str(wrong)], cwd=root, capture_output=True, text=True
    )
    assert checked.stdout.count("error:") == 4, checked.stdout


def test_options_of_a_plan_are_declared_once():
    """The signature of ``fr.plan``, the command and the search take them from one class."""
    scenario, *shown = inspect.signature(fr.plan).parameters.values()
    assert scenario.name == "scenario"
    assert shown == list(inspect.signature(PlanOptions).parameters.values())
    named = [one.name for one in shown if one.name != "progress"]
    assert named == list(fr.plan.declared.options)
    described = inspect.getdoc(fr.plan) or ""
    assert [name for name in named if f"    {name}: " not in described] == []


def test_parity_of_a_run_is_refused(chat):
    with pytest.raises(fr.ForerunError, match=r"parity: needs the result of a replay \(got a result of run\)"):
        fr.plot.parity(fr.simulate(chat))


def test_shortcuts_set_the_nested_fields(chat):
    arrivals = {"arrivals": {"process": "poisson", "request_rate": 4.0}}
    nested = plain_data("llama-3.1-8b", "h100-sxm", 64, 8, 20, workload=arrivals, slo={"p99_ttft_ms": 500})
    assert chat == fr.Scenario.model_validate(nested)
    assert chat == fr.Scenario(**nested)


def test_a_dict_takes_the_shortcuts_of_a_scenario(chat):
    fields = {"model": "llama-3.1-8b", "chip": "h100-sxm", "input_tokens": 64, "output_tokens": 8, "num_requests": 20}
    assert fr.simulate({**fields, "request_rate": 4.0, "slo": {"p99_ttft_ms": 500}}).scenario == chat
    with pytest.raises(fr.ForerunError, match=r"hardware\.chip is set twice"):
        fr.simulate({**fields, "hardware": {"chip": "a100-sxm-80gb"}, "request_rate": 4.0})
    with pytest.raises(fr.ForerunError, match="request_rate, max_concurrency: give one of the two"):
        fr.simulate({**fields, "request_rate": 4.0, "max_concurrency": 4})


def test_requests_have_their_latencies_and_the_catalogues_are_listed(run):
    for name in ("ttft_ms", "tpot_ms", "e2el_ms"):
        assert getattr(run.requests, name).mean() == pytest.approx(getattr(run, name).mean)
    assert "h100-sxm" in fr.chips()
    assert "llama-3.1-8b" in fr.models()
    assert fr.__version__ == run.document["version"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modell": "llama-3.1-8b"}, "Scenario: modell: unknown field; did you mean 'model'?"),
        ({"hardware": {"chip": "b200-sxm"}}, "Scenario: hardware.chip is set twice"),
        ({"chip": 3}, "Scenario: hardware.chip: must be a text (got 3)"),
        ({"request_rate": 3, "max_concurrency": 4}, "Scenario: request_rate, max_concurrency: give one of the two"),
        ({"slo": {"p99_tft_ms": 3}}, "Scenario: slo: 'p99_tft_ms' is no latency limit"),
    ],
)
def test_a_wrong_scenario_is_one_line(arguments, message):
    with pytest.raises(fr.ForerunError) as caught:
        fr.Scenario(**{"model": "llama-3.1-8b", "trace": "azure-conv-2023", "chip": "h100-sxm", **arguments})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_every_study_takes_a_path_a_dict_or_a_scenario(tmp_path, chat, run):
    path = tmp_path / "chat.yaml"
    path.write_text(chat.model_dump_json(exclude_unset=True), encoding="utf-8")
    for source in (str(path), path, chat.model_dump(exclude_unset=True)):
        assert fr.simulate(source).summary == run.summary
        assert fr.estimate(source, rate=2.0) == fr.estimate(chat, request_rate=2.0)
    swept = fr.sweep(chat.model_dump(exclude_unset=True), {"engine.max_num_seqs": [4]}, jobs=1)
    assert swept.document["points"][0]["status"] == "done"


@pytest.mark.parametrize("study", [fr.simulate, fr.estimate, fr.compare, fr.plan, fr.tune, fr.sweep])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.yaml", "nowhere.yaml: no such scenario file"),
        ({"model": "llama-3.1-8b"}, "scenario: "),
        (7, "scenario: "),
    ],
)
def test_what_is_no_scenario_is_one_line(study, source, message):
    with pytest.raises(fr.ForerunError) as caught:
        study(source)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


NUMBERS = [
    (fr.simulate, {"seed": -1}, "seed: must be a whole number from 0 (got -1)"),
    (
        fr.sweep,
        {"vary": {"engine.max_num_seqs": [8, 16]}, "seed": "a"},
        "seed: must be a whole number from 0 (got 'a')",
    ),
    (fr.compare, {"vary": {"engine.max_num_seqs": [8, 16]}, "replications": 0}, "replications: must be a whole number"),
    (fr.plan, {"rate": 1.0, "max_replicas": 1.5}, "max_replicas: must be a whole number from 1"),
]


@pytest.mark.parametrize(("study", "arguments", "message"), NUMBERS)
def test_a_number_out_of_bounds_is_refused_as_by_the_command(chat, study, arguments, message):
    with pytest.raises(fr.ForerunError) as caught:
        study(chat, **arguments)
    assert str(caught.value).startswith(message)


def test_a_run_has_named_figures(run):
    summary = run.document["summary"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        statistics = getattr(run, f"{name}_ms")
        assert statistics._asdict() == {key: summary[f"{key}_{name}_ms"] for key in statistics._fields}
    assert (run.completed, run.failed) == (20, 0)
    assert run.duration_s == summary["duration"]
    assert run.request_goodput == summary["request_goodput"]
    assert run.meets_slo is True
    assert run.acceptance_length is None
    assert sum(run.bottleneck.values()) == pytest.approx(1.0)
    table = run.requests.head(3)
    assert len(table.rows) == 3
    assert "arrival_s" in str(table)
    assert "<table" in table._repr_html_()


def test_every_figure_of_a_run_has_a_function(run):
    for name in run.figures:
        assert getattr(fr.plot, name)(run) == run.figure(name)


def test_a_prediction_has_named_figures():
    time = fr.predict("h100-sxm", "gemm", m=4096, n=4096, k=4096, dtype="bf16")
    assert time.seconds == time["seconds"] > 0
    assert time.flops == 2 * 4096**3
    low, high = time.interval_s
    assert low <= time.seconds <= high
    assert (time.bound, time.basis) == (time["bound"], time["basis"])


@pytest.fixture
def forgotten():
    from simulator.running.drafting import BUILDERS
    from simulator.serving.rules import SCHEDULERS
    from simulator.speculation.policies import POLICIES
    from simulator.speculation.speculation_config import POLICY_FIELDS
    from traces.requests.detect import FORMATS, READERS

    yield
    for table in (BUILDERS, SCHEDULERS, METHODS, POLICY_FIELDS, POLICIES, FORMATS, READERS):
        table.pop("registered", None)


def test_registered_plug_ins_run_by_name(forgotten, tmp_path):
    from simulator.running.drafting import lookup

    @fr.register.scheduler("registered")
    class ShortestFirst(UnifiedScheduler):
        def add(self, sequence):
            self.waiting.append(sequence)
            ordered = sorted(self.waiting, key=lambda waiting: waiting.known_tokens)
            self.waiting.clear()
            self.waiting.extend(ordered)

    @fr.register.policy("registered")
    class OneToken:
        by_batch_alone = True

        def __init__(self, most):
            self.most = most

        def choose(self, batch):
            return min(1, self.most)

        def observe(self, tokens, accepted):
            pass

    fr.register.drafter("registered", draft_slots=False, looks_up=True, times_of="ngram")(lookup)

    @fr.register.reader("registered")
    def read(path):
        for line in path.read_text().splitlines():
            yield dict(zip(("arrival_s", "input_tokens", "output_tokens"), map(float, line.split("|")), strict=True))

    log = tmp_path / "log.txt"
    log.write_text("0|100|5\n0.5|50|7\n", encoding="utf-8")
    drafting = {
        "method": "registered", "num_speculative_tokens": 3, "acceptance": {"alpha": 0.9}, "policy": "registered",
    }  # fmt: skip
    data = tiny_data()
    data |= {"engine": {"scheduler": "registered"}, "speculation": drafting}
    data["workload"] = {"trace": str(log), "format": "registered"}
    result = fr.simulate(data)
    assert result.requests.output_tokens.tolist() == [5, 7]
    assert (
        result.document["summary"]["spec_decode_draft_tokens"] == result.document["summary"]["spec_decode_num_drafts"]
    )
    with pytest.raises(fr.ForerunError, match=r"facts: .*mixez"):
        fr.register.scheduler("registered", replace=True, mixez=True)(ShortestFirst)


class NoRouter:
    def __init__(self, settings):
        pass


class HalfARouter:
    def __init__(self, settings, log):
        pass

    def choose(self, request):
        pass


@pytest.mark.parametrize(
    ("kind", "name", "plugin", "words"),
    [
        ("scheduler", "vllm-v1", UnifiedScheduler, r"'vllm-v1' is in use; choose another, or state replace=True"),
        ("scheduler", " vllm-v1", UnifiedScheduler, "lower-case words with dashes"),
        ("scheduler", "VLLM-V1", UnifiedScheduler, "lower-case words with dashes"),
        ("reader", "a,b", NoRouter, "lower-case words with dashes"),
        ("router", "round-robin", NoRouter, "is in use"),
        ("admission", "queue", NoRouter, "is in use"),
        ("drafter", "ngram", NoRouter, "is in use"),
        ("policy", "ema", NoRouter, "is in use"),
        ("reader", "azure-llm", NoRouter, "is in use"),
        ("reader", "auto", NoRouter, "is in use"),
        ("scheduler", UnifiedScheduler, None, r"a name is needed, as in @fr.register.scheduler\('mine'\)"),
        ("scheduler", "registered", NoRouter, "NoRouter does not build on Scheduler"),
        ("scheduler", "registered", lambda *_: None, "is not a class"),
        ("scheduler", "registered", UnifiedScheduler.__base__, "Scheduler has no method "),
        ("router", "registered", NoRouter, "NoRouter is called with 2 arguments: too many"),
        ("router", "registered", HalfARouter, r"HalfARouter.choose is called with 2 arguments"),
        ("admission", "registered", NoRouter, "NoRouter has no method takers"),
        ("drafter", "registered", NoRouter(0), "is not a class or a function"),
        ("drafter", "registered", NoRouter, "has no method parts"),
        ("policy", "registered", HalfARouter, "is called with 1 argument: missing"),
        ("reader", "registered", lambda: (), "is called with 1 argument: too many"),
    ],
)
def test_a_plug_in_that_could_not_run_or_would_hide_another_is_refused_at_once(kind, name, plugin, words):
    with pytest.raises(fr.ForerunError, match=words):
        getattr(fr.register, kind)(name)(plugin)


def test_a_plug_in_replaces_another_where_that_is_stated(forgotten):
    for _ in range(2):
        fr.register.scheduler("registered", replace=True)(UnifiedScheduler)
    with pytest.raises(fr.ForerunError, match="is in use"):
        fr.register.scheduler("registered")


def scenario():
    return fr.Scenario(**tiny_data())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: fr.Scenario("llama-3.1-8b"),
            r"Scenario: takes fields by name, such as Scenario\(model='llama-3.1-8b'",
        ),
        (lambda: fr.Scenario(**tiny_data() | {"model": ""}), "model: must name a model"),
        (lambda: fr.Scenario(**tiny_data() | {"hardware": {"chip": "."}}), "hardware.chip: no chip '.'"),
        (lambda: fr.Scenario(**tiny_data() | {"hardware": {"chip": "h100"}}), "hardware.chip: no chip 'h100'; did you"),
        (lambda: fr.Scenario(**tiny_data() | {"model": "llama-3.1-8"}), "model: no model 'llama-3.1-8'; did you mean"),
        (lambda: fr.Scenario(**tiny_data() | {"engine": {"framework": "vlm"}}), "engine.framework: no framework 'vlm'"),
        (
            lambda: fr.Scenario(**tiny_data() | {"hardware": {"chip": "l40s", "link": "x"}}),
            "hardware.link: no link 'x'",
        ),
        (
            lambda: fr.Scenario(**tiny_data() | {"pools": {"one": {"hardware": {"chip": "h100"}}}}),
            r"pools.one.hardware.chip: no chip 'h100'",
        ),
        (lambda: scenario().with_values({"hardware.chip": "h100"}), "hardware.chip: no chip 'h100'"),
        (lambda: scenario().with_values(3), "values by dotted path"),
        (lambda: setattr(scenario().hardware, "tensor_parallel", 2), r"with_values\({'hardware.tensor_parallel': 2}\)"),
        (lambda: setattr(scenario(), "model", "gpt-oss-20b"), r"with_values\({'model': 'gpt-oss-20b'}\)"),
        (lambda: delattr(scenario(), "slo"), "does not change"),
        (lambda: fr.Scenario.model_validate({"model": "llama-3.1-8b"}), "Scenario: .*missing"),
        (lambda: fr.Scenario.model_validate(3), r"Scenario: must be a mapping of fields \(got 3\)"),
        (lambda: fr.Scenario.model_validate_json("{"), "Scenario: invalid JSON"),
        (lambda: fr.load_scenario(3), "a path to a file is expected"),
        (lambda: fr.load_chip(3), "a name or a path is expected"),
        (lambda: fr.plan(scenario(), rate="60"), r"rate: must be a number \(got '60'\)"),
        (lambda: fr.plan(scenario(), rate=True), r"rate: must be a number"),
        (lambda: fr.plan(scenario(), slo=3), "slo: must be a mapping or a list"),
        (lambda: fr.plan(scenario(), slo={"p99_ttft_ms": "x"}), r"slo p99_ttft_ms: must be a number"),
        (lambda: fr.plan(scenario(), slo=[3]), "slo: 3: write KEY=VALUE"),
        (lambda: fr.plan(scenario(), vary=["a"]), "vary: must be a mapping"),
        (lambda: fr.plan(scenario(), rates=3), r"fr.plan: got an unexpected keyword argument 'rates' .*by name rate, "),
        (lambda: fr.compare(scenario(), scenario()), r"go in a list: fr.compare\(\[first"),
        (lambda: fr.compare([scenario()]), "scenarios: a list of two or more is needed"),
        (lambda: fr.compare([3, 4]), "scenario: a Scenario, a dict or a path"),
        (
            lambda: fr.sweep(scenario(), vary={"engine.max_num_seqs": [2]}, samples="4"),
            "samples: must be a whole number",
        ),
    ],
)
def test_a_wrong_argument_is_refused_at_once_in_one_line(call, words):
    with pytest.raises(fr.ForerunError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_scenarios_are_compared_as_a_list_and_by_name():
    one, other = scenario(), tiny_data() | {"engine": {"max_num_seqs": 2}}
    quick = {"replications": 2, "crossover": "none", "sensitivity": False, "interval": False, "jobs": 1}
    listed, named = fr.compare([one, other], **quick), fr.compare({"one": one, "other": other}, **quick)
    assert [variant["name"] for variant in listed.document["variants"]] == ["scenario 1", "scenario 2"]
    assert [variant["name"] for variant in named.document["variants"]] == ["one", "other"]
    again = fr.Scenario.model_validate(tiny_data())
    assert again == fr.Scenario.model_validate_json(json.dumps(tiny_data())) == scenario()


FUNCTIONS = [name for name in fr.__all__ if inspect.isfunction(getattr(fr, name)) or name == "StepTime"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_call_that_does_not_fit_is_refused_in_one_line(name):
    for arguments, named in (((), {"nonsense": 1}), ((*range(30),), {})):
        with pytest.raises(fr.ForerunError, match=f"^fr.{name}: ") as error:
            getattr(fr, name)(*arguments, **named)
        assert "\n" not in str(error.value)


def test_values_that_no_call_takes_are_refused_in_one_line(chat, tmp_path):
    taken = tmp_path / "file"
    taken.touch()
    for call, named in (
        (lambda: fr.simulate(chat, replications=2), "unexpected keyword argument 'replications'"),
        (lambda: fr.estimate(chat, rate="40"), "positive number .got '40'"),
        (lambda: fr.estimate(chat, rate=True), "positive number .got True"),
        (lambda: fr.plan(chat, rate=4, slo={"p99_ttft_ms": float("inf")}), "slo p99_ttft_ms: must be a number"),
        (lambda: fr.simulate(chat, measured=str(taken)), f"{taken}: "),
        (lambda: fr.simulate(chat, measured=taken), f"{taken}: "),
        (lambda: fr.simulate(chat).save(taken / "folder"), "cannot be written"),
    ):
        with pytest.raises(fr.ForerunError, match=named):
            call()
