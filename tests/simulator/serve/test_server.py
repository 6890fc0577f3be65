"""The OpenAI endpoint: what clients of that interface send and get."""

import asyncio
import json
import threading
from collections import deque
from itertools import islice

import httpx
import jsonschema
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from scenario_parts import drafts
from tiny_scenario import tiny_data

from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.serve.app import MOST_BODY_BYTES, UNREAD_BYTES, RequestTrace, Server
from simulator.serve.schema import json_tokens
from simulator.serve.tokens import block_hashes, chat_tokens, filler, tokens_of

SPECULATION = drafts("eagle3", 3, 0.6)


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2},
        "at": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"within": {"$ref": "#/$defs/place"}}}},
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def schema_of(schema) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def scenario_of(**changes) -> Scenario:
    return Scenario(**(tiny_data() | changes))


def ask(talk, speed: float = 100.0, trace=None, **changes):
    """Run ``talk(client, server)`` against a server in this process, whose time goes by fast."""

    async def run():
        server = Server(scenario_of(**changes), speed=speed, trace=trace)
        server.pace.start()
        transport = httpx.ASGITransport(app=server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
            return await talk(client, server)

    return asyncio.run(run())


def posted(body, path="/v1/completions", **changes):
    async def talk(client, server):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.post(path, content=content)

    return ask(talk, **changes)


def events(text: str) -> list:
    parts = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


@pytest.mark.parametrize(
    ("fields", "tokens", "reason"),
    [
        ({"max_tokens": 20, "ignore_eos": True}, 20, "length"),
        ({"max_tokens": 50}, 7, "stop"),  # by itself, as the scenario says
        ({"max_tokens": 50, "min_tokens": 30}, 30, "stop"),
    ],
)
def test_an_answer_in_one_piece_has_the_tokens_requested(fields, tokens, reason):
    workload = tiny_data()["workload"] | {"output_tokens": 7}
    answer = posted({"prompt": "one two three"} | fields, workload=workload).json()
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, tokens)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == reason
    assert len(tokens_of(choice["text"])) == tokens


@pytest.mark.parametrize("speculation", [None, SPECULATION])
def test_a_stream_says_what_the_whole_answer_says(speculation):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30, "ignore_eos": True, "n": 2}
    stream = body | {"stream": True, "stream_options": {"include_usage": True}}
    whole = posted(body, "/v1/chat/completions", speculation=speculation).json()
    parts = events(posted(stream, "/v1/chat/completions", speculation=speculation).text)
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole["usage"]
    texts, ends = ["", ""], [None, None]
    for choice in (part["choices"][0] for part in parts[:-1]):
        texts[choice["index"]] += choice["delta"]["content"]
        ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert ends == ["length", "length"]
    assert texts[0] != texts[1]


def test_a_chat_opens_with_its_first_token_and_no_sooner():
    sent = []

    async def talk(client, server):
        inner = server.app

        async def spied(scope, receive, send):
            async def noted(message):
                sent.append(message.get("body"))
                await send(message)

            await inner(scope, receive, noted)

        client = httpx.AsyncClient(transport=httpx.ASGITransport(app=spied), base_url="http://served")
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "ignore_eos": True, "stream": True}
        await client.post("/v1/chat/completions", json=body)

    ask(talk)
    first = next(filter(None, sent))
    opening, token, *_ = events(first.decode() + "data: [DONE]\n\n")
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens_of(token["choices"][0]["delta"]["content"])) == 1


