"""The server as a process of its own: a browser reads it, killing it leaves nothing, its memory does not grow."""

import asyncio
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tiny_scenario import tiny_data

from simulator.running.scenario import Scenario
from simulator.serve import pace as pace_module
from simulator.serve.app import Server
from simulator.serve.pace import Pace
from simulator.serve.tokens import tokens_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
READ = """
async ([address, body]) => {
    const endpoint = address + "/v1/chat/completions";
    const content = text => JSON.parse(text).choices.map(choice => choice.delta.content).join("");
    const events = await new Promise((resolve, reject) => {
        const events = [], source = new EventSource(endpoint + "?body=" + encodeURIComponent(JSON.stringify(body)));
        source.onerror = reject;
        source.onmessage = event => {
            if (event.data !== "[DONE]") { events.push(content(event.data)); return; }
            source.close();
            resolve(events);
        };
    });
    const answer = await fetch(endpoint, {
        method: "POST", body: JSON.stringify(body), headers: {"Content-Type": "application/json"}});
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let posted = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) posted += part.value;
    const lines = posted.split("\\n\\n").filter(line => line && !line.endsWith("[DONE]"));
    const refused = await fetch(endpoint, {method: "POST", body: "{"});
    return [events, lines.map(line => content(line.slice(6))), (await refused.json()).error.type];
}
"""


@contextmanager
def started(folder, before="", speed=100):
    """A server's process and its address; it runs in ``folder``, and keeps there what is temporary."""
    scenario = folder.parent / "scenario.json"
    scenario.write_text(json.dumps(tiny_data()))
    folder.mkdir()
    code = f"import sys; {before}from simulator.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["serve", str(scenario), "--port", "0", "--speed", str(speed), "--trace-out", "came.jsonl"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = next(line for line in process.stderr if "/v1 " in line)
        yield process, line.split(" at ")[1].split("/v1")[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def served(tmp_path):
    """A server's process, its address and its folder."""
    with started(tmp_path / "own") as (process, address):
        yield process, address, tmp_path / "own"


def place_of(address):
    host, port = address.removeprefix("http://").split(":")
    return host, int(port)


def posted(tokens):
    """A request for a stream, as it goes over the wire."""
    body = json.dumps({"prompt": "a b c", "max_tokens": tokens, "ignore_eos": True, "stream": True})
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_reads_its_streams_with_eventsource_and_with_fetch(served):
    playwright = pytest.importorskip("playwright.sync_api")
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "ignore_eos": True, "stream": True}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()  # about:blank: of another origin than the server
        events, posted, refused = page.evaluate(READ, [served[1], body])
        browser.close()
    assert len(events) == len(posted) == 1 + 12 + 1, "the opening, the tokens, the end"
    assert len("".join(events).split()) == len("".join(posted).split()) == 12
    assert refused == "invalid_request_error"


def test_killing_it_leaves_nothing_behind(served):
    process, address, folder = served
    body = {"prompt": "a b c", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=600) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    assert [file.name for file in folder.iterdir()] == ["came.jsonl"]
    (came,) = (json.loads(line) for line in Path(folder / "came.jsonl").read_text().splitlines())
    assert came["input_tokens"] == 3
    socket.create_server(("127.0.0.1", int(address.rsplit(":", 1)[1]))).close()


def test_ctrl_c_tells_those_that_still_read(served):
    process, address, _ = served
    body = {"prompt": "a b c", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=600) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        process.send_signal(signal.SIGINT)
        *_, error, done = (line for line in lines if line)
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "stopped"
    assert done == "data: [DONE]"
    process.wait()
    assert "Traceback" not in process.stderr.read()


def test_a_client_that_reads_late_misses_nothing(served):
    _, address, _ = served
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(place_of(address))
        slow.sendall(posted(20_000))
        while not ended(httpx.get(f"{address}/metrics").text):
            pass
        result = b""
        while not result.endswith(b"0\r\n\r\n"):
            result += slow.recv(1 << 16)
    lines = result.replace(b"\r\n", b"\n").split(b"\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    assert len(tokens_of("".join(event["choices"][0]["text"] for event in events))) == 20_000
    assert result.count(b'"finish_reason":"length"') == result.count(b"data: [DONE]") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_body_in_the_address_is_answered_by_the_process(served, stream):
    body = json.dumps({"prompt": "a b c", "max_tokens": 5, "ignore_eos": True, "stream": stream})
    answer = httpx.get(f"{served[1]}/v1/completions", params={"body": body}, timeout=60)
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n") if stream else answer.json()["usage"]["completion_tokens"] == 5


def test_a_client_that_has_sent_all_that_it_will_gets_its_stream(served):
    with socket.create_connection(place_of(served[1]), timeout=60) as client:
        client.sendall(posted(300))
        result = client.recv(1 << 16)
        client.shutdown(socket.SHUT_WR)
        while part := client.recv(1 << 16):
            result += part
    assert result.count(b'"finish_reason":null') == 300
    assert result.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("close", [True, False])
def test_a_client_that_has_sent_all_that_it_will_gets_its_whole_answer(served, close):
    """Also where it sent several requests at once, or is probed meanwhile."""
    body = json.dumps({"prompt": "a b c", "max_tokens": 300, "ignore_eos": True})
    request = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with socket.create_connection(place_of(served[1]), timeout=60) as client:
        client.sendall(request * (1 if close else 3))
        client.shutdown(socket.SHUT_WR)
        result = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert result.count(b'"completion_tokens":300') == (1 if close else 3)


def test_a_half_closed_client_is_probed_and_one_that_left_is_not_served(tmp_path):
    body = json.dumps({"prompt": "a b c", "max_tokens": 100_000, "ignore_eos": True})
    request = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    before = "import simulator.serve.app as app; app.PROBE_S = 0.05; "
    with started(tmp_path / "own", before, speed=1) as (_, address):
        with socket.create_connection(place_of(address), timeout=60) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        with socket.create_connection(place_of(address), timeout=60) as client:
            client.sendall(request)
        while 'finished_reason="abort"} 2.0' not in (metrics := httpx.get(f"{address}/metrics").text).replace(
            ',model_name="llama-3.2-1b"', ""
        ):
            assert "abort" in metrics


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ((b"GET /v1/models?", b"a" * 1024), 414),
        ((b"GET /health HTTP/1.1\r\n", b"X-A: " + b"a" * 1000 + b"\r\n"), 431),
        ((b"GET /health HTTP/1.1\r\nX-A: ", b"a" * 1024), 431),
        ((b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: ", b"a" * 1024), 431),
        ((b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 1024), 431),
        ((b"nonsense\r\n\r\n", b""), 400),
    ],
)
def test_an_endless_head_is_refused_long_before_it_fills_the_memory(served, parts, status):
    first, again = parts
    sent = 0
    with socket.create_connection(place_of(served[1]), timeout=60) as client:
        client.sendall(first)
        client.setblocking(False)
        result = b""
        while not result:
            try:
                result = client.recv(1 << 16)
            except BlockingIOError:
                with suppress(BlockingIOError):
                    sent += client.send(again * 16 if again else b"\r\n")
    assert result.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(result.split(b"\r\n\r\n")[1])["error"]["message"]
    assert sent < 16 << 20, "bytes until the refusal came, those under way included"
    assert httpx.get(f"{served[1]}/health").status_code == 200


def test_a_request_that_does_not_arrive_loses_its_connection(tmp_path):
    head = b"POST /v1/completions HTTP/1.1\r\n"
    with started(tmp_path / "own", "import simulator.serve.app as app; app.REQUEST_S = 0.1; ") as (_, address):
        for part in (b"", head, head + b"Content-Length: 9\r\n\r\n{"):
            with socket.create_connection(place_of(address), timeout=60) as client:
                client.sendall(part)
                assert client.recv(1 << 16) == b""
        assert httpx.get(f"{address}/health").status_code == 200


def ended(metrics: str) -> float:
    """Requests that have ended."""
    lines = [line for line in metrics.splitlines() if line.startswith("vllm:request_success_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def status_of(app, number: int) -> int:
    """One streamed request straight to the application; returns its status."""
    text = json.dumps({"prompt": f"word {number} " * 20, "max_tokens": 4, "ignore_eos": True, "stream": True})
    waits, status = [{"type": "http.request", "body": text.encode(), "more_body": False}], []

    async def receive():
        return waits.pop() if waits else await asyncio.Event().wait()

    async def send(message):
        status.append(message.get("status"))

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return status[0]


def test_requests_leave_no_memory_behind():
    async def run() -> list[int]:
        scenario = Scenario(**tiny_data()).with_values({"engine.num_kv_blocks": 512})  # full of prefixes soon
        server = Server(scenario, speed=1000.0, slots=256)
        server.pace.start()
        app, held = server.app, []
        tracemalloc.start()
        for number in range(0, 600, 50):
            assert set(await asyncio.gather(*(status_of(app, number + one) for one in range(50)))) == {200}
            await asyncio.sleep(0)
            server.counters.exposition()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert server.counters.finished["length"] == 600
        return held

    held = asyncio.run(run())
    assert held[-1] - held[len(held) // 2] < 100 * 600 / 2, "bytes a request"


class Clock:
    """A loop whose clock the test sets."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_half_of_a_step_leaves_before_its_moment_and_half_after(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace_module.time, "sleep", clock.sleep)
    pace = Pace(fleet=None, speed=1.0, deliver=None)
    pace._loop = clock
    for step in range(1, 40):
        clock.now_s = step - 3e-3  # ready 3 ms before it is due; a chunk takes 10 us
        sent_s = pace.send([(lambda chunk: clock.sleep(len(chunk) * 1e-6), b"x" * 10)] * 200, float(step))
    assert sent_s[99] == pytest.approx(step, abs=1e-6)
    assert sent_s[-1] - sent_s[0] == pytest.approx(199 * 10e-6)
