"""Follow an engine's start by its own log, and explain from the log why one failed."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from winhost.core.dataclass import dataclass
from winhost.model.errors import WinhostError, visible
from winhost.model.masking import masked
from winhost.model.reason import Severity
from winhost.model.served import UnitState
from winhost.symptoms.diagnosis import SymptomFinding, diagnose

PhaseName: TypeAlias = Literal["begin", "image", "start", "download", "load", "compile", "memory", "graphs", "finish"]


@dataclass(frozen=True)
class Phase:
    """A phase of a start. first_percent: of the whole start at its beginning, as measured with cold starts of a 7.6B on
    an H200 with vLLM 0.24.0; pattern: matches lines of the log that show the phase.
    """

    name: PhaseName
    title: str
    first_percent: int
    pattern: re.Pattern[str]


def _phase(name: PhaseName, title: str, first_percent: int, *patterns: str) -> Phase:
    return Phase(name, title, first_percent, re.compile("|".join(patterns)))


PHASES = (
    _phase("begin", "starting", 0, r"(?!)"),
    _phase("image", "pulling the image", 1, r"\bPulling\b", r"Pulling fs layer"),
    _phase("start", "starting vLLM", 3, r"non-default args", r"Initializing a V1 LLM engine", r"Resolved architecture"),
    _phase("download", "downloading the model", 15, r"Downloading", r"Fetching \d+ files", r"Time spent downloading"),
    _phase(
        "load", "loading weights", 25, r"Starting to load model", r"Loading .*checkpoint shards", r"Loading weights"
    ),
    _phase(
        "compile",
        "compiling",
        45,
        r"for vLLM's torch\.compile",
        r"Dynamo bytecode transform",
        r"Compiling a graph",
        r"Directly load the compiled graph",
    ),
    _phase(
        "memory",
        "measuring memory",
        68,
        r"torch\.compile (?:took|takes)",
        r"Available KV cache memory",
        r"KV cache size",
        r"Memory profiling",
    ),
    _phase("graphs", "capturing CUDA graphs", 75, r"Capturing CUDA graphs", r"Profiling CUDA graph memory"),
    _phase(
        "finish",
        "warming up",
        85,
        r"Graph capturing finished",
        r"init engine \(",
        r"Starting vLLM (?:API )?server",
        r"Application startup complete",
    ),
)
FULL_PERCENT = 100
_SHARE = re.compile(r"\b(\d{1,3})%(?: Completed)? ?\|")
_BAR_CELLS = 20


@dataclass
class StartProgress:
    """Reads the log of one start. phase_index: in PHASES; share: done of this phase, from 0 to 1, by the log's own
    progress bars.
    """

    phase_index: int = 0
    share: float = 0.0

    def read(self, lines: Iterable[str]) -> bool:
        """Read lines, and tell whether another phase has begun. The phase never goes back, although the lines of
        several workers are mixed.
        """
        before = self.phase_index
        for line in lines:
            index = next((index for index in _BACKWARDS if PHASES[index].pattern.search(line)), None)
            if index is not None and index > self.phase_index:
                self.phase_index, self.share = index, 0.0
            if index == self.phase_index and (share := _SHARE.search(line)):
                self.share = max(self.share, min(int(share[1]), FULL_PERCENT) / FULL_PERCENT)
        return self.phase_index != before

    @property
    def phase(self) -> Phase:
        return PHASES[self.phase_index]

    @property
    def percent(self) -> int:
        first = self.phase.first_percent
        next_first = PHASES[self.phase_index + 1].first_percent if self.phase_index + 1 < len(PHASES) else FULL_PERCENT
        return int(first + self.share * (next_first - first))

    @property
    def bar(self) -> str:
        full = self.percent * _BAR_CELLS // FULL_PERCENT
        return f"{'█' * full}{'░' * (_BAR_CELLS - full)} {self.percent:3} % {self.phase.title}"


_BACKWARDS = range(len(PHASES) - 1, -1, -1)


MAX_START_LINES = 5000
"""The number of lines that are read of the log of a start."""
_LAST_LINES = 3  # that are shown if no symptom is found
_MAX_LINE_LENGTH = 300
_ERROR = re.compile(r"(?:^|\] )((?:\w+\.)*\w*(?:Error|Exception): .+)")


def start_failure(host: str, source: str, unit: UnitState, lines: Sequence[str], what: str = "") -> WinhostError:
    """Make the error for a failed start. source: a model, or `gateway`; lines: of its log; what: the sentence if the
    log has no known symptom.
    """
    option = "--gateway" if source == "gateway" else f"--model {source}"
    log = f"Its log: winhost serve logs {host} {option}"
    symptom = find_symptom(lines)
    if symptom is None:
        why = what or f"its unit is {unit.active} ({unit.result}, exit code {unit.code})"
        meaning = (
            "\n".join([visible(masked(line))[:_MAX_LINE_LENGTH] for line in lines if line.strip()][-_LAST_LINES:])
            or None
        )
    else:
        why, cause = symptom.sentence, symptom.causes[0]
        line = symptom.observed[:_MAX_LINE_LENGTH]
        if symptom.severity is Severity.UNVERIFIED:  # the symptom says only that something failed
            error = next((match for match in map(_ERROR.search, lines) if match), None)
            line = visible(masked(error[1]))[:_MAX_LINE_LENGTH] if error else line
        meaning = f"{cause.sentence}\nIts log says: {line}\nHow to tell: {cause.tell}"
        log = f"{cause.remedy.do if cause.remedy else ''}\n{log}; more: winhost explain {symptom.code}"
    return WinhostError("StartFailed", f"{host}: {source} did not start: {why}", meaning, log, host=host)


def find_symptom(lines: Sequence[str]) -> SymptomFinding | None:
    """Find the most specific symptom in a log."""
    symptoms = diagnose([f"{line}\n" for line in lines], "log").found
    return next((each for each in symptoms if each.severity is not Severity.NOTE), None)
