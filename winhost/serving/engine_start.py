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
    """says: what is done; begins: an expression for lines of the log that show it; at: percent of the whole at its
    beginning, as cold starts of a 7.6B went on an H200 and vLLM 0.24.0.
    """

    name: PhaseName
    says: str
    at: int
    begins: re.Pattern[str]


def _phase(name: PhaseName, says: str, at: int, *begins: str) -> Phase:
    return Phase(name, says, at, re.compile("|".join(begins)))


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
WHOLE = 100
_SHARE = re.compile(r"\b(\d{1,3})%(?: Completed)? ?\|")
_CELLS = 20


@dataclass
class StartProgress:
    """Reads lines of one start. phase: its index in PHASES; share: of this phase, from 0 to 1, as lines have it."""

    phase_index: int = 0
    share: float = 0.0

    def read(self, lines: Iterable[str]) -> bool:
        """Tell whether another phase has begun. A phase never goes back: several workers write at once."""
        before = self.phase_index
        for line in lines:
            found = next((index for index in _BACKWARDS if PHASES[index].begins.search(line)), None)
            if found is not None and found > self.phase_index:
                self.phase_index, self.share = found, 0.0
            if found == self.phase_index and (share := _SHARE.search(line)):
                self.share = max(self.share, min(int(share[1]), WHOLE) / WHOLE)
        return self.phase_index != before

    @property
    def phase(self) -> Phase:
        return PHASES[self.phase_index]

    @property
    def percent(self) -> int:
        until = PHASES[self.phase_index + 1].at if self.phase_index + 1 < len(PHASES) else WHOLE
        return int(self.phase.at + self.share * (until - self.phase.at))

    @property
    def bar(self) -> str:
        full = self.percent * _CELLS // WHOLE
        return f"{'█' * full}{'░' * (_CELLS - full)} {self.percent:3} % {self.phase.says}"


_BACKWARDS = range(len(PHASES) - 1, -1, -1)


LINES_OF_A_START = 5000
"""The number of lines of its log that are read."""
_LAST = 3  # lines that are shown where nothing is known
_LONGEST = 300
_ERROR = re.compile(r"(?:^|\] )((?:\w+\.)*\w*(?:Error|Exception): .+)")


def start_failure(host: str, source: str, unit: UnitState, lines: Sequence[str], what: str = "") -> WinhostError:
    """source: a model, or `gateway`; lines: of its log; what: how to say it where the log has nothing that is known."""
    option = "--gateway" if source == "gateway" else f"--model {source}"
    log = f"Its log: winhost serve logs {host} {option}"
    found = told_by(lines)
    if found is None:
        why = what or f"its unit is {unit.active} ({unit.result}, exit code {unit.code})"
        meaning = "\n".join([visible(masked(line))[:_LONGEST] for line in lines if line.strip()][-_LAST:]) or None
    else:
        why, cause = found.sentence, found.causes[0]
        says = found.observed[:_LONGEST]
        if found.severity is Severity.UNVERIFIED:  # the symptom says only that something failed
            error = next((match for match in map(_ERROR.search, lines) if match), None)
            says = visible(masked(error[1]))[:_LONGEST] if error else says
        meaning = f"{cause.sentence}\nIts log says: {says}\nHow to tell: {cause.tell}"
        log = f"{cause.remedy.do if cause.remedy else ''}\n{log}; more: winhost explain {found.code}"
    return WinhostError("StartFailed", f"{host}: {source} did not start: {why}", meaning, log, host=host)


def told_by(lines: Sequence[str]) -> SymptomFinding | None:
    """The symptom that tells most; one that only says that something failed, where no other does."""
    found = diagnose([f"{line}\n" for line in lines], "log").found
    return next((each for each in found if each.severity is not Severity.NOTE), None)
