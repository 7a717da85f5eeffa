"""Let another engine continue an answer: the text so far becomes the beginning of its answer, and the client sees one
answer. Nothing here waits or connects: bodies and events go in, bodies and events come out.

The source of vLLM says (0.11.0, 0.24.0 and 0.32.0 were read): `continue_final_message` needs `add_generation_prompt:
false`; `continuous_usage_stats` counts the tokens with each event; a template may drop white space at the end of a
text; with `stop`, the engine holds back one character less than the longest stop string has, and they are lost with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from os.path import commonprefix
from typing import Any

from .engine_control import EngineFault
from .published import encoded
from .request_rules import CHAT, COMPLETION, names_in

_DEFAULT_TOKENS = 16  # of a completion that states no max_tokens
_LIMITS = ("max_tokens", "max_completion_tokens", "min_tokens")
_MOST_TEXT = 1_048_576
# Fields that mean the same for the rest of an answer as for all of it. With any other field, also one that a later vLLM
# adds, an answer is not continued.
_SAME = names_in(
    """
    model user messages prompt stream stream_options stream_interval temperature top_p top_k min_p stop stop_token_ids
    ignore_eos repetition_penalty allowed_token_ids chat_template_kwargs documents add_special_tokens reasoning_effort
    enable_thinking metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options
    prompt_cache_retention priority cache_salt max_tokens max_completion_tokens min_tokens
    """
)
# Fields that do so with these values only.
_VALUES: Mapping[str, tuple[Any, ...]] = {
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


_BESIDES = {
    "reasoning": "it has reasoning in it",
    "reasoning_content": "it has reasoning in it",
    "tool_calls": "it calls tools",
    "function_call": "it calls tools",
}
_DONE = b"data: [DONE]"


class NotContinued(EngineFault):
    """An engine broke off, and no engine can continue its answer. The message says why."""


@dataclass(frozen=True)
class Again:
    """A request for the rest of an answer, for another engine.

    why: why that cannot be done; empty: it can. insert, numbers: where in the body the text so far goes, and where the
    limits begin; limits: of tokens; usage, always: the client asked for its usage, at the end or with each event.
    """

    why: str = ""
    chat: bool = False
    insert: int = 0
    numbers: int = 0
    limits: "dict[str, int]" = field(default_factory=dict)
    stop: "tuple[str, ...]" = ()
    usage: bool = False
    always: bool = False

    @property
    def most(self) -> "int | None":
        """The most tokens of the whole answer; None: as many as the engine has room for."""
        named = self.limits.get("max_completion_tokens")
        return self.limits.get("max_tokens") if named is None else named


def why_not(found: "Mapping[str, Any]", route: str) -> str:
    """Say why the answer to this request cannot be continued; empty if it can."""
    if route not in (CHAT, COMPLETION) or found.get("stream") is not True:
        return "it is no stream of a chat or a completion"
    for name, value in found.items():
        if value is None or name in _SAME:
            continue
        if not any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in _VALUES.get(name, ())
        ):
            return f"of `{name}`"
    if not isinstance(found.get("stream_options") or {}, dict):
        return "of `stream_options`"
    if route == CHAT:
        messages = found.get("messages")
        return "" if isinstance(messages, list) and messages else "of `messages`"
    return "" if isinstance(found.get("prompt"), str) else "its prompt is no text"


def with_again(found: "Mapping[str, Any]", route: str, served_as: str) -> "tuple[bytes, Again]":
    """The body of a request that can be continued, written so that the text so far can be put into it. Raises
    ErrorAnswer.
    """
    chat = route == CHAT
    named = "messages" if chat else "prompt"
    limits = {name: int(found[name]) for name in _LIMITS if found.get(name) is not None}
    if not chat and "max_tokens" not in found:
        limits["max_tokens"] = _DEFAULT_TOKENS
    given = {name: value for name, value in found.items() if name != named and name not in limits}
    asked = given.get("stream_options") or {}
    given["stream_options"] = {**asked, "include_usage": True, "continuous_usage_stats": True}
    begin = encoded({named: found[named]})[:-1]
    middle = b"," + encoded({**given, "model": served_as})[1:-1]
    stop = given.get("stop") or ()
    again = Again(
        "",
        chat,
        len(begin) - 1,
        len(begin) + len(middle),
        limits,
        (stop,) if isinstance(stop, str) else tuple(each for each in stop if each),
        asked.get("include_usage") is True,
        asked.get("include_usage") is True and asked.get("continuous_usage_stats") is True,
    )
    return begin + middle + (b"," + encoded(limits)[1:-1] if limits else b"") + b"}", again


_WRITE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Continued:
    """One answer as its client gets it, from one engine after another.

    size: of its text, in bytes; finished: its last token came; done: its last event came; given, taken: tokens of the
    answer, and of the prompt; broken: why no engine can continue it, empty: one can; fault: how its engine ended early.
    """

    def __init__(self, again: Again) -> None:
        self._again = again
        self._texts = StringIO()
        self.size = self.given = self.taken = 0
        self.finished = self.done = False
        self.broken = again.why
        self.fault: EngineFault | EngineSays | None = None
        self._head: dict[str, Any] = {}  # of the first engine's events
        self._before = self._here = 0  # tokens of the engines before this one, and of this one
        self._skip = ""  # white space that this engine says again
        self._rest = b""
        self._later = self._role = False  # a second engine goes on; a role was told

    @property
    def text(self) -> str:
        return self._texts.getvalue()

    @property
    def runs(self) -> bool:
        """The engine that answers now has given some tokens, and is to give one with each of its steps."""
        return self._here > 0 and not self.finished and not self.broken

    def give_up(self, why: str) -> None:
        """Note that no engine can continue this answer, and keep nothing of it."""
        self.broken = self.broken or why
        self._texts, self.size = StringIO(), 0

    # ---- from one engine to another

    def ask_again(self, body: bytes) -> bytes:
        """The body that asks another engine for the rest. Raises NotContinued."""
        text, again = self.text, self._again
        if self.broken:
            raise NotContinued(self.broken)
        if any(text.endswith(each[:length]) for each in again.stop for length in range(1, len(each))):
            raise NotContinued("a stop string may have begun")
        kept = text.rstrip() if again.chat else text  # a template may drop white space at the end
        self._later, self._skip = True, text[len(kept) :]
        self._rest, self.fault, self._here = b"", None, 0
        self._before = self.given
        if not kept:  # there is nothing to go on from, so all of it is asked for
            return body
        # White space that comes again takes tokens as well; the client does not get what is beyond its limit.
        left = {name: max(1, most - self.given + len(self._skip)) for name, most in again.limits.items()}
        if "min_tokens" in left:
            left["min_tokens"] = max(0, again.limits["min_tokens"] - self.given)
        numbers = "".join(f',"{name}":{most}' for name, most in left.items())
        if again.chat:
            added = "," + _WRITE({"role": "assistant", "content": kept})
            numbers += ',"continue_final_message":true,"add_generation_prompt":false'
        else:
            added = _WRITE(kept)[1:-1]
        begin, middle = body[: again.insert], body[again.insert : again.numbers]
        return b"".join((begin, added.encode("utf-8"), middle, numbers.encode("ascii"), b"}"))

    def ends_here(self) -> "bytes | None":
        """The last events, if an engine broke off after the last token; None: the rest has to be asked for."""
        if not self.finished and not (self._is_full and self._head):
            return None
        events = b""
        if not self.finished:
            choice = {"delta": {"content": ""}} if self._again.chat else {"text": ""}
            choices = [{"index": 0, **choice, "logprobs": None, "finish_reason": "length"}]
            events = self._event({**self._head, "choices": choices})
        if self._again.usage:
            events += self._event({**self._head, "choices": [], "usage": self._usage({})})
        self.finished = self.done = True
        return events + _DONE + b"\n\n"

    # ---- what an engine says

    def take(self, part: bytes) -> bytes:
        """Turn a part of an engine's answer into what the client gets. `fault` is set if the engine ends there."""
        *events, self._rest = (self._rest + part).split(b"\n\n")
        told = []
        try:
            for event in events:
                told.append(self._told(event))
            if len(self._rest) > _MOST_TEXT:
                raise EngineFault("event")
        except (EngineFault, EngineSays) as fault:
            self.fault = fault
        return b"".join(told)

    def _told(self, event: bytes) -> bytes:
        """The event for the client. Raises EngineFault, EngineSays."""
        if event == _DONE:
            if not self.finished:
                raise EngineFault("unfinished")
            self.done = True
        if event == _DONE or not event.startswith(b"data: "):  # a comment
            return event + b"\n\n"
        try:
            found = json.loads(event[6:])
            if "error" in found:
                raise EngineSays(event + b"\n\n", found["error"])
            return self._counted(found)
        except (ValueError, LookupError, TypeError, AttributeError):
            if self._later:
                raise EngineFault("event") from None
            self.give_up("its events are not those of vLLM")
            return event + b"\n\n"

    def _counted(self, found: "dict[str, Any]") -> bytes:
        """Count the tokens of an event, and return what the client gets for it."""
        if not self._head:
            self._head = {name: found[name] for name in ("id", "object", "created", "model") if name in found}
        choices, usage = found["choices"], found.get("usage")
        told, new = self._choice(choices[0]) if choices else (True, True)
        here = self._here + bool(choices)
        if usage:
            here = int(usage.get("completion_tokens") or 0)
            self.taken = self.taken or int(usage.get("prompt_tokens") or 0)
        if not new:  # these tokens were counted when they came first
            self._before -= here - self._here
        self._here, self.given = here, max(0, self._before + here)
        ends = self._later and choices and not self.finished and self._is_full
        if ends:
            choices[0]["finish_reason"], self.finished = "length", True
        if usage and (self._again.always or (self._again.usage and not choices)):
            found["usage"] = self._usage(usage)
        else:
            found.pop("usage", None)
            told = told and bool(choices)
        return (self._event(found) if told else b"") + ((self.ends_here() or b"") if ends else b"")

    @property
    def _is_full(self) -> bool:
        most = self._again.most
        return most is not None and self.given >= most

    def _choice(self, choice: "dict[str, Any]") -> "tuple[bool, bool]":
        """Take over the text of a choice. Tells whether the client gets it, and whether it says something new."""
        delta, name = (choice["delta"], "content") if self._again.chat else (choice, "text")
        for each in _BESIDES:  # no engine can continue from anything but text
            if delta.get(each):
                self.give_up(_BESIDES[each])
                if self._later:  # the engine that goes on took the text so far for something else
                    raise EngineFault("rest")
        text = said = delta.get(name) or ""
        if self._skip:  # this engine says it again, perhaps in several parts
            same = len(commonprefix((said, self._skip)))  # noqa: RUF071 - letter by letter is meant
            text = said[same:]
            self._skip = self._skip[same:] if same == len(said) else ""
        if choice.get("finish_reason") is not None:
            self.finished, self._skip = True, ""
        again = "role" in delta and self._role
        if again:
            del delta["role"]
        self._role = self._role or "role" in delta
        if text != said:
            delta[name] = text
        self._keep(text)
        new = bool(text) or not (said or again)
        return new or not self._later or self.finished, new or not self._later

    def _keep(self, text: str) -> None:
        if self.broken or not text:
            return
        self._texts.write(text)
        self.size += len(text.encode("utf-8", "surrogatepass"))
        if self._again.chat and ("</think>" in text or (self.size < 64 and "<think>" in self.text)):
            self.give_up("it has reasoning in it")
        elif self.size > _MOST_TEXT:
            self.give_up("it is too long")

    def _usage(self, said: "dict[str, Any]") -> "dict[str, Any]":
        counts = {"prompt_tokens": self.taken, "total_tokens": self.taken + self.given, "completion_tokens": self.given}
        return {**said, **counts}

    def _event(self, found: "dict[str, Any]") -> bytes:
        told = {**found, **{name: value for name, value in self._head.items() if name in found}}
        return b"data: " + _WRITE(told).encode("utf-8", "surrogatepass") + b"\n\n"


class EngineSays(Exception):
    """An engine ends its answer with an error. event: the error; ours: the request is not to blame."""

    def __init__(self, event: bytes, error: Any) -> None:
        super().__init__()
        code = error.get("code") if isinstance(error, dict) else None
        self.event, self.ours = event, not isinstance(code, int) or code >= 500
