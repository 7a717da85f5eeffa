"""Let another engine continue an answer. The text so far becomes the beginning of its answer, and the client sees one
answer. This module opens no connection and waits for nothing: it turns bodies into bodies, and events into events.

What it relies on was read in the source of vLLM 0.11.0, 0.24.0 and 0.32.0: `continue_final_message` needs
`add_generation_prompt: false`; `continuous_usage_stats` counts the tokens with each event; a template may drop white
space at the end of a text; with `stop`, an engine holds back one character less than the longest stop string has, and
these characters are lost if the engine ends.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from os.path import commonprefix
from typing import Any

from .engine_control import EngineFault
from .request_rules import CHAT, COMPLETION, split_names
from .routes import encode_json

_DEFAULT_TOKENS = 16  # the limit of a completion that states no max_tokens
_LIMITS = ("max_tokens", "max_completion_tokens", "min_tokens")
_MAX_TEXT_BYTES = 1_048_576
# Fields that mean the same for the rest of an answer as for all of it. With any field that is neither here nor in
# `_HARMLESS_VALUES`, such as one that a later vLLM adds, an answer is not continued.
_UNCHANGED_FIELDS = split_names(
    """
    model user messages prompt stream stream_options stream_interval temperature top_p top_k min_p stop stop_token_ids
    ignore_eos repetition_penalty allowed_token_ids chat_template_kwargs documents add_special_tokens reasoning_effort
    enable_thinking metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options
    prompt_cache_retention priority cache_salt max_tokens max_completion_tokens min_tokens
    """
)
# Fields that do not prevent a continuation if they have one of these values.
_HARMLESS_VALUES: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "logit_bias": ({},),
    "bad_words": ([],),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "include_reasoning": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "parallel_tool_calls": (True, False),  # says nothing without tools
}
# Fields of an answer that no engine can continue from.
_OBSTACLES = {
    "reasoning": "it has reasoning in it",
    "reasoning_content": "it has reasoning in it",
    "tool_calls": "it calls tools",
    "function_call": "it calls tools",
}
_DONE = b"data: [DONE]"


class NotContinued(EngineFault):
    """An engine broke off, and no engine can continue its answer. The message says why."""


@dataclass(frozen=True)
class Continuation:
    """A description of how to turn the body of a request into one for the rest of its answer.

    obstacle: why the answer cannot be continued, empty if it can; chat: it is a chat, not a completion; text_offset,
    limits_offset: the offsets in the body at which the text so far is inserted, and at which the limits begin;
    limits: of tokens, by field; stop: the stop strings; reports_usage, reports_every_usage: the client asked for the
    usage at the end, or with each event.
    """

    obstacle: str = ""
    chat: bool = False
    text_offset: int = 0
    limits_offset: int = 0
    limits: "dict[str, int]" = field(default_factory=dict)
    stop: "tuple[str, ...]" = ()
    reports_usage: bool = False
    reports_every_usage: bool = False

    @property
    def token_limit(self) -> "int | None":
        """The most tokens that the whole answer may have; None: as many as fit the engine's context."""
        limit = self.limits.get("max_completion_tokens")
        return self.limits.get("max_tokens") if limit is None else limit


def find_obstacle(request: "Mapping[str, Any]", route: str) -> str:
    """Return why the answer to a request cannot be continued; empty if it can."""
    if route not in (CHAT, COMPLETION) or request.get("stream") is not True:
        return "it is no stream of a chat or a completion"
    for name, value in request.items():
        if value is None or name in _UNCHANGED_FIELDS:
            continue
        harmless = _HARMLESS_VALUES.get(name, ())
        if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in harmless):
            return f"the request has `{name}`"
    if not isinstance(request.get("stream_options") or {}, dict):
        return "its `stream_options` is no object"
    if route == CHAT:
        messages = request.get("messages")
        return "" if isinstance(messages, list) and messages else "its `messages` is no list of messages"
    return "" if isinstance(request.get("prompt"), str) else "its prompt is no text"


def prepare_continuable(request: "Mapping[str, Any]", route: str, served_as: str) -> "tuple[bytes, Continuation]":
    """Write the body of a request so that the text so far can be inserted into it later. Raises ErrorAnswer."""
    chat = route == CHAT
    prompt_field = "messages" if chat else "prompt"
    limits = {name: int(request[name]) for name in _LIMITS if request.get(name) is not None}
    if not chat and "max_tokens" not in request:
        limits["max_tokens"] = _DEFAULT_TOKENS
    fields = {name: value for name, value in request.items() if name != prompt_field and name not in limits}
    options = fields.get("stream_options") or {}
    fields["stream_options"] = {**options, "include_usage": True, "continuous_usage_stats": True}
    begin = encode_json({prompt_field: request[prompt_field]})[:-1]
    middle = b"," + encode_json({**fields, "model": served_as})[1:-1]
    stop = fields.get("stop") or ()
    continuation = Continuation(
        chat=chat,
        text_offset=len(begin) - 1,
        limits_offset=len(begin) + len(middle),
        limits=limits,
        stop=(stop,) if isinstance(stop, str) else tuple(each for each in stop if each),
        reports_usage=options.get("include_usage") is True,
        reports_every_usage=options.get("include_usage") is True and options.get("continuous_usage_stats") is True,
    )
    return begin + middle + (b"," + encode_json(limits)[1:-1] if limits else b"") + b"}", continuation