def test_usage_with_every_chunk():
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "a b", "max_tokens": 5, "ignore_eos": True, "stream": True, "stream_options": options}
    message = [part["usage"]["completion_tokens"] for part in events(posted(body).text) if "usage" in part]
    assert message == [1, 2, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        ({"max_tokens": 4}, 400, "prompt"),
        ({"prompt": 7}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, 400, "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**9}, 400, "prompt"),
        ({"prompt": "a", "n": 0}, 400, "n"),
        ({"prompt": "a", "logprobs": 3}, 400, "logprobs"),
        ({"prompt": "a", "tool_choice": "none"}, 400, "tool_choice"),
        (CHAT | {"modalities": ["text", "audio"]}, 400, "modalities"),
        (CHAT | {"temperature": "hot"}, 400, "temperature"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
        ({"prompt": "a", "top_p": []}, 400, "top_p"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"prompt": "a", "model": "gpt-9"}, 404, "model"),
        ({"prompt": ["a"] * 66_000, "max_tokens": 1}, 400, "prompt"),
        ({"prompt": ["a"] * 100, "n": 11}, 400, "prompt"),
        (b'{"prompt": "' + b"a" * MOST_BODY_BYTES + b'"}', 413, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, 400, "messages"),
        (CHAT | {"tool_choice": "required"}, 400, "tool_choice"),
        (CHAT | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}}, 400, "tool_choice"),
        (CHAT | {"tools": [TOOL], "tool_choice": "always"}, 400, "tool_choice"),
        (CHAT | {"tools": [{"type": "custom", "custom": {"name": "code"}}]}, 400, "tools"),
        (CHAT | {"response_format": {"type": "json_schema"}}, 400, "response_format"),
        (CHAT | {"response_format": {"type": "structural_tag"}}, 400, "response_format"),
        (CHAT | schema_of({"type": "string", "pattern": "a+"}), 400, "response_format"),
        (CHAT | schema_of(7), 400, "response_format"),
        (CHAT | {"guided_json": {"type": "object"}}, 400, "guided_json"),
    ],
)
def test_what_cannot_be_is_refused_in_openais_shape(body, status, param):
    chat = isinstance(body, dict) and "messages" in body
    answer = posted(body, "/v1/chat/completions" if chat else "/v1/completions")
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"]


def test_a_body_with_too_many_prompts_takes_nothing_from_others():
    """330 kB that took every place of the server: what came after was answered with 503 for ever."""

    async def talk(client, server):
        await client.post("/v1/completions", json={"prompt": ["a"] * 66_000, "max_tokens": 1})
        server.fleet._free = deque(islice(server.fleet._free, 8))
        crowd = await client.post("/v1/completions", json={"prompt": ["a"] * 9, "max_tokens": 1})
        after = await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        return crowd, after, server.fleet.free

    crowd, after, free = ask(talk)
    assert (crowd.status_code, crowd.json()["error"]["code"]) == (503, "overloaded")
    assert after.status_code == 200
    assert free == 8


@pytest.mark.parametrize(
    ("body", "other_threads"),
    [
        ({"prompt": "a b"}, set()),
        ({"prompt": "a b " * 20_000, "max_tokens": 1}, {"prepare", "hash"}),
        ({"prompt": "a", "max_tokens": 20_000, "ignore_eos": True}, {"hash"}),
    ],
)
def test_long_bodies_are_read_by_another_thread(monkeypatch, body, other_threads):
    """Streams go on meanwhile: nothing that takes long is done by the event loop."""
    threads = {}
    for name in ("prepare", "hash"):
        work = getattr(Server, name)

        def watched(self, argument, name=name, work=work):
            threads[name] = threading.get_ident()
            return work(self, argument)

        monkeypatch.setattr(Server, name, watched)
    assert posted(body, speed=1e6, workload=tiny_data()["workload"] | {"output_tokens": 7}).status_code == 200
    assert {name for name, thread in threads.items() if thread != threading.get_ident()} == other_threads


class Unread:
    """A connection whose client reads only on command."""

    def __init__(self):
        self.written, self.most, self.unread = b"", 0, 0

    def get_write_buffer_size(self):
        return self.unread

    def is_closing(self):
        return False

    def write(self, chunk):
        self.written += chunk
        self.unread += len(chunk)
        self.most = max(self.most, self.unread)


def test_a_client_that_does_not_read_is_owed_a_few_chunks_and_then_all_the_rest_in_one():
    body = {"prompt": "a", "max_tokens": 20_000, "ignore_eos": True, "stream": True}
    connection, parts, waits = Unread(), [], [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive():
        return waits.pop() if waits else await asyncio.Event().wait()

    async def send(message):
        if message.get("body") == b"":  # uvicorn waits here until the client has read
            while served.fleet.under_way:
                await asyncio.sleep(0)
            connection.unread = 0
        parts.append(message.get("body", b""))

    async def run():
        nonlocal served
        served = Server(scenario_of(), speed=1e4)
        served.pace.start()
        lent = {"forerun.connection": {"transport": connection}}
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        await served.app(scope | {"extensions": lent}, receive, send)

    served = None
    asyncio.run(run())
    chunks = [json.loads(line.split(b"\r\n")[0]) for line in connection.written.split(b"data: ")[1:]]
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert len(tokens_of("".join(texts))) == 20_000
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert len(chunks) < 2000
    assert connection.most < 4 * UNREAD_BYTES
    assert parts[-1] == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("POST", "/v1/load_lora_adapter", 404, None),
        ("POST", "/v1/responses", 501, None),
        ("GET", "/v1/models/none", 404, None),
        ("GET", "/v1/completions", 405, "POST"),
        ("PUT", "/v1/chat/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("DELETE", "/metrics", 405, "GET"),
    ],
)
def test_addresses_and_methods_that_are_not_answered(method, path, status, allowed):
    answer = ask(lambda client, _: client.request(method, path))
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert answer.json()["error"]["type"] == kind


def test_a_router_that_turns_away_answers_503():
    async def talk(client, server):
        bodies = [{"prompt": "a", "max_tokens": 50_000, "ignore_eos": True, "stream": one % 2 == 0} for one in range(4)]
        requested = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
        answers = []
        for answer in islice(asyncio.as_completed(requested), 2):  # long answers are prepared by threads, in any order
            answers.append(await answer)
        assert sum(task.done() for task in requested) == 2
        for task in requested:
            task.cancel()
        return answers

    answers = ask(talk, speed=1.0, router={"max_outstanding": 2, "when_full": "refuse"})
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[1].json()["error"]["code"] == "overloaded"


def test_the_openai_client_gets_models_answers_and_streams():
    async def talk(client, server):
        custom = openai.AsyncOpenAI(base_url="http://served/v1", api_key="any", http_client=client)
        assert [model.id async for model in custom.models.list()] == ["llama-3.2-1b"]
        messages = [{"role": "user", "content": "hello"}]
        whole = await custom.chat.completions.create(model="llama-3.2-1b", messages=messages, max_tokens=9)
        assert 1 <= whole.usage.completion_tokens <= 9
        stream = await custom.chat.completions.create(
            model="llama-3.2-1b", messages=messages, max_tokens=9, stream=True, extra_body={"ignore_eos": True}
        )
        text = "".join([part.choices[0].delta.content async for part in stream])
        assert len(tokens_of(text)) == 9
        with pytest.raises(openai.NotFoundError):
            await custom.completions.create(model="other", prompt="a")

    ask(talk)


def test_a_call_of_a_function_without_parameters_is_not_padded():
    tool = {"type": "function", "function": {"name": "now"}}
    answer = posted(CHAT | {"tools": [tool], "tool_choice": "required"}, "/v1/chat/completions").json()
    (choice,) = answer["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert choice["finish_reason"] == "tool_calls"


def test_the_openai_client_gets_tool_calls_and_json():
    """Each with the number of tokens that ``usage`` reports, streamed or not."""

    async def talk(client, server):
        create = openai.AsyncOpenAI(base_url="http://served/v1", api_key="any", http_client=client).chat.completions
        start = {"model": "llama-3.2-1b", "n": 2, "extra_body": {"min_tokens": 60}} | CHAT
        for choice in ("required", NAMED):
            fields = start | {"tools": [TOOL], "tool_choice": choice}
            answer = await create.create(**fields)
            assert answer.usage.completion_tokens >= 120
            streamed = {0: "", 1: ""}
            async with create.stream(**fields) as stream:
                async for event in stream:
                    if event.type == "chunk" and event.chunk.choices and event.chunk.choices[0].delta.tool_calls:
                        (part,) = event.chunk.choices[0].delta.tool_calls
                        streamed[event.chunk.choices[0].index] += part.function.arguments
                final = await stream.get_final_completion()
            for one, other in zip(answer.choices, final.choices, strict=True):
                (call,), (again,) = one.message.tool_calls, other.message.tool_calls
                assert one.message.content is None
                assert (one.finish_reason, other.finish_reason) == ("tool_calls", "tool_calls")
                assert (call.type, call.function.name, again.function.name) == ("function", "weather", "weather")
                jsonschema.validate(json.loads(call.function.arguments), WEATHER)
                jsonschema.validate(json.loads(again.function.arguments), WEATHER)
                assert again.function.arguments == streamed[other.index]
                assert again.id.startswith("call_")
        for form in ({"response_format": {"type": "json_object"}}, schema_of(WEATHER)):
            answer = await create.create(**start, **form)
            for one in answer.choices:
                assert one.finish_reason == "stop"
                jsonschema.validate(json.loads(one.message.content), WEATHER if "schema" in str(form) else {})
        for fields in ({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}):
            assert (await create.create(**start, **fields)).choices[0].message.content

    ask(talk)


def test_json_that_may_not_be_long_enough_is_cut_as_an_engine_cuts_it():
    (choice,) = posted(CHAT | schema_of(WEATHER) | {"max_tokens": 3}, "/v1/chat/completions").json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == '{"city":'


def schemas():
    """JSON Schemas of all keywords that are modelled, some of which allow nothing."""
    limits = st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
    values = st.sampled_from(["a", 1, True, None, 2.5, [1], {"a": 1}])
    numbers = st.tuples(
        st.sampled_from(["integer", "number"]),
        st.dictionaries(limits, st.integers(-9, 9) | st.floats(-5, 5), max_size=3),
    ).map(lambda drawn: {"type": drawn[0], **drawn[1]})
    strings = st.builds(
        lambda low, high, form: {"type": "string", "minLength": low, "maxLength": high, "format": form},
        *(st.integers(0, 12), st.integers(4, 60), st.sampled_from(["date", "uuid", "other"])),
    )
    simple = numbers | strings | values.map(lambda value: {"const": value}) | st.booleans()
    simple |= st.lists(values, min_size=1, max_size=3).map(lambda listed: {"enum": listed})
    simple |= st.sampled_from([{}, {"$ref": "#/$defs/node"}, {"type": ["null", "string"]}, {"type": "boolean"}])

    def larger(part):
        names = st.sampled_from("abcd")
        objects = st.builds(
            lambda properties, required, others: (
                {"type": "object"} | {"properties": properties, "required": required, "additionalProperties": others}
            ),
            *(st.dictionaries(names, part, max_size=3), st.lists(names, max_size=2), part),
        )
        arrays = st.builds(
            lambda items, low, high: {"type": "array", "items": items, "minItems": low, "maxItems": high},
            *(part, st.integers(0, 2), st.integers(0, 3)),
        )
        options = st.lists(part, min_size=1, max_size=3)
        return objects | arrays | st.builds(lambda key, of: {key: of}, st.sampled_from(["anyOf", "oneOf"]), options)

    node = {"type": "object", "required": ["next"]}
    node["properties"] = {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "text": {"type": "string"}}
    return st.recursive(simple, larger, max_leaves=12).map(lambda schema: {"$defs": {"node": node}, "allOf": [schema]})


@given(schemas(), st.integers(0, 80))
@settings(max_examples=400)
def test_json_of_a_schema_is_what_the_schema_allows_or_is_refused(schema, least):
    try:
        tokens = json_tokens(schema, 3, least)
    except ValueError:
        return
    assert len(tokens) >= least
    jsonschema.Draft202012Validator(schema).validate(json.loads("".join(tokens)))


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/x"}, {"type": "first"}, {"minItems": 10**12}, [], None])
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(ValueError, match=r"\w"):
        json_tokens(schema)


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path, capsys):
    file = tmp_path / "came.jsonl"

    async def talk(client, server):
        answers = [await client.post("/v1/completions", json={"prompt": "a b c", "max_tokens": 2}) for _ in range(4)]
        return answers, await client.get("/health")

    trace = RequestTrace(file)
    trace._file = _FullAfter(trace._file, 2)
    answers, health = ask(talk, trace=trace)
    assert [answer.status_code for answer in answers] == [200] * 4
    assert health.status_code == 200
    assert health.json()["note"] == f"{file} holds only the first 2 requests: No space left on device"
    trace.close()
    assert capsys.readouterr().err.count("the first 2 requests") == 2, "at once and at the end"
    assert [json.loads(line)["input_tokens"] for line in file.read_text().splitlines()] == [3, 3]


