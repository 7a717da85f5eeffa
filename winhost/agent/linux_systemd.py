# Part of the agent: the properties of systemd's units, and starting a unit.
from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import AgentFault, State, run, run_checked, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

# A name of a secret, a separator, and everything that may belong to the value.
SECRETS = re.compile(
    r"((?:pass(?:word|wd|phrase)?|secret|token|credential|authorization|bearer|api[_-]?key|private[_-]?key)\w*"
    r"[\"']?\s*(?:[=:]|\s)\s*).+|(://[^/\s:@]*:)[^/\s]*@",
    re.IGNORECASE,
)


def unit_properties(unit: str) -> dict[str, str]:
    (found,) = properties_of([unit])
    return found


def properties_of(units: Sequence[str]) -> list[dict[str, str]]:
    """Read the properties of several units with one call, which is much faster than one call for each."""
    desired = "--property=LoadState,UnitFileState,ActiveState,NeedDaemonReload"
    texts = run_checked("systemctl", "show", desired, "--", *units).strip("\n").split("\n\n")
    return [dict(line.split("=", 1) for line in text.splitlines()) for text in texts]


def start(unit: str, how: State) -> None:
    began = time.time()
    try:
        run_checked("systemctl", "start", "--", unit, within=seconds(how, 120))
    except AgentFault as fault:
        shown = last_lines(unit, began)
        message = f"{fault}; its journal: {shown}" if shown else str(fault)
        raise AgentFault(fault.code, fault.category, message, fault.program, fault.details) from None


def last_lines(unit: str, since: float) -> str:
    """Return the last log lines of a unit, without values of secrets."""
    options = ("--no-pager", "--output=cat", "--lines=8", f"--since=@{int(since)}", f"--unit={unit}")
    with suppress(AgentFault):  # journald may not have written the last lines yet
        run("journalctl", "--sync", within=20)
    found = run("journalctl", "--quiet", *options)
    return "; ".join(
        SECRETS.sub(lambda m: (m[1] or m[2]) + "***", line.strip())[:300]
        for line in found.output.splitlines()
        if line.strip()
    )