_WRITE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class ContinuedAnswer:
    """One answer as its client gets it, from one engine after another.

    text_bytes: the size of its text; finished: its last token came; complete: its last event came; answer_tokens,
    prompt_tokens: counted so far; obstacle: why no engine can continue it, empty if one can; failure: how its engine
    ended early.
    """

    def __init__(self, continuation: Continuation) -> None:
        self._continuation = continuation
        self._text_buffer = StringIO()
        self.text_bytes = self.answer_tokens = self.prompt_tokens = 0
        self.finished = self.complete = False
        self.obstacle = continuation.obstacle
        self.failure: EngineFault | EngineErrorEvent | None = None
        self._head: dict[str, Any] = {}  # of the first engine's events
        self._earlier_tokens = self._engine_tokens = 0  # tokens of earlier engines, and of the present one
        self._repeated_space = ""  # white space that the present engine generates again
        self._incomplete = b""  # an event that has not ended
        self._continues = self._role_sent = False  # a second engine continues; the client has got a role

    @property
    def text(self) -> str:
        return self._text_buffer.getvalue()

    @property
    def is_streaming(self) -> bool:
        """Tell whether the present engine has generated a token and has to generate one with each of its steps."""
        return self._engine_tokens > 0 and not self.finished and not self.obstacle

    def give_up(self, why: str) -> None:
        """Note that no engine can continue this answer, and keep nothing of it."""
        self.obstacle = self.obstacle or why
        self._text_buffer, self.text_bytes = StringIO(), 0

    # ---- from one engine to another

    def continuation_body(self, body: bytes) -> bytes:
        """Return the body that asks another engine for the rest. Raises NotContinued."""
        text, continuation = self.text, self._continuation
        if self.obstacle:
            raise NotContinued(self.obstacle)
        if any(text.endswith(each[:length]) for each in continuation.stop for length in range(1, len(each))):
            raise NotContinued("a stop string may have begun")
        kept = text.rstrip() if continuation.chat else text  # a template may drop white space at the end
        self._continues, self._repeated_space = True, text[len(kept) :]
        self._incomplete, self.failure, self._engine_tokens = b"", None, 0
        self._earlier_tokens = self.answer_tokens
        if not kept:  # there is no text to continue, so the engine is asked for all of the answer
            return body
        # Repeated white space takes tokens as well. The client does not get tokens beyond its limit.
        missing = len(self._repeated_space) - self.answer_tokens
        limits = {name: max(1, limit + missing) for name, limit in continuation.limits.items()}
        if "min_tokens" in limits:
            limits["min_tokens"] = max(0, continuation.limits["min_tokens"] - self.answer_tokens)
        end = "".join(f',"{name}":{limit}' for name, limit in limits.items())
        if continuation.chat:
            inserted = "," + _WRITE({"role": "assistant", "content": kept})
            end += ',"continue_final_message":true,"add_generation_prompt":false'
        else:
            inserted = _WRITE(kept)[1:-1]
        begin, middle = body[: continuation.text_offset], body[continuation.text_offset : continuation.limits_offset]
        return b"".join((begin, inserted.encode("utf-8"), middle, end.encode("ascii"), b"}"))

    def final_events(self) -> "bytes | None":
        """Return the events that end the answer, if an engine broke off after the last token; else None."""
        if not self.finished and not (self._is_full and self._head):
            return None
        events = b""
        if not self.finished:
            choice = {"delta": {"content": ""}} if self._continuation.chat else {"text": ""}
            choices = [{"index": 0, **choice, "logprobs": None, "finish_reason": "length"}]
            events = self._event({**self._head, "choices": choices})
        if self._continuation.reports_usage:
            events += self._event({**self._head, "choices": [], "usage": self._usage({})})
        self.finished = self.complete = True
        return events + _DONE + b"\n\n"

    # ---- events

    def translate(self, part: bytes) -> bytes:
        """Turn a part of an engine's answer into what the client gets. Sets `failure` if the engine ends there."""
        *events, self._incomplete = (self._incomplete + part).split(b"\n\n")
        translated = []
        try:
            for event in events:
                translated.append(self._translate_event(event))
            if len(self._incomplete) > _MAX_TEXT_BYTES:
                raise EngineFault("event")
        except (EngineFault, EngineErrorEvent) as fault:
            self.failure = fault
        return b"".join(translated)

    def _translate_event(self, event: bytes) -> bytes:
        """Return the event for the client. Raises EngineFault, EngineErrorEvent."""
        if event == _DONE:
            if not self.finished:
                raise EngineFault("unfinished")
            self.complete = True
        if event == _DONE or not event.startswith(b"data: "):  # a comment
            return event + b"\n\n"
        try:
            found = json.loads(event[6:])
            if "error" in found:
                raise EngineErrorEvent(event + b"\n\n", found["error"])
            return self._count_event(found)
        except (ValueError, LookupError, TypeError, AttributeError):
            if self._continues:
                raise EngineFault("event") from None
            self.give_up("its events are not those of vLLM")
            return event + b"\n\n"

    def _count_event(self, found: "dict[str, Any]") -> bytes:
        """Count the tokens of an event, and return what the client gets for it."""
        if not self._head:
            self._head = {name: found[name] for name in ("id", "object", "created", "model") if name in found}
        choices, usage = found["choices"], found.get("usage")
        is_sent, is_new = self._take_choice(choices[0]) if choices else (True, True)
        engine_tokens = self._engine_tokens + bool(choices)
        if usage:
            engine_tokens = int(usage.get("completion_tokens") or 0)
            self.prompt_tokens = self.prompt_tokens or int(usage.get("prompt_tokens") or 0)
        if not is_new:  # these tokens were counted when they came first
            self._earlier_tokens -= engine_tokens - self._engine_tokens
        self._engine_tokens, self.answer_tokens = engine_tokens, max(0, self._earlier_tokens + engine_tokens)
        ends = self._continues and choices and not self.finished and self._is_full
        if ends:
            choices[0]["finish_reason"], self.finished = "length", True
        if usage and (self._continuation.reports_every_usage or (self._continuation.reports_usage and not choices)):
            found["usage"] = self._usage(usage)
        else:
            found.pop("usage", None)
            is_sent = is_sent and bool(choices)
        return (self._event(found) if is_sent else b"") + ((self.final_events() or b"") if ends else b"")

    @property
    def _is_full(self) -> bool:
        limit = self._continuation.token_limit
        return limit is not None and self.answer_tokens >= limit

    def _take_choice(self, choice: "dict[str, Any]") -> "tuple[bool, bool]":
        """Keep the text of a choice. Return whether the client gets the event, and whether its text is new."""
        delta, name = (choice["delta"], "content") if self._continuation.chat else (choice, "text")
        for each in _OBSTACLES:  # no engine can continue from anything but text
            if delta.get(each):
                self.give_up(_OBSTACLES[each])
                if self._continues:  # this engine took the text so far for something else
                    raise EngineFault("rest")
        text = generated = delta.get(name) or ""
        if self._repeated_space:  # this engine generates it again, perhaps in several parts
            same = len(commonprefix((generated, self._repeated_space)))  # noqa: RUF071 - compared by character
            text = generated[same:]
            self._repeated_space = self._repeated_space[same:] if same == len(generated) else ""
        if choice.get("finish_reason") is not None:
            self.finished, self._repeated_space = True, ""
        repeats_role = "role" in delta and self._role_sent
        if repeats_role:
            del delta["role"]
        self._role_sent = self._role_sent or "role" in delta
        if text != generated:
            delta[name] = text
        self._keep_text(text)
        is_new = bool(text) or not (generated or repeats_role)
        return is_new or not self._continues or self.finished, is_new or not self._continues

    def _keep_text(self, text: str) -> None:
        if self.obstacle or not text:
            return
        self._text_buffer.write(text)
        self.text_bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._continuation.chat and ("</think>" in text or (self.text_bytes < 64 and "<think>" in self.text)):
            self.give_up("it has reasoning in it")
        elif self.text_bytes > _MAX_TEXT_BYTES:
            self.give_up("it is too long")

    def _usage(self, reported: "dict[str, Any]") -> "dict[str, Any]":
        prompt, answer = self.prompt_tokens, self.answer_tokens
        return {**reported, "prompt_tokens": prompt, "total_tokens": prompt + answer, "completion_tokens": answer}

    def _event(self, content: "dict[str, Any]") -> bytes:
        content = {**content, **{name: value for name, value in self._head.items() if name in content}}
        return b"data: " + _WRITE(content).encode("utf-8", "surrogatepass") + b"\n\n"


class EngineErrorEvent(Exception):
    """An engine ends its answer with an error. event: the error; engine_at_fault: the request did not cause it."""

    def __init__(self, event: bytes, error: Any) -> None:
        super().__init__()
        code = error.get("code") if isinstance(error, dict) else None
        self.event, self.engine_at_fault = event, not isinstance(code, int) or code >= 500