class _FullAfter:
    """A file whose disk takes some lines and half of the next."""

    def __init__(self, file, lines):
        self._file, self._lines = file, lines

    def write(self, line):
        self._lines -= 1
        return self._file.write(line if self._lines >= 0 else line[: len(line) // 2])

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_the_answer_sent_back_is_detected_in_the_prefix_cache():
    messages = [{"role": "system", "content": "be brief " * 40}, {"role": "user", "content": "tell me " * 20}]

    async def talk(client, server):
        body = {"messages": messages, "max_tokens": 64, "ignore_eos": True}
        first = (await client.post("/v1/chat/completions", json=body)).json()
        message = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
        body["messages"] = [*messages, message, {"role": "user", "content": "go on"}]
        second = (await client.post("/v1/chat/completions", json=body)).json()
        return first["usage"], second["usage"]

    first, second = ask(talk)
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == (first["prompt_tokens"] + 63) // 16 * 16


def test_equal_starts_have_equal_hashes_and_no_others():
    one, other = tokens_of("the same start " * 20 + "this then"), tokens_of("the same start " * 20 + "that then")
    first, second = block_hashes(one, 3), block_hashes(other, 3)
    assert first[:20] == second[:20]
    assert set(first[20:]).isdisjoint(second[20:]), "from the first difference on"
    assert len(first) == len(set(first)) == len(one) // 3
    text = filler(5, 0, 40)
    assert chat_tokens([("user", "a"), ("assistant", text)])[8 : 8 + 40] == tokens_of(text)


def samples(text: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


@pytest.mark.parametrize("policy", ["fixed", "ema"])
def test_counters_agree_with_a_run_of_the_saved_trace_to_the_unit(tmp_path, policy):
    file = tmp_path / "came.jsonl"
    trace, speculation = RequestTrace(file), SPECULATION | {"policy": policy}

    async def talk(client, server):
        server.rehearse()
        bodies = [
            {"prompt": "the same words to begin " * 10 + f"and {one}", "max_tokens": 5 + one, "ignore_eos": True}
            for one in range(30)
        ]
        await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        return samples((await client.get("/metrics")).text)

    result = ask(talk, trace=trace, speculation=speculation)
    trace.close()
    run = simulate(scenario_of(speculation=speculation, workload={"trace": str(file)}), 0)
    summary = run.document["summary"]
    expected = {
        "request_success_total": 30,
        "prompt_tokens_total": summary["total_input_tokens"],
        "generation_tokens_total": summary["total_output_tokens"],
        "spec_decode_num_drafts_total": summary["spec_decode_num_drafts"],
        "spec_decode_num_draft_tokens_total": summary["spec_decode_draft_tokens"],
        "spec_decode_num_accepted_tokens_total": summary["spec_decode_accepted_tokens"],
        "prefix_cache_hits_total": run.kv.prefix_hit_tokens,
        "iteration_tokens_total_count": run.engine.steps,
        "num_requests_running": 0,
    }
    assert {name: result[f"vllm:{name}"] for name in expected} == expected
    assert run.kv.prefix_hit_tokens > 0
    for name, metric in (("time_to_first_token", "ttft"), ("request_time_per_output_token", "tpot")):
        mean_s = result[f"vllm:{name}_seconds_sum"] / 30
        assert mean_s == pytest.approx(summary[f"mean_{metric}_ms"] / 1e3, rel=1e-9)


def test_a_client_that_leaves_frees_its_request():
    async def talk(client, server):
        body = {"prompt": "a", "max_tokens": 10_000, "ignore_eos": True}
        with pytest.raises((httpx.HTTPError, asyncio.TimeoutError)):
            await asyncio.wait_for(client.post("/v1/completions", json=body), 0.2)
        while server.fleet.under_way:
            await asyncio.sleep(0.01)
        return samples((await client.get("/metrics")).text)

    result = ask(talk, speed=1.0)
    assert result["vllm:request_success_total"] == 1
    assert result["vllm:kv_cache_usage_perc"] == 0
