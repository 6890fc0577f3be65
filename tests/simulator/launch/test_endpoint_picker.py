"""llm-d's EndpointPickerConfig: its router in a scenario, its notes, and the file that is written back."""

import pytest
import yaml
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.launch.endpoint_picker import endpoint_picker_text, plug_ins, read_endpoint_picker
from simulator.running.scenario import Scenario
from simulator.serving.fleet.fleet_config import FilterConfig, RouterConfig, ScorerConfig

HEAD = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n"
AFFINITY = (
    HEAD
    + """
plugins:
- type: approx-prefix-cache-producer
  parameters: {autoTune: false, blockSizeTokens: 16, lruCapacityPerServer: 1000}
- type: metrics-data-source
  parameters: {interval: 1m0.5s}
- type: prefix-cache-affinity-filter
  name: affinity
  parameters: {affinityThreshold: 0.7, explorationProbability: 0.01, maxTTFTPenaltyMs: 2500,
    peakPrefillThroughput: 9000}
- {type: prefix-cache-scorer, name: prefix, parameters: {matchLengthWeight: 0.5}}
- type: queue-scorer
- type: decode-filter
- type: lora-affinity-scorer
- {type: active-request-scorer, parameters: {idleThreshold: 2, requestTimeout: 2m, futureKnob: 3}}
- type: weighted-random-picker
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}, {pluginRef: affinity}, {pluginRef: prefix, weight: 3},
    {pluginRef: queue-scorer}, {pluginRef: active-request-scorer, weight: 0.5},
    {pluginRef: lora-affinity-scorer, weight: 9}, {pluginRef: weighted-random-picker}]
"""
)


def read(text, pooled=False):
    return read_endpoint_picker(yaml.safe_load(text), pooled)


def scenario(**router):
    return Scenario(**tiny_data() | {"router": router})


def test_each_plugin_and_parameter_arrives_in_its_field():
    picker = read(AFFINITY)
    assert picker.router == {
        "filters": [{"filter": "prefix-affinity", "threshold": 0.7, "exploration": 0.01, "max_ttft_penalty_s": 2.5,
                     "peak_prefill_tokens_per_s": 9000}],
        "scorers": [{"scorer": "prefix", "weight": 3, "length_weight": 0.5}, {"scorer": "queue", "weight": 1.0},
                    {"scorer": "requests", "weight": 0.5, "idle": 2}],
        "picker": "weighted-random",
        "table_tokens": 64_000,
        "scrape_interval_s": 60.5,
    }  # fmt: skip


def test_what_has_no_counterpart_is_noted():
    notes = "\n".join(read(AFFINITY).notes)
    assert "lora-affinity-scorer is not modelled" in notes
    assert "futureKnob 3 is not modelled" in notes
    assert "no effect on the choice: decode-filter" in notes
    assert "requestTimeout" not in notes


def test_llm_d_s_own_default_rate_stands_where_the_file_names_none():
    picker = read(HEAD + "plugins: [{type: prefix-cache-affinity-filter}]")
    assert picker.router["filters"] == [{"filter": "prefix-affinity", "peak_prefill_tokens_per_s": 15928}]
    assert "peakPrefillThroughput is left out, and llm-d takes 15,928" in picker.notes[0]


@pytest.mark.parametrize(
    ("plugins", "says"),
    [
        ("[{type: queue-scorrer}]", "'queue-scorrer' is no plug-in that is known here; did you mean 'queue-scorer'"),
        ("[{name: queue}]", "plugins.0.type: missing"),
        ("[{type: queue-scorer}, {type: queue-scorer}]", "plugins.1: a second plug-in 'queue-scorer'"),
        (
            "[{type: metrics-data-source, parameters: {interval: soon}}, {type: queue-scorer}]",
            "a duration such as 50ms",
        ),
        ("[{type: prefix-cache-affinity-filter, parameters: {maxTTFTPenaltyMs: 5s}}]", "a number of milliseconds"),
        ("7", "plugins: must be a valid list"),
        ("[{type: queue-scorer, parameters: [1]}]", "plugins.0.parameters: must be a"),
        (
            "[{type: approx-prefix-cache-producer, parameters: {autoTune: false, lruCapacityPerServer: many}}]",
            "approx-prefix-cache-producer: lruCapacityPerServer: a whole number is needed",
        ),
    ],
)
def test_a_fault_is_refused_by_its_field(plugins, says):
    with pytest.raises(ForerunError, match=says):
        scenario(endpoint_picker=yaml.safe_load(f"{HEAD}plugins: {plugins}"))


