# Part of the agent, what systemd says of units, and starting one.
from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import AgentFault, State, must, run, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

# The word, what is between, and then all that could belong to its value.
SECRETS = re.compile(
    r"((?:pass(?:word|wd|phrase)?|secret|token|credential|authorization|bearer|api[_-]?key|private[_-]?key)\w*"
    r"[\"']?\s*(?:[=:]|\s)\s*).+|(://[^/\s:@]*:)[^/\s]*@",
    re.IGNORECASE,
)


def unit_properties(unit: str) -> dict[str, str]:
    (found,) = properties_of([unit])
    return found


def properties_of(units: Sequence[str]) -> list[dict[str, str]]:
    """The properties of all units in one call: one by one they would take longer than all other reads of a session."""
    desired = "--property=LoadState,UnitFileState,ActiveState,NeedDaemonReload"
    texts = must("systemctl", "show", desired, "--", *units).strip("\n").split("\n\n")
    return [dict(line.split("=", 1) for line in text.splitlines()) for text in texts]


def start(unit: str, how: State) -> None:
    began = time.time()
    try:
        must("systemctl", "start", "--", unit, within=seconds(how, 120))
    except AgentFault as fault:
        shown = last_lines(unit, began)
        message = f"{fault}; its journal: {shown}" if shown else str(fault)
        raise AgentFault(fault.code, fault.category, message, fault.program, fault.details) from None


def last_lines(unit: str, since: float) -> str:
    """The last log lines of a unit, without what follows a word for a secret."""
    options = ("--no-pager", "--output=cat", "--lines=8", f"--since=@{int(since)}", f"--unit={unit}")
    with suppress(AgentFault):  # journald may still hold what the unit wrote; without an answer we show what there is
        run("journalctl", "--sync", within=20)
    found = run("journalctl", "--quiet", *options)
    return "; ".join(
        SECRETS.sub(lambda m: (m[1] or m[2]) + "***", line.strip())[:300]
        for line in found.output.splitlines()
        if line.strip()
    )
