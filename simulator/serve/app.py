"""HTTP server: OpenAI's endpoints for a simulated fleet in wall-clock time."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count, cycle
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.document import Json
from forerun.errors import ForerunError
from simulator.running.build import build_run
from simulator.running.run import measured_build
from simulator.running.scenario import Scenario
from simulator.serve.api import Answer, BadRequestError, Body, ChatBody, CompletionBody, body_of, least_tokens, usage_of
from simulator.serve.counters import Counters
from simulator.serve.kv_events import KvEvents
from simulator.serve.live import SLOTS, Delivery, LiveFleet, rehearse
from simulator.serve.pace import Pace
from simulator.serve.schema import json_tokens, takes_words
from simulator.serve.tokens import Token, block_hashes, filler, filler_tokens
from simulator.workload import generate_requests

JSON = "application/json"
DONE = b"data: [DONE]\n\n"
MOST_BODY_BYTES = 8 * 2**20
"""Maximum size of a request body. A million tokens of text have about half of it; parsing more would stall streams."""
QUICK_BYTES, QUICK_TOKENS = 16_384, 8192
"""Maximum bytes and tokens of a body that is parsed in the event loop. A thread parses larger bodies."""
UNREAD_BYTES = 64 * 1024
"""Unread bytes of a client above which its further tokens wait and are later sent together."""
UNREAD_S = 60.0
"""Seconds without reading after which a client's connection is closed."""
REQUEST_S = 30.0
"""Maximum seconds for a request to arrive in full."""
MOST_HEAD_BYTES = 64 * 1024
"""Maximum bytes of the URL, of all headers, and of all data before the body; uvicorn's limits under h11."""
LINGER_S = 2.0
"""Seconds for a client to read the error about a too large request before its connection is closed."""
PROBE_S = 1.0
"""Seconds until the first probe of a half-closed connection; the interval doubles after each probe."""
CONNECTION = "forerun.connection"
"""Key of the ASGI scope extension with the connection of a request, if the server provides the connection."""


@dataclass(slots=True, eq=False)
class PendingAnswer:
    """One request to the fleet, with the generated and the sent part of its answer."""

    index: int
    prompt: Sequence[Token]
    number: int
    """Number that selects the answer's filler text."""
    wanted: int
    """Number of tokens to generate."""
    full: bool
    """True if the answer ends at its length limit."""
    limit: int | None
    """Maximum tokens that the request allows; None without a limit."""
    schema: Any = None
    """JSON Schema of the answer; None for filler text."""
    json: Sequence[str] = ()
    """Tokens of an answer that is JSON; empty for filler text."""
    hashes: Sequence[int] = ()
    """Prefix hashes of the blocks of prompt and answer."""
    tokens: int = 0
    """Number of tokens generated."""
    sent: int = 0
    first_s: float = 0.0
    last_s: float | None = None
    ended: bool = False
    """True if the last token has been generated."""
    closed: bool = False
    """True if the end of the answer has been sent."""
    opening: bytes = b""
    before: bytes = b""
    after: bytes = b""

    @property
    def finish(self) -> str:
        return "length" if self.full else "stop"

    def text(self, first: int, count: int) -> str:
        """Tokens ``first`` to ``first + count`` of the answer as text."""
        return "".join(self.json[first : first + count]) if self.json else filler(self.number, first, count)


class RequestTrace:
    """Trace file with one JSON line per request that arrived; a write error stops only the trace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._bytes = self._lines = 0
        self.problem: str | None = None
        """Message about the error that stopped the trace; None while requests are written."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Write one request; a partly written line is removed again."""
        line = json.dumps(row).encode() + b"\n"
        if self.problem is None:
            try:
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._bytes += len(line)
                self._lines += 1
            except OSError as error:
                self.problem = f"{self._path} holds only the first {self._lines:,} requests: {error.strerror}"
                print(f"note: {self.problem}; the server goes on", file=sys.stderr, flush=True)
                with suppress(OSError):
                    self._file.truncate(self._bytes)

    def close(self) -> None:
        """Close the file, and print the error that stopped the trace, if any."""
        with suppress(OSError):
            self._file.close()
        if self.problem is not None:
            print(f"note: {self.problem}", file=sys.stderr)


