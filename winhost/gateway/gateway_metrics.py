"""Metrics in the text format of Prometheus. All labels come from the settings and from this program."""

import re
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate

Labels = tuple[tuple[str, str], ...]
_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
PREFIX = "winhost_gateway_"
_STATE = re.compile(PREFIX + r'engine_state\{model="([^"]*)",state="([^"]*)"\} 1')
_MODEL_LABEL = re.compile(r'[{,](?:gen_ai_request_)?model="([^"]*)"')


# Names, labels and bounds of OpenTelemetry's conventions for metrics of model servers (docs/gateway.md).
_REQUEST_NAME = "gen_ai_server_request_duration_seconds"
_FIRST_EVENT_NAME = "gen_ai_server_time_to_first_token_seconds"
_REQUEST_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}


@lru_cache(maxsize=256)  # called for every request
def request_labels(route: str, model: str, error: str = "") -> Labels:
    """Return the labels of a request by the conventions. A route without an operation there has its own name."""
    operation = _OPERATIONS.get(route, route.rpartition("/")[2])
    labels = {"gen_ai_operation_name": operation, "gen_ai_provider_name": "vllm", "gen_ai_request_model": model}
    return tuple((labels | ({"error_type": error} if error else {})).items())


class Durations:
    """A histogram for each set of labels."""

    def __init__(self, bounds: "tuple[float, ...]" = _BOUNDS) -> None:
        self._bounds = bounds
        self._buckets: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: defaultdict[Labels, float] = defaultdict(float)

    def add(self, model: str, seconds: float) -> None:
        self.add_to((("model", model),), seconds)

    def add_to(self, labels: Labels, seconds: float) -> None:
        self._sums[labels] += seconds
        self._buckets[labels][bisect_left(self._bounds, seconds)] += 1

    def lines(self, name: str, meaning: str) -> Iterable[str]:
        yield from _header_lines(name, "histogram", meaning)
        for key, buckets in sorted(self._buckets.items()):
            labels = dict(key)
            *below, count = accumulate(buckets)
            for bound, below_bound in zip(self._bounds, below, strict=True):
                yield metric(f"{name}_bucket", {**labels, "le": str(bound)}, below_bound)
            yield metric(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
            yield metric(f"{name}_sum", labels, round(self._sums[key], 6))
            yield metric(f"{name}_count", labels, count)


class TurnMetrics:
    """Durations and failures of sleeping, waking, starting and stopping engines since the gateway started."""

    def __init__(self) -> None:
        self.slept_first, self.slept, self.woken = Durations(), Durations(), Durations()
        self.started, self.stopped = Durations(), Durations()
        self.held_requests, self.image_taken = Durations(), Durations()
        self.failed: Counter[tuple[str, str]] = Counter()
        self._last_moves: dict[str, tuple[float, float]] = {}

    def record_move(self, model: str, seconds: float) -> None:
        """Note that waking or starting the model's engine took this many seconds, and ended now."""
        self._last_moves[model] = seconds, time.time()

    def last_move(self, model: str) -> float:
        """Return the seconds that the last waking or start took; 0 if there was none."""
        return self._last_moves[model][0] if model in self._last_moves else 0.0

    def lines(self, states: Mapping[str, str], counts: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
        """Return the metrics. states: by model; counts: by the name of a metric, and by model."""
        by_state = [({"model": model, "state": state}, 1) for model, state in sorted(states.items())]
        yield from family("engine_state", "gauge", "1 for the state that the engine of a model is in.", by_state)
        for name, by_model in counts.items():
            samples = [({"model": model}, count) for model, count in sorted(by_model.items())]
            yield from family(name, "gauge", "How many there are now, by model.", samples)
        failed = [({"model": model, "move": what}, count) for (model, what), count in sorted(self.failed.items())]
        meaning = "Moves of an engine that failed, so that it was stopped."
        yield from family("engine_failures_total", "counter", meaning, failed)
        for index, name, meaning in (
            (0, "last_move_seconds", "How long the last waking or start of an engine took."),
            (1, "last_move_time_seconds", "When it ended, since 1970."),
        ):
            moves = [({"model": model}, round(each[index], 3)) for model, each in sorted(self._last_moves.items())]
            yield from family(name, "gauge", meaning, moves)
        for name, meaning, each in (
            ("first_sleep_seconds", "Falling asleep for the first time since a start.", self.slept_first),
            ("sleep_seconds", "Falling asleep later.", self.slept),
            ("wake_seconds", "Waking, with the comparison of an answer.", self.woken),
            ("start_seconds", "Starting, until the engine answers.", self.started),
            ("stop_seconds", "Stopping.", self.stopped),
            ("image_seconds", "Writing the process of an engine to disk.", self.image_taken),
            ("held_seconds", "How long requests waited for their model's turn.", self.held_requests),
        ):
            yield from each.lines(PREFIX + name, meaning)


class GatewayMetrics:
    """Metrics of requests since the gateway started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.refused: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.first_token, self.request_duration = Durations(_FIRST_TOKEN_BOUNDS), Durations(_REQUEST_BOUNDS)

    def text(self, gauges: Mapping[str, int], more: Iterable[str] = (), models: frozenset[str] | None = None) -> str:
        """Return all metrics. gauges: present values, such as requests_running; more: further lines; models: return
        only lines of these models, and none without a model, because such lines count the requests of all keys.
        """
        shown = [*self._lines(gauges), *more]
        if models is not None:
            labels = ((each, _MODEL_LABEL.search(each)) for each in shown)
            shown = [each for each, label in labels if each.startswith("#") or (label and label[1] in models)]
        return "\n".join(shown) + "\n"

    def _lines(self, gauges: Mapping[str, int]) -> Iterable[str]:
        requests = [
            ({"route": route, "model": model, "status": str(status)}, count)
            for (route, model, status), count in sorted(self.requests.items())
        ]
        yield from family("requests_total", "counter", "Answered requests by route, model and status.", requests)
        for name, label, meaning, counts in (
            ("refused_total", "reason", "Requests that no engine got, by what was wrong with them.", self.refused),
            ("sent_bytes_total", "model", "Bytes of engines' answers that went to clients.", self.sent),
            ("broken_answers_total", "model", "Answers that an engine broke off.", self.broken),
        ):
            yield from family(
                name, "counter", meaning, [({label: key}, count) for key, count in sorted(counts.items())]
            )
        for name, value in gauges.items():
            yield from family(name, "gauge", "How many there are now.", [({}, value)])
        for name, meaning, each in (
            (_FIRST_EVENT_NAME, "Until the client has the first event of a stream, with waiting.", self.first_token),
            (_REQUEST_NAME, "Until the client has the end of an answer, with waiting.", self.request_duration),
        ):
            yield from each.lines(name, meaning)


def parse_states(lines: Iterable[str]) -> "dict[str, str]":
    """Read the state of each model that takes turns from lines of TurnMetrics."""
    found = (_STATE.fullmatch(each) for each in lines)
    return {each[1]: each[2] for each in found if each}


def family(
    name: str, kind: str, meaning: str, samples: "Iterable[tuple[dict[str, str], float]]", prefix: str = PREFIX
) -> Iterable[str]:
    """Return the lines of one metric. samples: labels and values."""
    yield from _header_lines(prefix + name, kind, meaning)
    yield from (metric(prefix + name, labels, value) for labels, value in samples)


def _header_lines(name: str, kind: str, meaning: str) -> Iterable[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def metric(name: str, labels: dict[str, str], value: float) -> str:
    shown = ",".join(f'{key}="{text}"' for key, text in labels.items())  # no label has a quote: settings refuse them
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"
