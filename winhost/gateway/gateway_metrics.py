"""What Prometheus is told, in its text format. Labels are words of the settings and of this program alone."""

import re
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate

_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
PREFIX = "winhost_gateway_"
_STATE = re.compile(PREFIX + r'engine_state\{model="([^"]*)",state="([^"]*)"\} 1')
_OF_MODEL = re.compile(r'[{,]model="([^"]*)"')


class Durations:
    """A histogram for each label."""

    def __init__(self) -> None:
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(_BOUNDS) + 1))
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, label: str, seconds: float) -> None:
        self._sums[label] += seconds
        self._buckets[label][bisect_left(_BOUNDS, seconds)] += 1

    def lines(self, name: str) -> Iterable[str]:
        for label, buckets in sorted(self._buckets.items()):
            *below, count = accumulate(buckets)
            for bound, so_many in zip(_BOUNDS, below, strict=True):
                yield line(f"{name}_bucket", {"model": label, "le": str(bound)}, so_many)
            yield line(f"{name}_bucket", {"model": label, "le": "+Inf"}, count)
            yield line(f"{name}_sum", {"model": label}, round(self._sums[label], 6))
            yield line(f"{name}_count", {"model": label}, count)


class TurnMetrics:
    """Of models that take turns, since the start: how long each move of an engine took, and which failed."""

    def __init__(self) -> None:
        self.slept_first, self.slept, self.woken = Durations(), Durations(), Durations()
        self.started, self.stopped, self.held, self.imaged = Durations(), Durations(), Durations(), Durations()
        self.failed: Counter[tuple[str, str]] = Counter()
        self._last: dict[str, tuple[float, float]] = {}

    def moved(self, model: str, seconds: float) -> None:
        """Its engine has just been woken or started, which took so long."""
        self._last[model] = seconds, time.time()

    def last_move(self, model: str) -> float:
        """Seconds; 0 where it was not moved yet."""
        return self._last[model][0] if model in self._last else 0.0

    def lines(self, states: Mapping[str, str], counts: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
        """states: by model; counts: by what is counted, and model."""
        yield from head("engine_state", "gauge", "1 for the state that the engine of a model is in.")
        for model, state in sorted(states.items()):
            yield line("engine_state", {"model": model, "state": state}, 1)
        for name, by_model in counts.items():
            yield from head(name, "gauge", "How many there are now, by model.")
            for model, count in sorted(by_model.items()):
                yield line(name, {"model": model}, count)
        yield from head("engine_failures_total", "counter", "Moves of an engine that failed, so that it was stopped.")
        for (model, what), count in sorted(self.failed.items()):
            yield line("engine_failures_total", {"model": model, "move": what}, count)
        for index, name, meaning in (
            (0, "last_move_seconds", "How long the last waking or start of an engine took."),
            (1, "last_move_time_seconds", "When it ended, since 1970."),
        ):
            yield from head(name, "gauge", meaning)
            for model, last in sorted(self._last.items()):
                yield line(name, {"model": model}, round(last[index], 3))
        for name, meaning, each in (
            ("first_sleep_seconds", "Falling asleep for the first time since a start.", self.slept_first),
            ("sleep_seconds", "Falling asleep later.", self.slept),
            ("wake_seconds", "Waking, with the comparison of an answer.", self.woken),
            ("start_seconds", "Starting, until the engine answers.", self.started),
            ("stop_seconds", "Stopping.", self.stopped),
            ("image_seconds", "Writing the process of an engine to disk.", self.imaged),
            ("held_seconds", "How long requests waited for their model's turn.", self.held),
        ):
            yield from head(name, "histogram", meaning)
            yield from each.lines(name)


class GatewayMetrics:
    """Counted since the start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.refused: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.first_byte, self.whole = Durations(), Durations()

    def text(self, more: Iterable[str] = (), only: frozenset[str] | None = None, **now: int) -> str:
        """now: what there is at this moment, such as requests_running; more: lines of others; only: lines of these
        models and no other, not even those without a model, which count everybody's requests.
        """
        lines = (*self._lines(now), *more)
        return "\n".join(each for each in lines if only is None or _shown_to(each, only)) + "\n"

    def _lines(self, now: dict[str, int]) -> Iterable[str]:
        yield from head("requests_total", "counter", "Answered requests by route, model and status.")
        for (route, model, status), count in sorted(self.requests.items()):
            yield line("requests_total", {"route": route, "model": model, "status": str(status)}, count)
        yield from head("refused_total", "counter", "Requests that no engine got, by what was wrong with them.")
        for reason, count in sorted(self.refused.items()):
            yield line("refused_total", {"reason": reason}, count)
        yield from head("sent_bytes_total", "counter", "Bytes of engines' answers that went to clients.")
        for model, count in sorted(self.sent.items()):
            yield line("sent_bytes_total", {"model": model}, count)
        yield from head("broken_answers_total", "counter", "Answers that an engine broke off.")
        for model, count in sorted(self.broken.items()):
            yield line("broken_answers_total", {"model": model}, count)
        for name, value in now.items():
            yield from head(name, "gauge", "How many there are now.")
            yield line(name, {}, value)
        for name, meaning, each in (
            ("first_byte_seconds", "Until the first byte of an answer.", self.first_byte),
            ("request_seconds", "Until the end of an answer.", self.whole),
        ):
            yield from head(name, "histogram", meaning)
            yield from each.lines(name)


def states_in(lines: Iterable[str]) -> "dict[str, str]":
    """By model, of engines that take turns: from lines of TurnMetrics."""
    found = (_STATE.fullmatch(each) for each in lines)
    return {each[1]: each[2] for each in found if each}


def _shown_to(text: str, only: frozenset[str]) -> bool:
    found = _OF_MODEL.search(text)
    return text.startswith("#") or (found is not None and found[1] in only)


def head(name: str, kind: str, meaning: str) -> Iterable[str]:
    yield f"# HELP {PREFIX}{name} {meaning}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def line(name: str, labels: dict[str, str], value: float) -> str:
    shown = ",".join(f'{key}="{text}"' for key, text in labels.items())  # no label has a quote: settings refuse them
    return f"{PREFIX}{name}{{{shown}}} {value}" if shown else f"{PREFIX}{name} {value}"
