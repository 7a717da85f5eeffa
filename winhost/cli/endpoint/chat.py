"""winhost chat: send prompts to a model that is served, and stream its answers."""

import http.client
import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import Any

import click

from winhost.cli.endpoint.commands import ChatOptions
from winhost.cli.endpoint.open import Endpoint, open_endpoint
from winhost.cli.envelope import show_results
from winhost.cli.options import Output
from winhost.cli.output import say, show_error_text
from winhost.cli.serve.hosts import Targets
from winhost.cli.serve.target import no_such_model_error, resolve_key
from winhost.cli.watch import show_progress
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.masking import masked
from winhost.model.secrets import SecretRef

Message = Mapping[str, str]  # role and content
_SILENCE_TIMEOUT_S = 180  # the gateway itself holds a request for 120
_MAX_LINE_SIZE, _MAX_ERROR_BODY_SIZE = 4_000_000, 1_000_000
_MAX_ERROR_LENGTH = 300


class ServiceUnavailable(WinhostError):
    """The endpoint answered 503, and may answer later. retry_after: the seconds that the gateway proposes to wait."""

    def __init__(self, host: str, message: str, retry_after: float) -> None:
        what, hint = f"{host} does not answer now: {message}", f"See its state: winhost status {host}"
        meaning = "Its engine is starting or stopped, or it has no room for another request."
        super().__init__("NotNow", what, meaning, hint, host=host)
        self.retry_after = retry_after


