"""One chat completion as it comes: the request, the events of its stream, and what an answer that is none means."""

import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.errors import WinhostError, visible
from winhost.model.masking import masked

Message = Mapping[str, str]  # role and content
_WITHIN_S = 180  # of silence: the gateway itself holds a request for 120
_LONGEST_LINE, _MOST = 4_000_000, 1_000_000
_SHOWN = 300


class NotNow(WinhostError):
    """503: it may answer later. after: seconds that the gateway proposes."""

    def __init__(self, host: str, said: str, after: float) -> None:
        super().__init__(
            "NotNow",
            what=f"{host} does not answer now: {said}",
            meaning="Its engine is starting or not up, or all places are taken.",
            hint=f"See how it is: winhost status {host}",
            host=host,
        )
        self.after = after


@dataclass
class CompletionStream:
    """The pieces of one answer; what is known of the whole of it once they have come."""

    host: str
    pieces: Iterator[str] = field(default_factory=lambda: iter(()))
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Asking:
    """key, reference: the API key, and what is said of it; thinking: called when a model thinks before it answers."""

    host: str
    model: str
    connect: Callable[[float], http.client.HTTPConnection]
    key: str
    reference: str
    max_tokens: int | None = None
    thinking: Callable[[], None] = lambda: None

    def stream(self, messages: Sequence[Message]) -> CompletionStream:
        """pieces: as they come. Raises NotNow and WinhostError, from here or from them."""
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
                    raise self._refused(answer.status, answer.read(_MOST), answer.headers.get("Retry-After"))
                yield from self._told(_events(answer), found)
            except (OSError, http.client.HTTPException) as error:
                why = f"nothing came for {_WITHIN_S} s" if isinstance(error, TimeoutError) else _reason(error)
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
        said = self._clean(self._message(body) or f"HTTP status {status}")
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

    def _message(self, body: bytes) -> str | None:
        try:
            return self._words(json.loads(body.decode("utf-8", "replace"))["error"])
        except (ValueError, LookupError, TypeError):
            return None

    @staticmethod
    def _words(error: Any) -> str:
        return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)

    def _clean(self, text: str) -> str:
        return visible(masked(text.replace(self.key, "***")).strip()[:_SHOWN]).rstrip(".")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """The data of server-sent events; other fields of them are nothing to us."""
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
