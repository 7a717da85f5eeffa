"""winhost chat: talk to what is served, from this computer."""

import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from winhost.cli.completion_stream import Asking, CompletionStream, Message, NotNow
from winhost.cli.endpoint import Endpoint, Targets, endpoint_of
from winhost.cli.envelope import show_results
from winhost.cli.output import say, show_error_text
from winhost.cli.outputs import Output
from winhost.cli.serving_target import no_such_model, secret_key
from winhost.cli.watch import watching
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.model.errors import UsageError, WinhostError
from winhost.model.secrets import SecretRef

_TURN_S = 900  # as long as the gateway gives an engine to start
_MOST = 1_000_000  # bytes of a prompt: as many as the gateway takes of a body, about
_JOINERS = "\u200c\u200d"  # of scripts and emoji; they move no cursor
_PROMPT = ">>> "


@dataclass(frozen=True)
class Chatted:
    """url: None where it was asked through SSH; finish_reason: as the engine says; seconds: until the whole answer."""

    host: str
    url: str | None
    model: str
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float


def chat(
    words: tuple[str, ...],
    model: str | None,
    system: str | None,
    max_tokens: int | None,
    api_key: str | None,
    fleet_file: Path | None,
    output: Output,
) -> int:
    """Talk to a model that is served."""
    targets = Targets.read(fleet_file)
    host, prompt = _meant(words, targets)
    if prompt is None and output.form:
        raise click.UsageError("a document has one answer: give a prompt, or - to read it from stdin")
    name = host or targets.only
    with endpoint_of(name, targets) as endpoint:
        talk = _Talk(endpoint, model, system, max_tokens, api_key)
        if prompt is None:
            return talk.conversation()
        if output.form:
            began = time.monotonic()
            answer, text = talk.asked(prompt)
            found = Chatted(
                name,
                endpoint.url,
                talk.model,
                text,
                answer.finish_reason,
                answer.prompt_tokens,
                answer.completion_tokens,
                round(time.monotonic() - began, 2),
            )
            show_results("chat", output.shape, [(name, found)], lambda _: None)
            return 0
        talk.shown(prompt)
        return 0


def _meant(words: Sequence[str], targets: Targets) -> tuple[str | None, str | None]:
    """Host and prompt. None for a prompt: a conversation. Raises UsageError."""
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

    def __init__(
        self,
        endpoint: Endpoint,
        model: str | None,
        system: str | None,
        max_tokens: int | None,
        api_key: str | None,
    ) -> None:
        self._endpoint = endpoint
        self._thinking: Callable[[], None] = lambda: None
        if model is not None and model not in endpoint.models:
            raise no_such_model(endpoint.host, model, endpoint.models)
        self.model = model or endpoint.models[0]
        self._turns = next(each.turns for each in endpoint.deployed.engines if each.model == self.model)
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []
        reference = api_key or endpoint.key
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
            endpoint.host, self.model, endpoint.connect, key, shown, max_tokens, lambda: self._thinking()
        )

    def asked(self, prompt: str) -> tuple[CompletionStream, str]:
        """The whole answer."""
        answer, pieces = self._begun(prompt)
        return answer, "".join(pieces)

    def shown(self, prompt: str) -> None:
        """The answer on stdout, as it comes."""
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

    def conversation(self) -> int:
        """Talk until Ctrl-D. Ctrl-C stops an answer; its text so far counts."""
        with suppress(ImportError):
            import readline  # noqa: F401  # lines are edited with it, where there is one
        say(f"{self.model} on {self._endpoint.host}. Ctrl-C stops an answer, Ctrl-D ends.", err=True)
        while True:
            try:
                line = input(_PROMPT)
            except EOFError:
                click.echo()
                return 0
            if not line.strip():
                continue
            try:
                self.shown(line)
            except KeyboardInterrupt:
                say("Stopped.", err=True)
            except WinhostError as error:
                show_error_text(error)

    def _begun(self, prompt: str) -> tuple[CompletionStream, Iterator[str]]:
        """Waits for the first piece, and for the turn of a model that takes turns."""
        over = time.monotonic() + _TURN_S
        waits = "it may be asleep, and wakes for this request" if self._turns else "waiting for its first token"
        host = self._endpoint.host
        with watching(stops="Ctrl-C stops.") as watch, watch.at(host, f"{self.model}: {waits}"):
            self._thinking = lambda: watch.now(host, f"{self.model}: thinking")
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
        return answer, _chained(first, answer.pieces)


def _chained(first: str | None, rest: Iterator[str]) -> Iterator[str]:
    if first is not None:
        yield first
        yield from rest


def _shown(text: str) -> str:
    """A model says what it likes: nothing of it moves a cursor, but lines, tabs and spaces of any kind stay."""
    return "".join(
        c
        if c.isprintable() or c in "\n\t" or c in _JOINERS or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )
