"""Traces whose requests wait for each other: AIPerf's DAG files, kv-cache-tester's sessions, OpenTelemetry's spans."""

import json
from collections import defaultdict

import numpy as np
import pytest
from agent_sample import FILE, sample
from hypothesis import given
from hypothesis import strategies as st

from traces import TraceError, read_requests, write_requests
from traces.requests import agents
from traces.requests.agents import interval_order


def written(folder, *lines, name="trace.jsonl"):
    path = folder / name
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def waits(table) -> dict[int, set[int]]:
    result = defaultdict(set)
    for before, waiting in table.follows.tolist():
        result[waiting].add(before)
    return dict(result)


def turn(text: str, tokens: int, **rest) -> dict:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, **rest}


def test_turns_follow_each_other_spawned_sessions_are_joined_and_forks_go_on(tmp_path):
    lines = [
        {
            "session_id": "root",
            "turns": [
                turn("a" * 400, 10, spawns=["one", {"children": ["two"], "join_at": 2}]),
                turn("b" * 40, 5, delay=250.0),
                turn("c" * 40, 5, forks=["on"]),
            ],
        },
        {"session_id": "one", "turns": [turn("d" * 80, 3), turn("e" * 8, 3)]},
        {"session_id": "two", "turns": [turn("f" * 80, 3)]},
        {"session_id": "on", "turns": [turn("g" * 4, 2)]},
    ]
    table = read_requests(written(tmp_path, *lines))
    assert table.format == "aiperf-dag"
    names = [table.session_names[code] for code in table.session_id]
    assert list(zip(names, table.turn.tolist(), strict=True)) == [
        ("root", 0), ("one", 0), ("one", 1), ("two", 0), ("root", 1), ("root", 2), ("on", 0)
    ]  # fmt: skip
    assert waits(table) == {1: {0}, 2: {1}, 3: {0}, 4: {0, 2}, 5: {4, 3}, 6: {5}}
    assert table.input_tokens.tolist() == [100, 20, 20 + 3 + 2, 20, 100 + 10 + 10, 120 + 5 + 10, 135 + 5 + 1]
    assert table.output_tokens.tolist() == [10, 3, 3, 3, 5, 5, 2]
    assert table.think_time_s.tolist() == [0, 0, 0, 0, 0.25, 0, 0]
    assert table.arrival_s is None
    hashes = table.prefix_hashes
    assert [len(hashes.of(row)) for row in range(7)] == [
        (prompt + answer - 1) // 16
        for prompt, answer in zip(table.input_tokens.tolist(), table.output_tokens.tolist(), strict=True)
    ]
    before, after = hashes.of(5).tolist(), hashes.of(6).tolist()
    assert after[: len(before)] == before, "a fork goes on from the parent's messages and answers"
    assert hashes.of(1)[0] != hashes.of(0)[0], "a spawned session begins afresh"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"session_id": "a", "turns": [turn("x", 1, spawns=["b"])]}], "calls 'b'"),
        ([{"session_id": "a", "turns": [turn("x", 1, spawns=["a"])]}], "every session is called by another"),
        ([{"session_id": "a", "turns": [turn("x", 1)]}] * 2, "a second time"),
        ([{"session_id": "a", "turns": [turn("x", 0)]}], "max_tokens"),
        ([{"session_id": "a", "turns": [turn("x", 1, spawns=[{"children": ["b"], "join_at": 0}])]}], "join_at"),
        ([{"session_id": "a", "turns": [turn("x", 1, forks=["b"]), turn("x", 1)]},
          {"session_id": "b", "turns": [turn("x", 1)]}], "the last turn forks"),
        ([{"session_id": "a", "turns": [turn("x", 1, forks=["b"])]},
          {"session_id": "b", "turns": [turn("x", 1, spawns=["c"])]},
          {"session_id": "c", "turns": [turn("x", 1, spawns=["b"])]}], "calls itself"),
        ([{"session_id": "a", "orchestrator": True, "turns": [], "spawns": ["b"]}], "orchestrator"),
        ([{"session_id": "a", "turns": [{"max_tokens": 3}]}], "messages"),
        ([{"session_id": "a", "turns": [turn("x", 1, forks=7)]}], "ids of sessions"),
    ],
)  # fmt: skip
def test_what_is_no_dag_is_refused_by_name(tmp_path, lines, message):
    with pytest.raises(TraceError, match=message) as refusal:
        read_requests(written(tmp_path, *lines))
    assert "trace.jsonl" in str(refusal.value)


def test_sessions_that_call_sessions_cannot_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(agents, "MOST_REQUESTS", 1000)
    lines = [{"session_id": str(depth), "turns": [turn("x", 1, spawns=[str(depth + 1)] * 2)]} for depth in range(30)]
    with pytest.raises(TraceError, match="more than"):
        read_requests(written(tmp_path, *lines, {"session_id": "30", "turns": [turn("x", 1)]}))


def span(trace: str, began_s: float, ended_s: float, prompt: int, answer: int) -> dict:
    attributes = [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(prompt)}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(answer)}},
    ]
    stamps = {"startTimeUnixNano": str(int(1e9 * began_s)), "endTimeUnixNano": str(int(1e9 * ended_s))}
    return {"traceId": trace, "attributes": attributes} | stamps


def otlp(*spans: dict) -> dict:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_of_a_trace_wait_for_what_had_ended(tmp_path):
    plan, left, right = span("t", 100, 102, 50, 5), span("t", 102.5, 104, 60, 6), span("t", 103, 105, 70, 7)
    join, other = span("t", 106, 107, 80, 8), span("u", 103.5, 104.5, 10, 1)
    tool = {"traceId": "t", "startTimeUnixNano": "1", "attributes": [{"key": "gen_ai.tool.name", "value": {}}]}
    for path in (
        written(tmp_path, otlp(join, plan, tool, right, left, other), name="one.json"),
        written(tmp_path, otlp(plan, other, tool), otlp(join, left, right), name="lines.jsonl"),
    ):
        table = read_requests(path)
        assert table.format == "otel"
        assert table.input_tokens.tolist() == [50, 60, 70, 10, 80]
        assert table.arrival_s.tolist() == pytest.approx([0, 2.5, 3, 3.5, 6])
        assert waits(table) == {1: {0}, 2: {0}, 4: {1, 2}}
        assert table.measured_e2e_s.tolist() == pytest.approx([2, 1.5, 2, 1, 1])


def request(at_s: float, took_s: float | None, tokens: int = 64) -> dict:
    return {"t": at_s, "type": "n", "in": tokens, "out": 4, "hash_ids": [], "api_time": took_s, "think_time": 0.5}


@pytest.mark.parametrize("from_call", [True, False])
def test_a_parent_waits_for_its_subagents_and_they_for_it(tmp_path, from_call):
    inner = [request(at_s if from_call else 12.0 + at_s, 2.0) for at_s in (0.0, 3.0)]
    session = {
        "id": "s",
        "block_size": 64,
        "requests": [
            request(0.0, 10.0),
            {"t": 12.0, "type": "subagent", "agent_id": "a", "requests": inner},
            request(13.0, 3.0),
            request(20.0, 1.0),
        ],
    }
    table = read_requests(written(tmp_path, session, name="s.json"))
    assert table.arrival_s.tolist() == [0, 12, 13, 15, 20]
    assert waits(table) == {1: {0}, 2: {0}, 3: {1}, 4: {2, 3}}, "what overlaps does not wait"


intervals = st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda one: (float(one[0]), float(sum(one))))


@given(st.lists(intervals, max_size=12))
def test_interval_order_is_the_least_that_orders_what_was_ordered(spans):
    def ended(one: int, other: int) -> bool:
        return spans[one][1] <= spans[other][0] and spans[one][0] < spans[other][0]

    for place, result in enumerate(interval_order(spans)):
        done = [one for one in range(len(spans)) if ended(one, place)]
        assert result == [one for one in done if not any(ended(one, other) for other in done)]


@pytest.mark.parametrize("name", ["table.csv", "table.jsonl", "table.parquet"])
def test_who_waits_for_whom_survives_writing(tmp_path, name):
    table = read_requests(written(tmp_path, otlp(*(span("t", at, at + 1, 9, 2) for at in (1, 2, 2.5, 4)))))
    again = read_requests(write_requests(table, tmp_path / name))
    assert again.format == "forerun"
    np.testing.assert_array_equal(again.follows, table.follows)
    np.testing.assert_array_equal(again.head(3).follows, [[0, 1], [0, 2]])


def test_the_sample_is_what_its_script_makes():
    assert FILE.read_text(encoding="utf-8") == sample()
    table = read_requests("agents")
    assert len(table) == 92
    assert len(table) - len(waits(table)) == 6
    assert max(map(len, waits(table).values())) >= 4


def nested(span, parent, name, usage=None, operation=None, at_s=0):
    """A span of one trace; ``usage`` are its tokens in and out."""
    attributes = [{"key": "gen_ai.operation.name", "value": {"stringValue": operation}}] if operation else []
    for side, tokens in zip(("input", "output"), usage or (), strict=False):
        attributes.append({"key": f"gen_ai.usage.{side}_tokens", "value": {"intValue": str(tokens)}})
    began = 10**18 + at_s * 10**9
    times = {"startTimeUnixNano": str(began), "endTimeUnixNano": str(began + 10**8)}
    return {"traceId": "t", "spanId": span, "parentSpanId": parent, "name": name, "attributes": attributes, **times}


NESTED = {
    "client and server": [nested("a", "", "openai.chat", (20, 3)), nested("b", "a", "llm_request", (20, 3))],
    "three deep, a span without usage between": [
        nested("a", "", "invoke_agent x", (20, 3)), nested("b", "a", "http"), nested("c", "b", "chat", (20, 3)),
        nested("d", "c", "llm_request", (20, 3)),
    ],
    "one exported twice": [nested("a", "", "chat", (20, 3)), nested("a", "", "chat", (20, 3))],
    "a chat whose tool asks again": [
        nested("a", "", "chat", (15, 1), "chat"), nested("b", "a", "execute_tool f"), nested("c", "b", "chat", (5, 2)),
    ],
    "an agent whose calls are its tools'": [
        nested("a", "", "plan", (20, 3), "invoke_agent"), nested("b", "a", "f", None, "execute_tool"),
        nested("c", "b", "chat", (20, 3)),
    ],
    "an agent around a span that was not exported": [
        nested("a", "", "agent", (20, 3)), nested("c", "gone", "chat", (15, 2)), nested("d", "gone", "chat", (5, 1)),
    ],
    "an agent whose sums are short of an answer": [
        nested("a", "", "x", (15, 2), "invoke_agent"), nested("c", "gone", "chat", (15, 2)),
        nested("d", "gone", "chat", (5, 1)),
    ],
    "calls of one parent that was not exported": [
        nested("c", "gone", "chat", (15, 2)), nested("d", "gone", "chat", (5, 1)),
    ],
    "a request beside one whose parent was not exported": [
        nested("a", "", "chat", (15, 1)), nested("c", "gone", "chat", (5, 2)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("spans", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("form", ["document", "lines", "list", "indented list"])
def test_nested_spans_are_one_request(tmp_path, spans, form):
    """The innermost counts, and a note names what is left out, whatever the order and the form of the spans."""
    exports = [{"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]} for span in reversed(spans)]
    file = tmp_path / "spans.json"
    if form == "document":
        file.write_text(json.dumps({"resourceSpans": [one for export in exports for one in export["resourceSpans"]]}))
    elif form == "lines":
        file.write_text("\n".join(map(json.dumps, exports)))
    else:
        file.write_text(json.dumps(exports, indent=2 if form == "indented list" else None))
    table = read_requests(file)
    assert (int(table.input_tokens.sum()), int(table.output_tokens.sum())) == (20, 3)
    usage = {span["spanId"] for span in spans if len(span["attributes"]) > 1}
    assert any("innermost" in note for note in table.notes) == (len(table) < len(usage))


JAEGER_TAGS = [
    {"key": "gen_ai.usage.prompt_tokens", "value": 20},
    {"key": "gen_ai.usage.completion_tokens", "value": 3},
]
TIMES = {"startTime": "2026-08-01T12:00:00Z", "endTime": "2026-08-01T12:00:02Z"}
LANGFUSE = TIMES | {"id": "b", "traceId": "t", "type": "GENERATION", "parentObservationId": "a"}
LANGFUSE |= {"completionStartTime": "2026-08-01T12:00:00.5Z"}
SDK = {"name": "chat", "context": {"trace_id": "t", "span_id": "b"}, "parent_id": "a"}
SDK |= {"start_time": TIMES["startTime"], "end_time": TIMES["endTime"]}
SDK |= {"attributes": {"llm": {"token_count": {"prompt": 20, "completion": 3}}}}
JAEGER_TIMES = {"startTime": 1784000000000000, "duration": 2000000, "tags": JAEGER_TAGS}
OTHER_TRACERS = {
    "tempo": {"batches": otlp(nested("b", "a", "chat", (20, 3)))["resourceSpans"]},
    "jaeger": {"data": [{"traceID": "t", "spans": [
        {"traceID": "t", "spanID": one, "references": [{"refType": "CHILD_OF", "spanID": parent}] if parent else [],
         **JAEGER_TIMES} for one, parent in (("a", ""), ("b", "a"))
    ]}]},
    "an SDK, one document after the other": SDK,
    "flat columns": {"context.trace_id": "t", "context.span_id": "b", "start_time": 1784000000000,
                     "end_time": 1784000002000, "attributes.llm.token_count.prompt": 20,
                     "attributes.llm.token_count.completion": 3},
    "log records": {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "1784000000000000000",
        "attributes": nested("", "", "", (20, 3))["attributes"]}]}]}]},
    "langfuse": {"data": [LANGFUSE | {"usage": {"input": 20, "output": 3, "total": 23}}, LANGFUSE | {
        "id": "a", "type": "SPAN", "parentObservationId": None, "usageDetails": {}}]},
    "langfuse with kinds of tokens": {"id": "t", "observations": [LANGFUSE | {"usageDetails": {
        "input": 15, "input_cached_tokens": 5, "output": 1, "output_reasoning_tokens": 2, "total": 23}}]},
    "langfuse with kinds within": LANGFUSE | {
        "usageDetails": {"input": 20, "cache_read_input_tokens": 5, "output": 3, "total": 23}},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_TRACERS)
@pytest.mark.parametrize("indent", [None, 1])
def test_spans_of_every_tracer(tmp_path, name, indent):
    document = OTHER_TRACERS[name]
    copies = [document, {**document, "x": 1}] if "after" in name else [document]
    file = tmp_path / "spans.json"
    file.write_text("\n".join(json.dumps(one, indent=indent) for one in copies))
    table = read_requests(file)
    assert (table.format, table.input_tokens.tolist(), table.output_tokens.tolist()) == ("otel", [20], [3])
    if name not in ("tempo", "log records"):
        assert table.measured_e2e_s.tolist() == pytest.approx([2.0])
    if "langfuse" in name:
        assert table.measured_ttft_s.tolist() == pytest.approx([0.5])


def test_nested_spans_in_two_files_count_once(tmp_path):
    for name, one in (("client", nested("a", "", "chat", (20, 3))), ("server", nested("b", "a", "llm", (20, 3)))):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(otlp(one)))
    assert read_requests(tmp_path).input_tokens.tolist() == [20]
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert any("1 documents without a span left out" in note for note in read_requests(tmp_path).notes)


def entry(second: int, kind: str, number: int, usage: dict | None = None, message: str = "") -> dict:
    """A line of Claude Code's session file, its parent the one before."""
    stamp = f"2026-08-02T10:00:{second:02d}.000Z"
    body = {"role": kind} | ({"id": message, "usage": usage} if usage else {})
    own = {"type": kind, "sessionId": "s", "uuid": f"u{number}", "parentUuid": f"u{number - 1}"}
    return own | {"timestamp": stamp, "message": body}


def test_sessions_of_coding_agents(tmp_path):
    """Lines of one answer count once, with its last usage; cached tokens are those of the request before."""
    first = {"input_tokens": 4, "cache_creation_input_tokens": 636, "cache_read_input_tokens": 640, "output_tokens": 1}
    second = {"input_tokens": 64, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1280, "output_tokens": 9}
    lines = [
        {"type": "summary", "summary": "x"}, entry(0, "user", 0), entry(2, "assistant", 1, first, "m1"),
        entry(3, "assistant", 2, first | {"output_tokens": 30}, "m1"), entry(5, "user", 3),
        entry(9, "assistant", 4, second, "m2"),
        entry(9, "assistant", 5, {"input_tokens": 0, "output_tokens": 0}, "none"),
    ]  # fmt: skip
    table = read_requests(written(tmp_path, *lines, name="s.jsonl"))
    assert (table.format, table.input_tokens.tolist(), table.output_tokens.tolist()) == (
        "coding-agent",
        [1280, 1344],
        [30, 9],
    )
    assert (table.arrival_s.tolist(), table.measured_e2e_s.tolist()) == ([0, 5], [3, 4])
    assert waits(table) == {1: {0}}
    before, after = table.prefix_hashes.of(0).tolist(), table.prefix_hashes.of(1).tolist()
    assert after[:20] == before
    assert after[20] not in before
    mixed = written(tmp_path, *lines, {"timestamp": 5, "input_length": 7, "output_length": 8}, name="mixed.jsonl")
    assert "1 lines that are no entries of a session left out" in read_requests(mixed).notes


def test_rollouts_of_codex_repeat_their_counts(tmp_path):
    def line(second, kind, **payload):
        return {"timestamp": f"2026-08-02T10:00:{second:02d}Z", "type": kind, "payload": payload}

    lines = [line(0, "session_meta", id="s"), line(1, "event_msg", type="user_message")]
    for turn in (0, 1):
        usage = {"input_tokens": 1000 + turn, "cached_input_tokens": 900 * turn, "output_tokens": 10}
        counted = {
            "type": "token_count",
            "info": {"total_token_usage": {"total_tokens": turn}, "last_token_usage": usage},
        }
        answer = line(5 + 10 * turn, "event_msg", **counted)
        lines += [answer, answer, line(8 + 10 * turn, "response_item", type="function_call_output")]
    table = read_requests(written(tmp_path, *lines, name="rollout.jsonl"))
    assert table.input_tokens.tolist() == [1000, 1001]
    assert (table.arrival_s.tolist(), table.measured_e2e_s.tolist()) == ([0, 7], [4, 7])
