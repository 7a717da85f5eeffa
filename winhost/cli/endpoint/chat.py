"""winhost chat: talk from this computer to a model that is served, by streamed completions."""

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
from winhost.cli.endpoint.open import Endpoint, endpoint_of
from winhost.cli.envelope import show_results
from winhost.cli.options import Output
from winhost.cli.output import say, show_error_text
from winhost.cli.serve.hosts import Targets
from winhost.cli.serve.target import no_such_model, secret_key
from winhost.cli.watch import show_progress
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.masking import masked
from winhost.model.secrets import SecretRef

Message = Mapping[str, str]  # role and content
_WITHIN_S = 180  # of silence: the gateway itself holds a request for 120
_LONGEST_LINE, _LONGEST_ANSWER = 4_000_000, 1_000_000
_LONGEST_TOLD = 300


class NotNow(WinhostError):
    """The endpoint answered 503 and may answer later. after: seconds that the gateway proposes."""

    def __init__(self, host: str, said: str, after: float) -> None:
        what, hint = f"{host} does not answer now: {said}", f"See how it is: winhost status {host}"
        super().__init__("NotNow", what, "Its engine is starting or not up, or all places are taken.", hint, host=host)
        self.after = after


@dataclass
class CompletionStream:
    """The pieces of one answer. The other fields are set once all pieces have come."""

    host: str
    pieces: Iterator[str] = field(default_factory=lambda: iter(()))
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Asking:
    """A way to ask one model. key, reference: the API key, and its name for people; thinking: called while a model
    thinks.
    """

    host: str
    model: str
    connect: Callable[[float], http.client.HTTPConnection]
    key: str
    reference: str
    max_tokens: int | None = None
    thinking: Callable[[], None] = lambda: None

    def stream(self, messages: Sequence[Message]) -> CompletionStream:
        """Begin an answer. Raises NotNow and WinhostError, now or while its pieces are read."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.max_tokens:
            body["max_tokens"] = self.max_tokens
        found = CompletionStream(self.host)
        found.pieces = self._pieces(json.dumps(body).encode(), found)
        return found

    def _pieces(self, body: bytes, found: CompletionStream) -> Iterator[str]:
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
        }
        with closing(self.connect(_WITHIN_S)) as connection:
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise self._refused(answer.status, answer.read(_LONGEST_ANSWER), answer.headers.get("Retry-After"))
                yield from self._told(_events(answer), found)
            except (OSError, http.client.HTTPException) as error:
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                why = f"nothing came for {_WITHIN_S} s" if isinstance(error, TimeoutError) else why
            else:
                return
        raise self._broken_off(why)

    def _told(self, events: Iterator[str], found: CompletionStream) -> Iterator[str]:
        for event in events:
            if event == "[DONE]":
                return
            try:
                said = json.loads(event)
                if "error" in said:
                    raise self._broken_off(self._words(said["error"]))
                usage = said.get("usage") or {}
                found.prompt_tokens = usage.get("prompt_tokens", found.prompt_tokens)
                found.completion_tokens = usage.get("completion_tokens", found.completion_tokens)
                for choice in said.get("choices", ()):
                    found.finish_reason = choice.get("finish_reason") or found.finish_reason
                    delta = choice.get("delta") or {}
                    if delta.get("reasoning_content") or delta.get("reasoning"):
                        self.thinking()
                    if text := delta.get("content"):
                        yield str(text)
            except (ValueError, TypeError, AttributeError):
                raise self._broken_off("what came is no part of a completion") from None
        raise self._broken_off("the stream ended before the answer did")

    def _broken_off(self, why: str) -> WinhostError:
        return WinhostError(
            "BrokenOff",
            what=f"{self.host}: the answer broke off: {self._clean(why)}",
            meaning="What came before is not the whole answer.",
            hint=f"See how it is: winhost status {self.host}",
            host=self.host,
        )

    def _refused(self, status: int, body: bytes, after: str | None) -> WinhostError:
        said = f"HTTP status {status}"
        with suppress(ValueError, LookupError, TypeError):
            said = self._words(json.loads(body.decode("utf-8", "replace"))["error"]) or said
        said = self._clean(said)
        if status == 503:
            return NotNow(self.host, said, float(after) if after and re.fullmatch(r"\d{1,4}", after) else 5)
        if status == 401:
            return WinhostError(
                "ApiKeyRefused",
                what=f"{self.host} does not take the API key {self.reference}: {said}",
                hint=f"Name one that it takes, by its reference: winhost chat {self.host} --api-key env:NAME",
                host=self.host,
            )
        if status == 429:
            wait = f"{after} s" if after and after.isdecimal() else "a little"
            what = f"{self.host} takes no more of this API key now: {said}"
            return WinhostError("RateLimited", what=what, hint=f"Wait {wait}, and ask again", host=self.host)
        hint = f"See which models there are: winhost status {self.host}" if status == 404 else None
        what = f"{self.host} refused the request ({status}): {said}"
        return WinhostError("NotCompleted", what=what, hint=hint, host=self.host)

    @staticmethod
    def _words(error: Any) -> str:
        return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)

    def _clean(self, text: str) -> str:
        return visible(masked(text.replace(self.key, "***")).strip()[:_LONGEST_TOLD]).rstrip(".")


def _events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """Yield the data of server-sent events, without their other fields."""
    data: list[str] = []
    while line := answer.readline(_LONGEST_LINE):
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text.startswith("data:"):
            data.append(text[5:].removeprefix(" "))
        elif not text and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


_TURN_S = 900  # as long as the gateway gives an engine to start
_MOST = 1_000_000  # bytes of a prompt: as many as the gateway takes of a body, about
_JOINERS = "\u200c\u200d"  # of scripts and emoji; they move no cursor
_PROMPT = ">>> "


@dataclass(frozen=True)
class Chatted:
    """One answer. url: None if it came through SSH; finish_reason: as the engine gives it; seconds: until the whole
    answer.
    """

    host: str
    url: str | None
    model: str
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float


def chat(words: tuple[str, ...], asked: ChatOptions, fleet_file: Path | None, output: Output) -> int:
    targets = Targets.read(fleet_file)
    host, prompt = _meant(words, targets)
    if prompt is None and output.form:
        raise click.UsageError("a document has one answer: give a prompt, or - to read it from stdin")
    name = host or targets.only
    with endpoint_of(name, targets) as endpoint:
        talk = _Talk(endpoint, asked)
        if prompt is None:
            talk.conversation()
        elif output.form:
            show_results("chat", output.shape, [(name, talk.asked(prompt))], lambda _: None)
        else:
            talk.shown(prompt)
    return 0


def _meant(words: Sequence[str], targets: Targets) -> tuple[str | None, str | None]:
    """The host and the prompt that these words name. Without a prompt it is a conversation. Raises UsageError."""
    host: str | None = None
    prompt = words[-1] if words else None
    if len(words) > 2:
        raise click.UsageError("a prompt of several words stands in quotes")
    if len(words) == 2:
        host = targets.named(words[0])
    elif words and (host := targets.meant(words[0])):
        prompt = None
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        prompt = sys.stdin.buffer.read(_MOST + 1).decode("utf-8", "replace")
    if prompt is not None and len(prompt.encode("utf-8", "surrogatepass")) > _MOST:
        raise UsageError("LongPrompt", what="the prompt is longer than the gateway takes", hint="Give a shorter one.")
    if prompt is not None and not prompt.strip():
        raise UsageError("NoPrompt", what="the prompt is empty", hint='For example: winhost chat "Say hello"')
    return host, prompt


class _Talk:
    """A talk with one model of an endpoint. Raises UsageError, WinhostError."""

    def __init__(self, endpoint: Endpoint, asked: ChatOptions) -> None:
        self._endpoint = endpoint
        self._thinking: Callable[[], None] = lambda: None
        if asked.model is not None and asked.model not in endpoint.models:
            raise no_such_model(endpoint.host, asked.model, endpoint.models)
        self.model = asked.model or endpoint.models[0]
        self._turns = next(each.turns for each in endpoint.deployed.engines if each.model == self.model)
        self._messages: list[Message] = [{"role": "system", "content": asked.system}] if asked.system else []
        reference = asked.api_key or endpoint.key
        if reference is None:
            raise UsageError(
                "NoApiKey",
                what=f"nothing here says where a key for {endpoint.host} is",
                hint=f"Name it by its reference: winhost chat {endpoint.host} --api-key env:NAME",
                host=endpoint.host,
            )
        key = secret_key(reference, "--api-key")
        shown = str(SecretRef.parse(reference))
        if not key or not key.isascii() or not key.isprintable():
            raise UsageError("NotAKey", what=f"what {shown} refers to is no API key", host=endpoint.host)
        self._asking = Asking(
            endpoint.host, self.model, endpoint.connect, key, shown, asked.max_tokens, lambda: self._thinking()
        )

    def asked(self, prompt: str) -> Chatted:
        """Return the whole answer."""
        began = time.monotonic()
        answer, pieces = self._begun(prompt)
        text = "".join(pieces)
        told = answer.finish_reason, answer.prompt_tokens, answer.completion_tokens
        took = round(time.monotonic() - began, 2)
        return Chatted(self._endpoint.host, self._endpoint.url, self.model, text, *told, took)

    def shown(self, prompt: str) -> None:
        """Print the answer on stdout as it comes."""
        answer, pieces = self._begun(prompt)
        text = ""
        try:
            for piece in pieces:
                text += piece
                click.echo(_shown(piece), nl=False)
        finally:
            if text and not text.endswith("\n"):
                click.echo()
            if text:
                self._messages += ({"role": "user", "content": prompt}, {"role": "assistant", "content": text})
        if not text:
            say(f"{self.model} answered with no text.", err=True)
        if answer.finish_reason == "length":
            say("The answer ends here because it may have no more tokens.", err=True)

    def conversation(self) -> None:
        """Talk until Ctrl-D. Ctrl-C stops an answer, and what has come of it stays in the conversation."""
        with suppress(ImportError):
            import readline  # noqa: F401  # lines are edited with it, where there is one
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
                self.shown(line)
            except KeyboardInterrupt:
                say("Stopped.", err=True)
            except WinhostError as error:
                show_error_text(error)

    def _begun(self, prompt: str) -> tuple[CompletionStream, Iterator[str]]:
        """Wait for the first piece, and for the turn of a model that takes turns."""
        over = time.monotonic() + _TURN_S
        waits = "it may be asleep, and wakes for this request" if self._turns else "waiting for its first token"
        host = self._endpoint.host
        with show_progress(stop_hint="Ctrl-C stops.") as watch, watch.activity(host, f"{self.model}: {waits}"):
            self._thinking = lambda: watch.rename_activity(host, f"{self.model}: thinking")
            while True:
                answer = self._asking.stream([*self._messages, {"role": "user", "content": prompt}])
                try:
                    first = next(answer.pieces, None)
                except NotNow as later:
                    if not self._turns or time.monotonic() > over:
                        raise
                    watch(ProgressEvent(host, "waiting", f"{self.model}: waiting for its turn"))
                    time.sleep(later.after)
                    continue
                break
        return answer, chain(() if first is None else (first,), answer.pieces)


def _shown(text: str) -> str:
    """Escape characters that would move a cursor; lines, tabs and spaces of any kind stay."""
    return "".join(
        c
        if c.isprintable() or c in "\n\t" or c in _JOINERS or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )
