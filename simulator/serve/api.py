"""OpenAI API: request bodies, their validation, and the JSON of answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forerun.document import Json
from forerun.errors import in_words
from simulator.serve.schema import json_tokens
from simulator.serve.tokens import Token, chat_tokens, tokens_of

MOST_CHOICES = 128
MOST_ANSWERS = 1024
"""Maximum number of answers to one request body: prompts times ``n``."""
COMPLETION_TOKENS = 16
"""Default ``max_tokens`` of a completion (OpenAI's API reference, and vLLM's)."""
NOT_MODELLED = (
    *("logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "use_beam_search", "functions", "audio"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "prediction"),
)
"""Fields that change an engine's work or answers in ways that are not simulated."""

CHAT_ONLY = ("messages", "tools", "tool_choice")
"""Fields of a chat that a completion does not have."""

PositiveInt = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class BadRequestError(Exception):
    """Error in a request, returned to the client in OpenAI's error format."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    @property
    def body(self) -> bytes:
        """OpenAI's error object."""
        kind = {404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}
        error = {
            "message": self.message,
            "type": kind.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class StreamOptions(_Body):
    """OpenAI's options of a streamed answer."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Message(_Body):
    """One message of a conversation."""

    role: str
    content: str | list[Json] | None = None

    @property
    def text(self) -> str:
        """The message's text, tool calls included."""
        if isinstance(self.content, str):
            return self.content
        parts = []
        for part in self.content or []:
            if not isinstance(part.get("text"), str):
                raise BadRequestError(
                    f"messages: a part of type {part.get('type')!r} is not modelled; text is", param="messages"
                )
            parts.append(part["text"])
        calls = (self.model_extra or {}).get("tool_calls")
        return "".join(parts) + (json.dumps(calls) if calls else "")


class Function(_Body):
    """Function that an answer may call, or (by its name alone) must call."""

    name: str
    parameters: Json | None = None


class Tool(_Body):
    """Tool of a request, or the tool that ``tool_choice`` names."""

    type: Literal["function"]
    function: Function


class JsonSchema(_Body):
    """Named schema of an answer."""

    schema_: Annotated[Any, Field(alias="schema")] = True


class ResponseFormat(_Body):
    """Form of an answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Reply(NamedTuple):
    """Required JSON of an answer."""

    schema: Any
    function: str | None = None
    """Name of the function whose arguments the JSON is; None if the JSON is the answer's text."""


class _Generation(_Body):
    model: str | None = None
    response_format: ResponseFormat | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    modalities: list[Literal["text"]] = ["text"]
    temperature: Annotated[Finite, Field(ge=0)] = 1.0
    top_p: Finite = 1.0
    presence_penalty: Finite = 0.0
    frequency_penalty: Finite = 0.0
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def reply(self) -> Reply | None:
        """Required JSON of the answer; None for filler text."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return Reply({"type": "object", "properties": {"text": {"type": "string"}}})
        if wanted.json_schema is None:
            raise BadRequestError("response_format.json_schema: missing", param="response_format")
        return Reply(wanted.json_schema.schema_)


class ChatBody(_Generation):
    """Request body of ``/v1/chat/completions``."""

    chat: ClassVar[bool] = True
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] = []
    tool_choice: Literal["none", "auto", "required"] | Tool = "auto"

    @property
    def reply(self) -> Reply | None:
        """Schema of the reply: arguments of the forced function call, else the required JSON; None for filler text."""
        named = self.tool_choice.function.name if isinstance(self.tool_choice, Tool) else None
        if named is None and self.tool_choice != "required":
            return super().reply
        functions = [tool.function for tool in self.tools if named in (None, tool.function.name)]
        if not functions:
            problem = "there are no tools to call" if named is None else f"no function {named!r} is among the tools"
            raise BadRequestError(f"tool_choice: {problem}", param="tool_choice")
        parameters = functions[0].parameters or {}
        if parameters.get("type", "object") != "object":
            raise BadRequestError("tools: the parameters of a function are an object", param="tools")
        return Reply(parameters | {"type": "object"}, functions[0].name)

    def prompts(self, most_tokens: int) -> list[list[Token]]:
        """Tokens of the single prompt, cut after ``most_tokens``: tools first, as in chat templates, then messages."""
        before = (
            [("tools", json.dumps([tool.model_dump(exclude_unset=True) for tool in self.tools]))] if self.tools else []
        )
        return [chat_tokens([*before, *((message.role, message.text) for message in self.messages)], most_tokens)]


class CompletionBody(_Generation):
    """Request body of ``/v1/completions``."""

    chat: ClassVar[bool] = False
    prompt: str | list[str] | list[int] | list[list[int]]

    @property
    def most_tokens(self) -> int | None:
        return super().most_tokens or COMPLETION_TOKENS

    def prompts(self, most_tokens: int) -> list[list[Token]]:
        """Tokens of each prompt, cut after ``most_tokens``; prompts given as token ids are used unchanged."""
        prompt: Any = self.prompt
        many = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
        texts = prompt if many else [prompt]
        if len(texts) * self.n > MOST_ANSWERS:
            raise BadRequestError(
                f"prompt: {len(texts) * self.n:,} answers in one request; at most {MOST_ANSWERS:,} (prompts times n)",
                param="prompt",
            )
        prompts: list[list[Token]] = [
            [*tokens_of(one, most_tokens)] if isinstance(one, str) else one[:most_tokens] for one in texts
        ]
        if not prompts or not all(prompts):
            raise BadRequestError("prompt: at least one token expected", param="prompt")
        return prompts


Body = ChatBody | CompletionBody


def body_of(kind: type[ChatBody] | type[CompletionBody], raw: bytes, model: str) -> Body:
    """Parse and validate the JSON of a request body."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON ({error})") from None
    if not isinstance(data, dict):
        raise BadRequestError("the body is no JSON object")
    if data.get("max_tokens", 1) is None:
        del data["max_tokens"]
    try:
        body = kind.model_validate({name: value for name, value in data.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise BadRequestError(
            f"{where}: {in_words(first)}", param=str(first["loc"][0]) if first["loc"] else None
        ) from None
    if body.model is not None and body.model != model:
        raise BadRequestError(
            f"The model `{body.model}` does not exist; this server has `{model}`", 404, "model", "model_not_found"
        )
    for name in NOT_MODELLED:
        if data.get(name):
            raise BadRequestError(f"{name}: not modelled here; leave it out", param=name)
    for name in () if kind.chat else CHAT_ONLY:
        if data.get(name) is not None:
            raise BadRequestError(f"{name}: not a field of completions; ask /v1/chat/completions", param=name)
    if body.stream_options is not None and not body.stream:
        raise BadRequestError("stream_options: only where stream is true", param="stream_options")
    return body


def least_tokens(reply: Reply) -> int:
    """Number of tokens of the shortest JSON for a reply's schema."""
    try:
        return len(json_tokens(reply.schema))
    except ValueError as error:
        field = "response_format" if reply.function is None else "tools"
        raise BadRequestError(f"{field}: this JSON schema is not supported: {error}", param=field) from None


@dataclass(slots=True)
class Answer:
    """Fields common to every chunk of an answer."""

    id: str
    model: str
    created: int
    chat: bool
    function: str | None = None
    """Name of the function that the answer calls; None without a call."""

    def chunk(self, choice: Json | None, usage: Json | None = None) -> bytes:
        """Server-sent event with new text of one choice, or with the usage at the end."""
        return b"data: " + self._json("chat.completion.chunk", [choice] if choice else [], usage) + b"\n\n"

    def choice(self, index: int, text: str | None, finish: str | None = None, streams: bool = True) -> Json:
        """JSON of one choice with generated text, or (``text`` None) with the role that opens a chat stream."""
        choice: Json = {"index": index, "logprobs": None, "finish_reason": finish}
        if not self.chat:
            return choice | {"text": text or ""}
        message: Json = {"content": text or ""}
        opens = text is None or not streams
        if self.function is not None:
            call: Json = {"index": 0} if streams else {}
            function = {"arguments": text or ""}
            if opens:
                call |= {"id": f"call_{self.id}_{index}", "type": "function"}
                function = {"name": self.function} | function
            message = {"content": None} if opens else {}
            if opens or not finish:
                message["tool_calls"] = [call | {"function": function}]
            choice["finish_reason"] = "tool_calls" if finish == "stop" else finish
        if opens:
            message = {"role": "assistant"} | message
        return choice | {"delta" if streams else "message": message}

    def pieces(self, index: int) -> tuple[bytes, bytes, bytes]:
        """First event of a choice's stream, and the bytes of a chunk before and after its JSON-escaped text."""
        opening = self.chunk(self.choice(index, None)) if self.chat else b""
        before, after = self.chunk(self.choice(index, "\x07")).split(b"\\u0007")
        return opening, before, after

    def whole(self, choices: list[Json], usage: Json) -> bytes:
        return self._json("chat.completion", choices, usage)

    def _json(self, chat_object: str, choices: list[Json], usage: Json | None) -> bytes:
        head = {"id": self.id, "object": chat_object if self.chat else "text_completion", "created": self.created}
        document = head | {"model": self.model, "choices": choices}
        return json.dumps(document | ({"usage": usage} if usage is not None else {}), separators=(",", ":")).encode()


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Json:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