class Exchange:
    """HTTP request together with the answers to it."""

    def __init__(
        self, body: Body, answer: Answer, choices: Sequence[PendingAnswer], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.answer = answer
        self.streams = body.stream
        self.choices = choices
        self.prompt_tokens = sum(len(choice.prompt) for choice in choices) // body.n
        self.cached_tokens = 0
        options = body.stream_options
        self.include_usage = options is not None and options.include_usage
        self.counts_on = options is not None and options.continuous_usage_stats
        self.slots: list[int] = []
        self.error: BadRequestError | None = None
        self.over = False
        """True if all choices have ended, or the exchange has failed."""
        self.held: list[bytes] = []
        """Queued chunks that have not been sent."""
        self.send: Callable[[bytes], None] = self._hold
        self.late = False
        """True if tokens wait until the client has read the sent chunks."""
        self._connection: asyncio.WriteTransport | None = None
        self._ready_bytes = 0
        """Bytes of chunks that are ready but not yet sent."""
        self.news: asyncio.Future[None] = loop.create_future()
        """Resolved when a chunk is ready to send or the exchange has ended."""

    @property
    def usage(self) -> Json:
        return usage_of(self.prompt_tokens, sum(choice.tokens for choice in self.choices), self.cached_tokens)

    def connect(self, connection: asyncio.WriteTransport) -> None:
        """Write to the transport directly from now on; no earlier chunk may still be queued."""
        self.send, self._connection = self._write, connection

    def framed(self, chunk: bytes) -> bytes:
        """Chunk as ``send`` expects it: with HTTP chunk framing if it is written to the connection directly."""
        self._ready_bytes += len(chunk)
        return chunk if self._connection is None else b"%x\r\n%b\r\n" % (len(chunk), chunk)

    def keeps_up(self) -> bool:
        """True if the client reads fast enough; if not, its tokens wait."""
        if self._connection is not None:
            self.late |= self._connection.get_write_buffer_size() + self._ready_bytes > UNREAD_BYTES
        if self.late:
            self.tell()
        return not self.late

    def abort(self) -> None:
        """Close the connection of a client that reads nothing."""
        if self._connection is not None:
            self._connection.abort()

    def _write(self, chunk: bytes) -> None:
        assert self._connection is not None
        self._ready_bytes = 0
        if not self._connection.is_closing():
            self._connection.write(chunk)

    def _hold(self, chunk: bytes) -> None:
        self.held.append(chunk)
        self.tell()

    def tell(self) -> None:
        """Wake the sender: a chunk is ready or the exchange has ended."""
        if not self.news.done():
            self.news.set_result(None)

    def finish(self) -> None:
        self.over = True
        self.tell()


class Server:
    """An OpenAI-compatible server whose answers take the time that the simulated fleet needs.

    Args:
        scenario: the scenario to serve; its answer lengths apply to requests that do not specify one.
        seed: seed of answer lengths, acceptance and failures.
        speed: simulated seconds per wall-clock second.
        trace: file for arrivals, lengths and prefix hashes, one request per line.
        kv_events: ZMQ address of the first replica's KV events; None to publish none.
        slots: maximum number of simultaneous requests.

    Raises:
        ForerunError: the scenario does not fit in memory or uses a feature that is not modelled.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int = 0,
        speed: float = 1.0,
        trace: RequestTrace | None = None,
        kv_events: str | None = None,
        slots: int = SLOTS,
    ) -> None:
        self._build, _ = measured_build(build_run(scenario, seed))
        self._lengths: Iterator[int] = cycle(generate_requests(scenario.workload, seed).output_tokens.tolist())
        self.model = model_of(scenario)
        self._longest = _longest(self._build.main.limits)
        self.fleet = LiveFleet(self._build, slots, watch=kv_events is not None)
        self._events = None if kv_events is None else self._publisher(kv_events)
        self.counters = Counters(self.fleet, self.model, self._longest)
        self.pace = Pace(self.fleet, speed, self._deliver)
        self._trace = trace
        self._under_way: dict[int, tuple[Exchange, PendingAnswer]] = {}
        self._number = count()
        self._created = int(time.time())

    def _publisher(self, endpoint: str) -> KvEvents:
        """Publisher of the replicas' KV events."""
        if not self._build.main.prefix_caching:
            raise ForerunError("--kv-events: engine.enable_prefix_caching is off: no block is kept for others")
        return KvEvents(endpoint, self.model, len(self.fleet.schedulers), self._build.main.limits.block_size)

    @property
    def app(self) -> ASGIApp:
        """ASGI application; simulated time starts with the server."""

        routes = [
            Route("/v1/chat/completions", _Endpoint(self, ChatBody)),
            Route("/v1/completions", _Endpoint(self, CompletionBody)),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/v1/responses", _responses, methods=["POST", "GET"]),
            Route("/health", self._health),
            Route("/ping", _nothing),
            Route("/metrics", self._metrics),
            Route("/version", _version),
        ]
        shared = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])  # as vLLM's
        app = Starlette(
            routes=routes,
            middleware=[shared],
            exception_handlers={404: _not_found, 405: _not_allowed, BadRequestError: _refused},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.pace.start()
        yield

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_card]})

    async def _health(self, request: Request) -> Response:
        """Response with status 200: empty, as in vLLM, or with a note if the trace of requests is incomplete."""
        problem = None if self._trace is None else self._trace.problem
        return Response() if problem is None else JSONResponse({"note": problem})

    async def _one_model(self, request: Request) -> Response:
        if request.path_params["name"] != self.model:
            name = request.path_params["name"]
            raise BadRequestError(f"The model `{name}` does not exist", 404, "model", "model_not_found")
        return JSONResponse(self._model_card)

    @property
    def _model_card(self) -> Json:
        card = {"id": self.model, "object": "model", "created": self._created, "owned_by": "forerun"}
        return card | {"root": self.model, "parent": None, "max_model_len": self._longest}

    async def _metrics(self, request: Request) -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST

        return Response(self.counters.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    def prepare(self, body: Body) -> list[PendingAnswer]:
        """Build the answers that a body requests; safe outside the event loop's thread."""
        reply = body.reply
        schema, least = (None, 0) if reply is None else (reply.schema, least_tokens(reply))
        fixed = reply is not None and not takes_words(reply.schema)
        prompts = (tokens for tokens in body.prompts(self._longest + 1) for _ in range(body.n))
        return [
            PendingAnswer(
                index,
                tokens,
                next(self._number),
                *self._length(body, len(tokens), least, fixed),
                body.most_tokens,
                schema,
            )
            for index, tokens in enumerate(prompts)
        ]

    def hash(self, choices: Sequence[PendingAnswer]) -> None:
        """Generate the answers that are JSON, and hash the blocks of prompts and answers for the prefix cache."""
        limits, caches = self._build.main.limits, self._build.main.prefix_caching
        for choice in choices:
            if choice.schema is not None:
                choice.json = json_tokens(choice.schema, choice.number, choice.wanted)
            if caches:
                answer = choice.json or filler_tokens(choice.number, 0, choice.wanted)
                choice.hashes = block_hashes([*choice.prompt, *answer[: choice.wanted - 1]], limits.block_size)

    def begin(self, body: Body, choices: Sequence[PendingAnswer], at_s: float) -> Exchange:
        """Submit a request to the fleet.

        Args:
            body: the parsed request.
            choices: answers built by ``prepare``.
            at_s: simulated arrival time, before parsing: the time of an API server is simulated separately.
        """
        if len(choices) > self.fleet.free:
            raise BadRequestError("too many requests are under way", 503, code="overloaded")
        kind = "chatcmpl" if body.chat else "cmpl"
        function = None if body.reply is None else body.reply.function
        answer = Answer(f"{kind}-{next(self._number)}", self.model, int(time.time()), body.chat, function)
        exchange = Exchange(body, answer, choices, self.pace.loop)
        for choice in choices:
            slot = self._submit(choice, at_s)
            choice.opening, choice.before, choice.after = answer.pieces(choice.index)
            exchange.slots.append(slot)
            self._under_way[slot] = (exchange, choice)
        self.pace.settle()
        if exchange.error is not None:
            self.end(exchange)
            raise exchange.error
        return exchange

    def end(self, exchange: Exchange) -> None:
        """Cancel the unfinished requests of an exchange whose client no longer waits."""
        for slot in exchange.slots:
            owner, _ = self._under_way.get(slot, (None, None))
            if owner is exchange:  # the slot may serve another by now
                del self._under_way[slot]
                self.counters.finished["abort"] += 1
                self.fleet.cancel(slot)

    def rehearse(self) -> None:
        """Warm up prices and metrics, then exclude all present objects from garbage collection."""
        rehearse(self._build)
        self.counters.exposition()
        gc.collect()
        gc.freeze()

    def stop(self) -> None:
        """End all running exchanges with an error, at shutdown of the server."""
        self.pace.stop()
        if self._events is not None:
            self._events.close()
            self._events = None
        for exchange, _ in self._under_way.values():
            exchange.error = BadRequestError("the server was stopped", 503, code="stopped")
            exchange.finish()

    def _length(self, body: Body, prompt_tokens: int, least: int, fixed: bool) -> tuple[int, bool]:
        """Tokens of an answer of ``least`` (if ``fixed``) or more, and True if its length limit cuts it."""
        remaining = self._longest - prompt_tokens
        max_tokens = body.most_tokens
        most = remaining if max_tokens is None else max_tokens
        if remaining < 1 or (max_tokens is not None and max_tokens > remaining):
            raise BadRequestError(
                f"This model's maximum context length is {self._longest} tokens. However, you requested "
                f"{most if max_tokens is not None else 1} output tokens and your prompt contains {prompt_tokens} input "
                f"tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
                param="messages" if body.chat else "prompt",
                code="context_length_exceeded",
            )
        length = (
            most if body.ignore_eos else min(most, max(body.min_tokens, 0 if fixed else next(self._lengths), least))
        )
        reason = self._build.fleet.refusal(prompt_tokens, length)
        if reason is not None:
            raise BadRequestError(f"this request can never be served here: {reason}", code="context_length_exceeded")
        return length, least > most if least and not body.ignore_eos else length == most

    def _submit(self, choice: PendingAnswer, at_s: float) -> int:
        slot = self.pace.submit(len(choice.prompt), choice.wanted, choice.hashes, at_s)
        assert slot is not None, "begin has looked whether there are enough"
        if self._events is not None and choice.hashes:
            answer = choice.json or filler_tokens(choice.number, 0, choice.wanted)
            self._events.known.begin(slot, choice.hashes, [*choice.prompt, *answer])
        if self._trace is not None:
            row: Json = {
                "arrival_s": self.fleet.log.arrival_s[slot],
                "input_tokens": len(choice.prompt),
                "output_tokens": choice.wanted,
                "prefix_hashes": choice.hashes,
                "block_tokens": self._build.main.limits.block_size,
            }
            self._trace.write(row)
        return slot

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send tokens to waiting clients: first prepare all of them, then send, then count."""
        if self._events is not None:
            self._events.publish(self.fleet.changes, time.time())
            for slot in (delivery.slot for delivery in deliveries if delivery.ended):
                self._events.known.end(slot)
        if not deliveries:
            return
        sent, chunks, closing = [], [], []
        for delivery in deliveries:
            known = self._under_way.get(delivery.slot)
            if known is None:  # nobody waits for it any more
                continue
            exchange, choice = known
            if delivery.refusal is not None:
                exchange.error = BadRequestError(delivery.refusal, 503, code="overloaded")
            else:
                if not choice.tokens:
                    exchange.cached_tokens += self.fleet.log.cached_tokens[delivery.slot]
                choice.tokens += delivery.tokens
                if exchange.streams and exchange.keeps_up():
                    chunks.append((exchange.send, exchange.framed(self._chunk(exchange, choice))))
                sent.append((delivery, choice, exchange.streams and not exchange.late))
            if delivery.ended:
                closing.append((delivery.slot, exchange, choice))
        sent_s = iter(self.pace.send(chunks, deliveries[-1].at_s))
        for ended in closing:
            self._close(*ended)
        for delivery, choice, streams in sent:
            self._count(delivery, choice)
            if streams:
                self.counters.lateness.observe(abs(next(sent_s) - self.pace.due(delivery.at_s)))

    def _count(self, delivery: Delivery, choice: PendingAnswer) -> None:
        """Update the metrics with a delivery of tokens."""
        counters, at_s = self.counters, delivery.at_s
        counters.answer_tokens += delivery.tokens
        if choice.last_s is not None:
            counters.between_tokens.observe(at_s - choice.last_s)
        else:
            choice.first_s = at_s
            counters.first(delivery.slot, at_s)
        choice.last_s = at_s
        if delivery.ended:
            counters.ended(delivery.slot, choice.first_s, at_s, choice.tokens, choice.limit, choice.finish)

    def _chunk(self, exchange: Exchange, choice: PendingAnswer) -> bytes:
        """Event with the unsent tokens of a choice. The first event includes a chat's opening, as in vLLM: clients take
        the first event for the first token (vLLM v0.11, ``entrypoints/openai/serving_chat.py``)."""
        first, choice.sent = choice.sent, choice.tokens
        text = choice.text(first, choice.tokens - first)
        opening = b"" if first else choice.opening
        if exchange.counts_on:
            usage = usage_of(exchange.prompt_tokens, choice.tokens, exchange.cached_tokens)
            return opening + exchange.answer.chunk(exchange.answer.choice(choice.index, text), usage)
        escaped = json.dumps(text)[1:-1] if choice.json else text
        return opening + choice.before + escaped.encode() + choice.after

    def _end_chunk(self, exchange: Exchange, choice: PendingAnswer) -> bytes:
        choice.closed = True
        return exchange.answer.chunk(exchange.answer.choice(choice.index, "", choice.finish))

    def catch_up(self, exchange: Exchange) -> None:
        """Send the tokens that waited for a slow client."""
        exchange.late = False
        for choice in exchange.choices:
            if choice.sent < choice.tokens:
                exchange.send(exchange.framed(self._chunk(exchange, choice)))
            if choice.ended and not choice.closed and exchange.error is None:
                exchange.send(exchange.framed(self._end_chunk(exchange, choice)))

    def _close(self, slot: int, exchange: Exchange, choice: PendingAnswer) -> None:
        """End a choice; the last one also ends the exchange."""
        choice.ended = True
        self._under_way.pop(slot, None)
        if exchange.streams and exchange.error is None and not exchange.late:
            exchange.send(exchange.framed(self._end_chunk(exchange, choice)))
        if exchange.error or all(choice.ended for choice in exchange.choices):
            exchange.finish()


class _Endpoint:
    """Endpoint of completions; an ASGI application, so that tokens are written to the transport directly. A browser's
    EventSource can only GET, so the body may also be passed in the URL, as ``?body=``.
    """

    def __init__(self, server: Server, kind: type[ChatBody] | type[CompletionBody]) -> None:
        self._server = server
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server
        request, at_s = Request(scope, receive), server.pace.now
        address = request.query_params.get("body") if request.method == "GET" else None
        if request.method != "POST" and address is None:
            raise HTTPException(405)
        try:
            raw = await _raw(request)  # of a GET as well: what comes next is then that the client has left
        except ClientDisconnect:
            return
        body, choices = await self._read(raw if address is None else address.encode())
        exchange = server.begin(body, choices, at_s)
        gone = asyncio.ensure_future(receive())  # nothing more comes but that the client has left
        try:
            if exchange.streams:
                await self._stream(exchange, scope, send, gone)
            elif await _first(exchange.news, gone):
                await self._whole(exchange)(scope, receive, send)
        finally:
            server.end(exchange)
            gone.cancel()

    async def _read(self, raw: bytes) -> tuple[Body, list[PendingAnswer]]:
        """Parse a body; a thread parses long bodies, so that no stream waits."""
        server = self._server

        def parse() -> tuple[Body, list[PendingAnswer]]:
            body = body_of(self._kind, raw, server.model)
            return body, server.prepare(body)

        body, choices = parse() if len(raw) <= QUICK_BYTES else await asyncio.to_thread(parse)
        if sum(len(choice.prompt) + choice.wanted for choice in choices) <= QUICK_TOKENS:
            server.hash(choices)
        else:
            await asyncio.to_thread(server.hash, choices)
        return body, choices

    async def _stream(self, exchange: Exchange, scope: Scope, send: Send, gone: asyncio.Future[Any]) -> None:
        """Send server-sent events; tokens go to the connection directly if possible (``Exchange.connect``)."""
        answer = exchange.answer
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while exchange.held or exchange.late or not exchange.over:
            if exchange.held:
                chunks, exchange.held = b"".join(exchange.held), []
                await send(_part(chunks))
                continue
            if exchange.late:
                if not await _drained(send):
                    exchange.abort()
                    return
                self._server.catch_up(exchange)
                continue
            if (lent := scope.get("extensions", {}).get(CONNECTION)) is not None:
                exchange.connect(lent["transport"])
            exchange.news = self._server.pace.loop.create_future()
            if not await _first(exchange.news, gone):
                return
        if exchange.error is not None:
            await send(_part(b"data: " + exchange.error.body + b"\n\n"))
        elif exchange.include_usage:
            await send(_part(answer.chunk(None, exchange.usage)))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    def _whole(self, exchange: Exchange) -> Response:
        if exchange.error is not None:
            raise exchange.error
        answer = exchange.answer
        choices = [
            answer.choice(choice.index, choice.text(0, choice.tokens), choice.finish, streams=False)
            for choice in exchange.choices
        ]
        return Response(answer.whole(choices, exchange.usage), media_type=JSON)


def model_of(scenario: Scenario) -> str:
    """Name under which a scenario's model is served."""
    if isinstance(scenario.model, str):
        return Path(scenario.model).stem if scenario.model.endswith((".json", ".gguf")) else scenario.model
    return str(scenario.model.get("name", "model"))


def _longest(limits: Any) -> int:
    """Maximum tokens of a request: the model's maximum length or the capacity of the KV cache, whichever is smaller."""
    capacity_tokens = int((limits.num_blocks - limits.watermark_blocks) * limits.block_size)
    return capacity_tokens if limits.max_model_len is None else min(capacity_tokens, limits.max_model_len)


async def _raw(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise BadRequestError(f"the body has more than {MOST_BODY_BYTES} bytes", 413)
        parts.append(part)
    return b"".join(parts)


async def _first(one: asyncio.Future[Any], other: asyncio.Future[Any]) -> bool:
    """True if ``one`` has happened, after waiting for either event."""
    await asyncio.wait((one, other), return_when=asyncio.FIRST_COMPLETED)
    return one.done()


async def _drained(send: Send) -> bool:
    """True if the client reads again within ``UNREAD_S``; uvicorn then completes the send of an empty part."""
    try:
        await asyncio.wait_for(send(_part(b"")), UNREAD_S)
    except TimeoutError:
        return False
    return True


def _part(chunk: bytes) -> Json:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


async def _refused(request: Request, error: Exception, headers: dict[str, str] | None = None) -> Response:
    assert isinstance(error, BadRequestError)
    return Response(error.body, error.status, headers, JSON)


async def _not_found(request: Request, error: Exception) -> Response:
    path = request.url.path
    return await _refused(request, BadRequestError(f"no such address: {path}", 404, code="not_found"))


async def _not_allowed(request: Request, error: Exception) -> Response:
    method = "POST" if request.url.path.endswith("/completions") else "GET"
    hint = "; an EventSource puts its body into the address, as ?body=" if request.method == "GET" else ""
    refusal = BadRequestError(f"{request.method} is not answered here; {method} is{hint}", 405)
    return await _refused(request, refusal, {"allow": method})


async def _responses(request: Request) -> Response:
    raise BadRequestError("the Responses API is not served here; /v1/chat/completions is", 501, code="not_implemented")


async def _nothing(request: Request) -> Response:
    return Response()


async def _version(request: Request) -> Response:
    from forerun.version import VERSION

    return JSONResponse({"version": f"forerun {VERSION}"})


def _protocol() -> Any:
    """HTTP protocol for uvicorn: httptools with each request's connection in its scope, else "auto"."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "auto"

    class Lending(HttpToolsProtocol):
        timer: asyncio.TimerHandle | None = None
        half_closed = False
        refusal: BadRequestError | None = None
        """Error about the part of the request that is too large; None if no part is."""
        header_bytes = body_bytes = framing_bytes = 0
        """Bytes of the request's headers, of its body, and of non-body data after its first packet."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect()

        def data_received(self, data: bytes) -> None:
            """Process a packet; a request that is too large is refused before it is complete."""
            if self.refusal is not None:
                return
            self.framing_bytes += len(data)
            super().data_received(data)
            if self.refusal is None and self.framing_bytes > MOST_HEAD_BYTES + 8 * self.body_bytes:
                self._too_large(431)
                self.send_400_response("")

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            if len(self.url) > MOST_HEAD_BYTES:
                raise self._too_large(414)

        def on_header(self, name: bytes, value: bytes) -> None:
            self.header_bytes += len(name) + len(value)
            if self.header_bytes > MOST_HEAD_BYTES:
                raise self._too_large(431)
            super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            self.body_bytes += len(body)
            self.framing_bytes -= len(body)
            super().on_body(body)

        def _too_large(self, status: int) -> BadRequestError:
            what = "address" if status == 414 else "headers"
            words = f"the {what} of a request may have {MOST_HEAD_BYTES:,} bytes; its body may have more"
            self.refusal = BadRequestError(words, status)
            return self.refusal

        def send_400_response(self, msg: str) -> None:
            """Refuse a request in OpenAI's error format; the client may read it before the connection closes."""
            error = self.refusal = self.refusal or BadRequestError(msg)
            status = f"{error.status} {HTTPStatus(error.status).phrase}"
            head = f"HTTP/1.1 {status}\r\ncontent-type: {JSON}\r\ncontent-length: {len(error.body)}\r\n"
            self._arrived()
            self.timer = self.loop.call_later(LINGER_S, self.transport.close)
            cycle = self.cycle
            if cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started):
                self.transport.write(head.encode() + b"connection: close\r\n\r\n" + error.body)
                self.transport.write_eof()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.header_bytes = self.body_bytes = self.framing_bytes = 0
            self.scope["extensions"] = {CONNECTION: {"transport": self.transport}}
            self._expect()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._arrived()

        def connection_lost(self, exc: Exception | None) -> None:
            self._arrived()
            super().connection_lost(exc)

        def eof_received(self) -> bool:  # type: ignore[override]
            """True if the answer continues, because a client that has closed its sending side may still read."""
            cycle = self.cycle
            complete = cycle is None or cycle.response_complete or cycle.more_body
            self.half_closed = not complete and self.refusal is None
            if self.half_closed:
                self.timer = self.loop.call_later(PROBE_S, self._probe, PROBE_S)
            return self.half_closed

        def _probe(self, after_s: float) -> None:
            """Send an interim response: a reading client skips it, a client that has left resets the connection."""
            if self.cycle.response_started or self.transport.is_closing():
                return
            if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.transport.abort()
            elif self.scope["http_version"] == "1.1":
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.timer = self.loop.call_later(after_s, self._probe, 2 * after_s)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.half_closed and self.cycle.response_complete and not self.transport.is_closing():
                self.transport.close()

        def _expect(self) -> None:
            self._arrived()
            self.timer = self.loop.call_later(REQUEST_S, self.transport.close)

        def _arrived(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

    return Lending


def run_server(server: Server, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until the process is stopped.

    Args:
        server: the server to run.
        host, port: address to serve on; port 0 picks a free port.
        ready: function called with the address when requests are accepted.

    Raises:
        ForerunError: the address is in use or not available.
    """
    import uvicorn

    class Stopping(uvicorn.Server):
        """uvicorn's server, which notifies clients at shutdown instead of cancelling their requests."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            server.stop()
            await super().shutdown(sockets)

    try:
        listener = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise ForerunError(f"{host}:{port}: {error.strerror or error}; --host and --port choose another") from None
    with listener:
        config = uvicorn.Config(
            server.app,
            loop="asyncio",  # its connections send what is written at once, uvloop's at the end of a turn
            http=_protocol(),
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=1,
        )
        server.rehearse()
        ready(f"http://{host}:{listener.getsockname()[1]}")
        Stopping(config).run(sockets=[listener])
