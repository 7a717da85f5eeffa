"""Explain why a start failed: the table of symptoms finds the cause in its log, as an error with the remedy."""

import re
from collections.abc import Sequence

from winhost.model.errors import WinhostError, visible
from winhost.model.masking import masked
from winhost.model.reason import Severity
from winhost.model.served import UnitState
from winhost.symptoms.diagnosis import SymptomFinding, diagnosis

LINES_OF_A_START = 5000
"""As many of its log are read."""
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
        meaning = "\n".join(_last(lines)) or None
    else:
        why, cause = found.sentence, found.causes[0]
        first = _first_error(lines) if found.severity is Severity.UNVERIFIED else None
        meaning = f"{cause.sentence}\nIts log says: {first or found.observed[:_LONGEST]}\nHow to tell: {cause.tell}"
        log = f"{cause.remedy}\n{log}; more: winhost explain {found.code}"
    return WinhostError("StartFailed", f"{host}: {source} did not start: {why}", meaning, log, host=host)


def told_by(lines: Sequence[str]) -> SymptomFinding | None:
    """The symptom that tells most; one that only says that something failed, where no other does."""
    found = diagnosis([f"{line}\n" for line in lines], "log").found
    return next((each for each in found if each.severity is not Severity.NOTE), None)


def _first_error(lines: Sequence[str]) -> str | None:
    """The first error, where the rest only says that something failed."""
    found = next((match for match in map(_ERROR.search, lines) if match), None)
    return visible(masked(found[1]))[:_LONGEST] if found else None


def _last(lines: Sequence[str]) -> list[str]:
    return [visible(masked(line))[:_LONGEST] for line in lines if line.strip()][-_LAST:]
