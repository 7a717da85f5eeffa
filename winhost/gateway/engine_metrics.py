"""Metrics of engines, read from their sockets and labelled with the names of their models.

An engine may send anything. So each line is checked, gets its label `model` here, and is dropped if its name has one of
the gateway's own prefixes. Only engines that are awake are read, so that reading wakes none.
"""

import asyncio
import math
import re
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .engine_control import EngineFault, EngineUnreachable
from .engines import AnswerTooLong, Engines
from .gateway_metrics import PREFIX, family
from .gateway_settings import PublishedModel

_READ_S = 5
_MAX_ENGINE_BYTES = 1_000_000  # of one engine
_MAX_TOTAL_BYTES = 4_000_000
_CACHE_S = 1.0  # for which a text is sent again, so that no engine is read all the time
_LINES_AT_ONCE = 100  # between two pauses in which streams go on
_MAX_LINE = 8_192
_READABLE_STATES = ("awake", "draining")

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.*)")
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"'
_LABELS = re.sub(r"\((?!\?)", "(?:", _LABEL)
_SAMPLE = re.compile(rf"({_NAME})(?:\{{((?:{_LABELS},)*(?:{_LABELS})?)\}})? ([^ ]+)( -?[0-9]{{1,15}})?")
_LABEL_OF = re.compile(_LABEL)
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|Inf)|NaN")
_SUFFIXES = (
    "",
    "_bucket",
    "_sum",
    "_count",
    "_total",
    "_created",
)  # of the names of samples, after the name of their family
_TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
_RESERVED_PREFIXES = (PREFIX.partition("_")[0] + "_", "gen_ai_", "hw_")  # prefixes that an engine may not use


@dataclass
class _Family:
    comments: "dict[str, str]" = field(default_factory=dict)
    samples: "list[str]" = field(default_factory=list)


@dataclass(frozen=True)
class _Reading:
    """The metrics of an engine, as they were read.

    result: `read`, the state of an engine that was not read, or why reading failed; at: when they were read.
    """

    result: str
    at: float
    seconds: float = 0.0
    families: "Mapping[str, _Family]" = field(default_factory=dict)


class EngineMetrics:
    """Read the metrics of engines, and cache them for a second."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._readings: dict[str, _Reading] = {}
        self._read_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._texts: dict[tuple[str, ...], bytes] = {}
        self._text_locks: defaultdict[tuple[str, ...], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._parse_lock = asyncio.Lock()  # one text is parsed at a time, so that streams go on

    async def text(self, models: Collection[PublishedModel], states: Mapping[str, str]) -> bytes:
        """Return the metrics of these models. states: by model, of those that take turns. Requests at the same time
        share one text, so that many slow readers do not multiply it in memory.
        """
        names = tuple(model.name for model in models)
        async with self._text_locks[names]:
            if (text := self._texts.get(names)) is None:
                text = self._texts[names] = await self._write_text(models, states)
                asyncio.get_running_loop().call_later(_CACHE_S, self._texts.pop, names, None)
            return text

    async def _write_text(self, models: Collection[PublishedModel], states: Mapping[str, str]) -> bytes:
        limit = min(_MAX_ENGINE_BYTES, _MAX_TOTAL_BYTES // max(1, len(models)))
        found = await asyncio.gather(*(self._read(model, states.get(model.name), limit) for model in models))
        by_name = dict(zip((model.name for model in models), found, strict=True))
        results = [({"model": name, "result": each.result}, 1) for name, each in by_name.items()]
        seconds = [({"model": name}, round(each.seconds, 3)) for name, each in by_name.items() if each.seconds]
        lines = [
            *family("engine_metrics", "gauge", "1 for the result of reading the metrics of an engine.", results),
            *family("engine_metrics_seconds", "gauge", "How long reading them took.", seconds),
        ]
        text = bytearray("".join(f"{each}\n" for each in lines), "utf-8")
        for name in dict.fromkeys(name for each in found for name in each.families):
            same = [each.families[name] for each in found if name in each.families]
            text += "".join(f"# {kind} {name} {value}\n" for kind, value in same[0].comments.items()).encode("utf-8")
            samples = [sample for each in same for sample in each.samples]
            for at in range(0, len(samples), _LINES_AT_ONCE):
                text += "".join(f"{each}\n" for each in samples[at : at + _LINES_AT_ONCE]).encode("utf-8")
                await asyncio.sleep(0)
        return bytes(text)

    async def _read(self, model: PublishedModel, state: "str | None", limit: int) -> _Reading:
        """Read the metrics of one engine, unless they are cached."""
        async with self._read_locks[model.name]:
            began = time.monotonic()
            before = self._readings.get(model.name)
            if before and began - before.at < _CACHE_S:
                return before
            result, families, seconds = state or "", {}, 0.0
            if state is None or state in _READABLE_STATES:
                try:
                    text = await asyncio.wait_for(self._engines.metrics(model, limit), _READ_S)
                    async with self._parse_lock:
                        families = await _parse_families(text.decode("utf-8"), model.name)
                    result = "read"
                except EngineUnreachable:
                    result = "unreachable"
                except asyncio.TimeoutError:
                    result = "late"
                except AnswerTooLong:
                    result = "too-long"
                except (EngineFault, UnicodeError):
                    result = "wrong"
                seconds = max(time.monotonic() - began, 0.001)
            found = self._readings[model.name] = _Reading(result, time.monotonic(), seconds, families)
            return found


async def _parse_families(text: str, model: str) -> "dict[str, _Family]":
    """Parse metrics by name, and label them with this model. Lines that do not fit the format are dropped."""
    found: defaultdict[str, _Family] = defaultdict(_Family)
    current = ""
    for number, each in enumerate(text.split("\n")):
        if number % _LINES_AT_ONCE == 0:
            await asyncio.sleep(0)
        if len(each) > _MAX_LINE:
            continue
        if comment := _COMMENT.fullmatch(each):
            kind, current, value = comment.groups()
            if not current.startswith(_RESERVED_PREFIXES) and (kind == "HELP" or value in _TYPES):
                found[current].comments.setdefault(kind, value)
        elif (sample := _SAMPLE.fullmatch(each)) and (line := _label_sample(model, *sample.groups(""))):
            name = sample[1]
            found[current if name.removeprefix(current) in _SUFFIXES else name].samples.append(line)
    return {name: family for name, family in found.items() if family.samples}


def _label_sample(model: str, name: str, labels: str, number: str, timestamp: str) -> str:
    """Return the line of a sample with its model as a label; empty if Prometheus would refuse the text because
    of it.
    """
    if name.startswith(_RESERVED_PREFIXES) or not _NUMBER.fullmatch(number):
        return ""
    if math.isinf(float(number)) and not number.endswith("Inf"):
        return ""
    # What an engine calls `model` becomes `exported_model`, as Prometheus itself renames such a label.
    pairs = [("exported_model" if key == "model" else key, text) for key, text in _LABEL_OF.findall(labels)]
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys) or any(key.startswith("__") for key in keys):
        return ""
    own_labels = "".join(f',{key}="{text}"' for key, text in pairs)
    return f'{name}{{model="{model}"{own_labels}}} {number}{timestamp}'