def test_a_profile_that_names_no_plugin_is_refused():
    text = HEAD + "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a, plugins: [{pluginRef: queue}]}]"
    with pytest.raises(ForerunError, match=r"schedulingProfiles.a: no plug-in 'queue' is defined; did you mean"):
        read(text)


def test_prefixes_come_from_events_where_a_precise_producer_is_referenced():
    producer = "{type: precise-prefix-cache-producer, name: index}"
    scorer = "{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: %s}}"
    assert read(f"{HEAD}plugins: [{producer}, {scorer % 'index'}]").router["prefixes"] == "held"
    assert "prefixes" not in read(f"{HEAD}plugins: [{producer}, {scorer % 'other'}]").router


def test_a_limit_needs_flow_control():
    text = HEAD + "plugins: [{type: random-picker}, {type: concurrency-detector, parameters: {maxConcurrency: 40}}]\n"
    assert "max_outstanding" not in read(text).router
    gated = read(text + "featureGates: [flowControl]\nflowControl: {maxRequests: 2k}")
    assert (gated.router["max_outstanding"], gated.router["max_queue"]) == (40, 2000)


PROFILES = (
    HEAD + "plugins: [{type: prefix-cache-scorer}, {type: token-load-scorer}, {type: prefill-filter},\n"
    "  {type: decode-filter}]\n"
    "schedulingProfiles:\n"
    "- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer}]}\n"
    "- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: %s}]}\n"
)


def test_pools_take_the_profile_of_their_prompts():
    other, same = (PROFILES % name for name in ("token-load-scorer", "prefix-cache-scorer"))
    assert read(other).router["scorers"] == [{"scorer": "token-load", "weight": 1.0}]
    assert "profile decode is taken; left out: prefill" in read(other).notes[0]
    assert read(other, pooled=True).router["scorers"] == [{"scorer": "prefix", "weight": 1.0}]
    assert [read(text, pooled=True).decodes for text in (other, same)] == [False, True]
    pools = {"prefill": {"hardware": {"replicas": 2}}, "decode": {"hardware": {"replicas": 2}}}
    made = Scenario(**tiny_data() | {"pools": pools, "router": {"endpoint_picker": yaml.safe_load(same)}})
    assert made.kv_transfer.routing == made.engine.routing == "scored"


@pytest.mark.parametrize("name", ["config map", "helm values", "arguments"])
def test_a_configuration_is_read_where_a_deployment_has_it(tmp_path, name):
    text = HEAD + "plugins: [{type: queue-scorer}]\n"
    around = {
        "config map": {"kind": "ConfigMap", "data": {"rule.yaml": text, "readme": "kind of"}},
        "helm values": {"router": {"epp": {"pluginsConfigFile": "b.yaml", "pluginsCustomConfig": {
            "a.yaml": HEAD + "plugins: [{type: random-picker}]", "b.yaml": text}}}},
        "arguments": {"kind": "Deployment", "spec": {"containers": [{"args": ["--config-text", text]}]}},
    }  # fmt: skip
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.safe_dump(around[name]))
    made = scenario(endpoint_picker=str(file))
    assert [one.scorer for one in made.router.scorers] == ["queue"]
    assert made.engine.routing == "scored"


def test_two_configurations_without_a_name_that_chooses_are_refused(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump({"data": dict.fromkeys(("a.yaml", "b.yaml"), HEAD)}))
    with pytest.raises(ForerunError, match=r"two.yaml: holds 2 configurations .*\(a.yaml, b.yaml\); keep one"):
        scenario(endpoint_picker=str(file))


def test_its_rule_replaces_that_of_the_scenario_with_a_note():
    rule = yaml.safe_load(f"{HEAD}plugins: [{{type: token-load-scorer}}]")
    made = scenario(endpoint_picker=rule, scorers=[{"scorer": "queue"}], scrape_interval_s=1.0, latency_s=0.1)
    assert ([one.scorer for one in made.router.scorers], made.router.latency_s) == (["token-load"], 0.1)
    notes = [f"endpoint picker: it replaces router.{name}" for name in ("scorers", "scrape_interval_s")]
    assert list(made.readings) == notes


def test_fields_of_the_scenario_go_before_those_of_the_file():
    made = scenario(endpoint_picker=yaml.safe_load(AFFINITY), scrape_interval_s=0.2, latency_s=0.05)
    assert (made.router.scrape_interval_s, made.router.latency_s, made.router.picker) == (0.2, 0.05, "weighted-random")
    with pytest.raises(ForerunError, match=r"engine.routing round-robin has no use for it; set it to scored"):
        Scenario(**tiny_data() | {"engine": {"routing": "round-robin"},
                                  "router": {"endpoint_picker": yaml.safe_load(AFFINITY)}})  # fmt: skip


ROUTERS = [
    {"scorers": [{"scorer": "token-load", "weight": 2.0}]},
    {"picker": "random"},
    {"filters": [{"filter": "session-affinity"}, {"filter": "prefix-affinity", "peak_prefill_tokens_per_s": 5000.0,
                                                  "max_ttft_penalty_s": 0.0}],
     "scorers": [{"scorer": "prefix", "weight": 3.0}, {"scorer": "prefix", "length_weight": 1.0}], "prefixes": "held"},
    {"scorers": [{"scorer": "load-aware", "threshold": 9}, {"scorer": "session"}], "picker": "weighted-random",
     "scrape_interval_s": 0.25, "max_outstanding": 12, "max_queue": 50},
    {"scorers": [{"scorer": "no-hit-lru"}], "table_tokens": 64_000},
]  # fmt: skip


@pytest.mark.parametrize("fields", ROUTERS)
def test_a_router_that_is_written_reads_back_as_itself(fields):
    router = RouterConfig.model_validate(fields)
    picker = read(endpoint_picker_text(router))
    assert RouterConfig.model_validate(picker.router) == router
    assert not [note for note in picker.notes if "not modelled" in note and "fairness" not in note]


def test_the_table_holds_every_filter_scorer_and_picker():
    known = {kind: {entry["value"] for entry in plug_ins()[kind].values()} for kind in ("filter", "scorer", "picker")}
    assert known["filter"] == set(FilterConfig.model_fields["filter"].annotation.__args__)
    assert known["scorer"] == set(ScorerConfig.model_fields["scorer"].annotation.__args__)
    assert known["picker"] == {*RouterConfig.model_fields["picker"].annotation.__args__} - {"first"}
    for kind, config in (("filter", FilterConfig), ("scorer", ScorerConfig)):
        fields = {field for entry in plug_ins()[kind].values() for field in entry.get("parameters", {}).values()}
        assert fields == {*config.model_fields} - {kind, "weight"}


def test_what_cannot_be_written_stands_in_a_comment():
    router = RouterConfig.model_validate({"scorers": [{"scorer": "queue"}], "picker": "first", "latency_s": 0.1})
    assert [line[2:14] for line in endpoint_picker_text(router).splitlines() if line.startswith("#")] == [
        "picker first", "latency_s 0.", "scrape_inter"]  # fmt: skip


def test_the_command_reads_and_writes_the_file(tmp_path, forerun):
    (tmp_path / "rule.yaml").write_text(AFFINITY)
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(tiny_data()))
    outcome = forerun("run", tmp_path / "chat.yaml", "--router", tmp_path / "rule.yaml", "--emit", "endpoint-picker",
                      "--set", "hardware.replicas=2")  # fmt: skip
    assert "note: endpoint picker: lora-affinity-scorer is not modelled" in outcome.out
    written = outcome.out[outcome.out.index("apiVersion") :]
    assert read(written).router == read(AFFINITY).router
    plain = forerun("run", tmp_path / "chat.yaml", "--emit", "endpoint-picker")
    assert "engine.routing round-robin is no rule of llm-d; choose scored" in plain.err
    alone = forerun("run", tmp_path / "rule.yaml")
    assert "configures an endpoint picker; give it with a scenario" in alone.err


def test_a_manifest_brings_its_router(tmp_path):
    from simulator.running.scenario import load_scenario

    pod = {"containers": [{"image": "vllm/vllm-openai:v0.11.0", "args": ["--model=Qwen/Qwen3-8B"]}]}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3, "template": {"spec": pod}}}
    rule = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"rule.yaml": AFFINITY}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump_all([deployment, rule]))
    made = load_scenario(tmp_path / "fleet.yaml", ["hardware.chip=h100-sxm"])
    assert made.engine.routing == "scored"
    assert made.router.filters[0].threshold == 0.7
    assert any("lora-affinity-scorer" in note for note in made.readings)