@dataclass
class CompletionStream:
    """The pieces of one answer. The other fields are set after the last piece."""

    host: str
    pieces: Iterator[str] = field(default_factory=lambda: iter(()))
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class ChatClient:
    """Sends prompts to one model. key, reference: the API key, and the reference that messages show; on_thinking:
    called while the model sends its reasoning.
    """

    host: str
    model: str
    connect: Callable[[float], http.client.HTTPConnection]
    key: str
    reference: str
    max_tokens: int | None = None
    on_thinking: Callable[[], None] = lambda: None

    def stream(self, messages: Sequence[Message]) -> CompletionStream:
        """Begin an answer. Raises ServiceUnavailable and WinhostError, here or when its pieces are read."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.max_tokens:
            body["max_tokens"] = self.max_tokens
        stream = CompletionStream(self.host)
        stream.pieces = self._request_pieces(json.dumps(body).encode(), stream)
        return stream

    def _request_pieces(self, body: bytes, stream: CompletionStream) -> Iterator[str]:
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
        }
        with closing(self.connect(_SILENCE_TIMEOUT_S)) as connection:
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                response = connection.getresponse()
                if response.status != 200:
                    error_body = response.read(_MAX_ERROR_BODY_SIZE)
                    raise self._make_http_error(response.status, error_body, response.headers.get("Retry-After"))
                yield from self._read_pieces(_parse_events(response), stream)
            except (OSError, http.client.HTTPException) as error:
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                why = f"nothing came for {_SILENCE_TIMEOUT_S} s" if isinstance(error, TimeoutError) else why
            else:
                return
        raise self._make_stream_error(why)

    def _read_pieces(self, events: Iterator[str], stream: CompletionStream) -> Iterator[str]:
        for event in events:
            if event == "[DONE]":
                return
            try:
                chunk = json.loads(event)
                if "error" in chunk:
                    raise self._make_stream_error(self._error_message(chunk["error"]))
                usage = chunk.get("usage") or {}
                stream.prompt_tokens = usage.get("prompt_tokens", stream.prompt_tokens)
                stream.completion_tokens = usage.get("completion_tokens", stream.completion_tokens)
                for choice in chunk.get("choices", ()):
                    stream.finish_reason = choice.get("finish_reason") or stream.finish_reason
                    delta = choice.get("delta") or {}
                    if delta.get("reasoning_content") or delta.get("reasoning"):
                        self.on_thinking()
                    if text := delta.get("content"):
                        yield str(text)
            except (ValueError, TypeError, AttributeError):
                raise self._make_stream_error("an event is not a part of a completion") from None
        raise self._make_stream_error("the stream ended before the answer was complete")

    def _make_stream_error(self, why: str) -> WinhostError:
        return WinhostError(
            "BrokenOff",
            what=f"{self.host}: the answer broke off: {self._clean(why)}",
            meaning="The text above is not the whole answer.",
            hint=f"See its state: winhost status {self.host}",
            host=self.host,
        )

    def _make_http_error(self, status: int, body: bytes, retry_after: str | None) -> WinhostError:
        message = f"HTTP status {status}"
        with suppress(ValueError, LookupError, TypeError):
            message = self._error_message(json.loads(body.decode("utf-8", "replace"))["error"]) or message
        message = self._clean(message)
        if status == 503:
            seconds = float(retry_after) if retry_after and re.fullmatch(r"\d{1,4}", retry_after) else 5
            return ServiceUnavailable(self.host, message, seconds)
        if status == 401:
            return WinhostError(
                "ApiKeyRefused",
                what=f"{self.host} does not accept the API key {self.reference}: {message}",
                hint=f"Name one that it accepts, by its reference: winhost chat {self.host} --api-key env:NAME",
                host=self.host,
            )
        if status == 429:
            wait = f"{retry_after} s" if retry_after and retry_after.isdecimal() else "a little"
            what = f"{self.host} accepts no more requests with this API key now: {message}"
            return WinhostError("RateLimited", what=what, hint=f"Wait {wait}, and ask again", host=self.host)
        hint = f"List its models: winhost status {self.host}" if status == 404 else None
        what = f"{self.host} refused the request ({status}): {message}"
        return WinhostError("NotCompleted", what=what, hint=hint, host=self.host)

    @staticmethod
    def _error_message(error: Any) -> str:
        return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)

    def _clean(self, text: str) -> str:
        return visible(masked(text.replace(self.key, "***")).strip()[:_MAX_ERROR_LENGTH]).rstrip(".")


def _parse_events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """Yield the data of server-sent events, without their other fields."""
    data: list[str] = []
    while line := answer.readline(_MAX_LINE_SIZE):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith("data:"):
            data.append(text[5:].removeprefix(" "))
        elif not text and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


_TURN_S = 900  # the gateway gives an engine this long to start
_MAX_PROMPT_SIZE = 1_000_000  # bytes of a prompt: about as many as the gateway accepts in a body
_JOINERS = "\u200c\u200d"  # in scripts and emoji; they do not move the cursor
_PROMPT = ">>> "


@dataclass(frozen=True)
class Chatted:
    """One answer. url: None if it came through SSH; finish_reason: as the engine reports it; seconds: the time until
    the answer was complete.
    """

    host: str
    url: str | None
    model: str
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float


def chat(words: tuple[str, ...], options: ChatOptions, fleet_file: Path | None, output: Output) -> int:
    targets = Targets.read(fleet_file)
    host, prompt = _parse_arguments(words, targets)
    if prompt is None and output.form:
        raise click.UsageError("a document contains one answer: give a prompt, or - to read it from stdin")
    name = host or targets.only_serving
    with open_endpoint(name, targets) as endpoint:
        conversation = _Conversation(endpoint, options)
        if prompt is None:
            conversation.converse()
        elif output.form:
            show_results("chat", output.shape, [(name, conversation.ask(prompt))], lambda _: None)
        else:
            conversation.print_answer(prompt)
    return 0


def _parse_arguments(words: Sequence[str], targets: Targets) -> tuple[str | None, str | None]:
    """Return the host and the prompt in the arguments. Without a prompt, a conversation follows. Raises UsageError."""
    host: str | None = None
    prompt = words[-1] if words else None
    if len(words) > 2:
        raise click.UsageError("put a prompt of several words in quotes")
    if len(words) == 2:
        host = targets.resolve(words[0])
    elif words and (host := targets.find(words[0])):
        prompt = None
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        prompt = sys.stdin.buffer.read(_MAX_PROMPT_SIZE + 1).decode("utf-8", "replace")
    if prompt is not None and len(prompt.encode("utf-8", "surrogatepass")) > _MAX_PROMPT_SIZE:
        raise UsageError("LongPrompt", what="the prompt is longer than the gateway accepts", hint="Give a shorter one.")
    if prompt is not None and not prompt.strip():
        raise UsageError("NoPrompt", what="the prompt is empty", hint='For example: winhost chat "Say hello"')
    return host, prompt


class _Conversation:
    """A conversation with one model of an endpoint. Raises UsageError, WinhostError."""

    def __init__(self, endpoint: Endpoint, options: ChatOptions) -> None:
        self._endpoint = endpoint
        self._thinking: Callable[[], None] = lambda: None
        if options.model is not None and options.model not in endpoint.models:
            raise no_such_model_error(endpoint.host, options.model, endpoint.models)
        self.model = options.model or endpoint.models[0]
        self._turns = next(each.turns for each in endpoint.deployed.engines if each.model == self.model)
        self._messages: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
        reference = options.api_key or endpoint.key
        if reference is None:
            raise UsageError(
                "NoApiKey",
                what=f"winhost knows no API key for {endpoint.host}",
                hint=f"Name it by its reference: winhost chat {endpoint.host} --api-key env:NAME",
                host=endpoint.host,
            )
        key = resolve_key(reference, "--api-key")
        reference_text = str(SecretRef.parse(reference))
        if not key or not key.isascii() or not key.isprintable():
            raise UsageError("NotAKey", what=f"what {reference_text} refers to is no API key", host=endpoint.host)
        self._client = ChatClient(
            endpoint.host,
            self.model,
            endpoint.connect,
            key,
            reference_text,
            options.max_tokens,
            lambda: self._thinking(),
        )

    def ask(self, prompt: str) -> Chatted:
        """Send a prompt, and return the complete answer."""
        start_time = time.monotonic()
        answer, pieces = self._begin(prompt)
        text = "".join(pieces)
        usage = answer.finish_reason, answer.prompt_tokens, answer.completion_tokens
        seconds = round(time.monotonic() - start_time, 2)
        return Chatted(self._endpoint.host, self._endpoint.url, self.model, text, *usage, seconds)

    def print_answer(self, prompt: str) -> None:
        """Send a prompt, and print the answer on stdout as it arrives."""
        answer, pieces = self._begin(prompt)
        text = ""
        try:
            for piece in pieces:
                text += piece
                click.echo(_escape_control_characters(piece), nl=False)
        finally:
            if text and not text.endswith("\n"):
                click.echo()
            if text:
                self._messages += ({"role": "user", "content": prompt}, {"role": "assistant", "content": text})
        if not text:
            say(f"{self.model} answered with no text.", err=True)
        if answer.finish_reason == "length":
            say("The answer ends here because it has reached the maximum number of tokens.", err=True)

    def converse(self) -> None:
        """Read prompts and print answers until Ctrl-D. Ctrl-C stops an answer; its text stays in the conversation."""
        with suppress(ImportError):
            import readline  # noqa: F401  # adds line editing to input(), if Python has it
        say(f"{self.model} on {self._endpoint.host}. Ctrl-C stops an answer, Ctrl-D ends.", err=True)
        while True:
            try:
                line = input(_PROMPT)
            except EOFError:
                click.echo()
                return
            if not line.strip():
                continue
            try:
                self.print_answer(line)
            except KeyboardInterrupt:
                say("Stopped.", err=True)
            except WinhostError as error:
                show_error_text(error)

    def _begin(self, prompt: str) -> tuple[CompletionStream, Iterator[str]]:
        """Send a prompt. Wait for the turn of the model, if it takes turns, and for the first piece of the answer."""
        deadline = time.monotonic() + _TURN_S
        status = "it may be asleep, and wakes for this request" if self._turns else "waiting for its first token"
        host = self._endpoint.host
        with show_progress(stop_hint="Ctrl-C stops.") as watch, watch.activity(host, f"{self.model}: {status}"):
            self._thinking = lambda: watch.rename_activity(host, f"{self.model}: thinking")
            while True:
                answer = self._client.stream([*self._messages, {"role": "user", "content": prompt}])
                try:
                    first = next(answer.pieces, None)
                except ServiceUnavailable as unavailable:
                    if not self._turns or time.monotonic() > deadline:
                        raise
                    watch(ProgressEvent(host, "waiting", f"{self.model}: waiting for its turn"))
                    time.sleep(unavailable.retry_after)
                    continue
                break
        return answer, chain(() if first is None else (first,), answer.pieces)


def _escape_control_characters(text: str) -> str:
    """Escape characters that could move the cursor. Keeps line ends, tabs and spaces of any kind."""
    return "".join(
        c
        if c.isprintable() or c in "\n\t" or c in _JOINERS or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )
