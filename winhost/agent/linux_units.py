# Part of the program that `winhost serve` sends: the units of engines and gateway, and their journals.
"""Units with other names are never read, started or stopped. This part has to parse with Python 3.8."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winhost.agent.linux_agent import AgentFault, bad_request, check_text, run, run_checked, systemd_runs, wrong_state

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from collections.abc import Iterator

    from winhost.agent.linux_agent import State

UNIT = r"winhost-(?:gateway|engine-[a-z0-9][a-z0-9-]{0,63})\.service"
PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,UnitFileState,MainPID,NRestarts,ExecMainStatus,InvocationID,"
    "StateChangeTimestampMonotonic"
)
INVOCATION, CURSOR = r"[0-9a-f]{32}", r"[A-Za-z0-9=;-]{1,300}"
LISTENS = "0A"  # in /proc/net/tcp
PAGE_CHARACTERS, MAX_LINE_CHARACTERS = 60_000, 2000  # characters of a page of the journal, and of a line
MAX_LINES = 2000
ENOUGH_FAILURES = 2


def unit_name(name: Any) -> str:
    return check_text(UNIT, name, "a unit of an engine or of the gateway")


def unit_states(names: list[Any]) -> list[State]:
    """Read the states of the units, in this order."""
    if not systemd_runs():
        raise wrong_state("systemd does not run here.")
    units = [unit_name(name) for name in names]
    if not units:
        return []
    output = run_checked("systemctl", "show", f"--property={PROPERTIES}", "--", *units)
    blocks = (dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in output.split("\n\n"))
    found = {block["Id"]: block for block in blocks if "Id" in block}
    return [state_of(unit, found.get(unit, {})) for unit in units]


def state_of(unit: str, block: dict[str, str]) -> State:
    changed = number(block.get("StateChangeTimestampMonotonic"))
    return {
        "unit": unit,
        "there": block.get("LoadState") == "loaded",
        "active": block.get("ActiveState", "unknown"),
        "sub": block.get("SubState", ""),
        "result": block.get("Result", ""),
        "enabled": block.get("UnitFileState", ""),
        "pid": number(block.get("MainPID")),
        "restarts": number(block.get("NRestarts")),
        "code": number(block.get("ExecMainStatus")),
        "invocation": block.get("InvocationID", ""),
        "seconds": max(0, int(time.monotonic() - changed / 1e6)) if changed else None,
    }


def number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


class FailedStarts:
    """Failed starts of an engine, by invocation. again: the gateway starts it again after each failure, so that two
    failures count as final.
    """

    def __init__(self, unit: Any, again: bool) -> None:
        self._unit, self._again = unit_name(unit), again
        self.invocations: list[str] = []

    def has_failed(self) -> bool:
        """Read the state of the unit, and tell whether its failure is final."""
        (found,) = unit_states([self._unit])
        restarts = found["sub"] == "auto-restart"
        if (found["active"] == "failed" or restarts) and found["invocation"] not in self.invocations:
            self.invocations.append(found["invocation"])
        return len(self.invocations) >= (ENOUGH_FAILURES if self._again or restarts else 1)


def start_unit(name: Any) -> None:
    """Start a unit, also one that reached its start limit, and do not wait for it."""
    unit = unit_name(name)
    run("systemctl", "reset-failed", "--", unit)
    run_checked("systemctl", "start", "--no-block", "--", unit)


def stop_unit(name: Any) -> None:
    """Stop a unit, and do not wait for it."""
    run_checked("systemctl", "stop", "--no-block", "--", unit_name(name))


# ---- listeners


def holds_port(pid: int, port: int) -> bool:
    """Tell whether only this process listens at the port, at any address. A key must not be sent to another process."""
    ours: set[str] = set()
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                ours.add(os.readlink(fd))
    found = set(listeners(port))
    return bool(found) and found <= ours


def listeners(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text("ascii").splitlines()[1:]:
                parts = line.split()
                if parts[3] == LISTENS and int(parts[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{parts[9]}]"


# ---- the journal


def journal(names: list[Any], lines: int, cursor: Any, invocation: Any) -> State:
    """Read a page of the units' journal, the oldest line first. cursor: the line after which the page begins; lines:
    without a cursor, the number of last lines; invocation: return only lines of this start of the only unit.
    """
    units = [unit_name(name) for name in names]
    arguments = ["--quiet", "--no-pager", "--all", "--output=json"]
    arguments += ["--output-fields=MESSAGE,UNIT,_SYSTEMD_UNIT"]
    if cursor:
        arguments.append("--after-cursor=" + check_text(CURSOR, cursor, "a cursor of the journal"))
    elif not 1 <= lines <= 100_000:
        raise bad_request("1 to 100000 lines can be asked for.")
    else:
        arguments.append(f"--lines={lines}")
    if invocation:
        id_ = check_text(INVOCATION, invocation, "an invocation")
        arguments += [f"_SYSTEMD_INVOCATION_ID={id_}", "+", f"INVOCATION_ID={id_}"]
    else:
        arguments += [f"--unit={unit}" for unit in units]
    done = run("journalctl", *arguments, within=60)
    if done.code != 0 and done.errors.strip():
        raise AgentFault("Winhost.ProgramFailed", "InvalidResult", done.errors.strip()[-500:], "journalctl")
    return page(done.output, units, cursor)


def page(output: str, units: list[str], cursor: str | None) -> State:
    listed: list[State] = []
    page_size = 0
    for line in output.splitlines():
        entry = json.loads(line)
        text = message_text(entry.get("MESSAGE"))
        if page_size + len(text) > PAGE_CHARACTERS or len(listed) == MAX_LINES:
            return {"lines": listed, "cursor": cursor, "more": True}
        page_size += len(text)
        cursor = entry["__CURSOR"]
        at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        unit = next((unit for unit in (entry.get("UNIT"), entry.get("_SYSTEMD_UNIT")) if unit in units), units[0])
        listed.append({"unit": unit, "at": at, "text": text})
    return {"lines": listed, "cursor": cursor, "more": False}


def message_text(message: Any) -> str:
    """Return the text of a message. A line that is no plain text comes as numbers, and a very long one as null. Of text
    that was overwritten with carriage returns, return the last part.
    """
    if isinstance(message, list):
        whole = [each for each in message if isinstance(each, int)]
        message = bytes(each & 255 for each in whole).decode("utf-8", "replace")
    if not isinstance(message, str):
        return "(a line that is too long)"
    parts = [part for part in re.split(r"[\r\n]", message) if part.strip()]
    return (parts[-1] if parts else "")[:MAX_LINE_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
