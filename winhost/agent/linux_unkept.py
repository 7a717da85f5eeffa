# Part of the agent, changes that may cut off whoever makes them: undone unless they are asked for again.
from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from typing import Any

from winhost.agent.linux_agent import (
    KEPT,
    ONCE,
    AgentFault,
    Key,
    State,
    entry,
    must,
    once,
    run,
    systemd_runs,
    wrong_state,
)
from winhost.agent.linux_files import boot_id, content, put, remove
from winhost.agent.linux_made import read_record

LOCK = "/run/winhost.lock"
UNDO = f"{KEPT}/undo"
RECORD, UNDOER = f"{UNDO}/record.json", f"{UNDO}/agent.py"
UNDO_UNIT = "/etc/systemd/system/winhost-undo"
UNDO_SERVICE = """\
# Written by winhost. A change that may have cut SSH access is undone, unless winhost comes back over a new connection.
[Unit]
Description=Undo what winhost changed and nobody kept
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={} -I {}
Restart=on-failure
RestartSec=10
"""
# Enabled, so that a restart meanwhile puts it off and does not end it.
UNDO_TIMER = """\
# Written by winhost.
[Unit]
Description=The time within which winhost comes back

[Timer]
OnActiveSec={}
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def same(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def set_for_good(call: State, before: State, missing: State) -> None:
    change = entry(call["resource"]).set
    assert change is not None
    change(call["key"], missing, call.get("how") or {})


def set_revocably(call: State, before: State, missing: State) -> None:
    """The first call changes and never ends well; the same once more, through a new connection, keeps it."""
    resource, key, how = call["resource"], call["key"], call.get("how") or {}
    record = unkept()
    if record and record["phase"] == "undone" and is_of(record, resource, key):
        remove(RECORD)
        if same(record["desired"], missing):
            message = "Nobody came back within {} s of this change, so it was undone.".format(record["within"])
            raise AgentFault("Winhost.Undone", "OperationStopped", message)
    elif record and record["phase"] == "awaiting":
        if not is_of(record, resource, key):
            message = "Another change waits to be kept or undone: {}.".format(record["resource"])
            raise AgentFault("Winhost.Awaiting", "ResourceBusy", message)
        if same(record["desired"], missing) and record["changed_at"] is not None:
            keep(record, how)
            return
        undo_unkept()  # also what was broken off half-way: nobody could keep that
    begin(resource, key, {name: before[name] for name in missing}, missing, how)


def begin(resource: str, key: Key, before: State, missing: State, how: State) -> None:
    if not systemd_runs():
        raise wrong_state("Without systemd nothing would undo this change if it cut SSH access.")
    within = max(5, int(float(how.get("within") or 300)))
    record = {"resource": resource, "key": key, "before": before, "desired": missing, "within": within}
    record["accept"] = list(how.get("accept", ()))
    arm(dict(record, phase="awaiting", connection=connection(), changed_at=None))
    try:
        set_for_good({"resource": resource, "key": key, "how": how}, before, missing)
    except BaseException as error:
        if getattr(error, "code", "") == "Winhost.NotValid":  # and nothing has been touched
            disarm()
        else:
            undo_unkept()
        remove(RECORD)
        raise
    save_record(dict(record, phase="awaiting", connection=connection(), changed_at=since_boot()))
    # The kernel tells in such steps when a process began: who comes back after this has begun later.
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))
    raise come_back(within)


def come_back(within: int) -> AgentFault:
    message = f"It stands, and is undone in {within} s unless the same is asked for through a new connection."
    return AgentFault("Winhost.ComeBack", "OperationStopped", message)


def keep(record: State, how: State) -> None:
    """Keep the change: allowed for a connection made after it, or on the machine itself if the user confirms it."""
    here = connection()
    new = here and here["id"] != (record["connection"] or {}).get("id")
    since = record["changed_at"] is not None and (here or {}).get("began", 0) >= record["changed_at"]
    if not (new and since) and not (not here and how.get("keep")):
        raise come_back(record["within"])
    remove(RECORD)
    disarm()


def undo_unkept() -> None:
    """Put back what was found before. Raises what that raises, and then it is tried again."""
    record = unkept()
    if record is None or record["phase"] != "awaiting":
        return
    set_for_good({**record, "how": {"undoing": True, "accept": record["accept"]}}, {}, record["before"])
    save_record(dict(record, phase="undone"))
    disarm()


def undo_by_timer() -> None:
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    undo_unkept()


def unkept() -> State | None:
    found: State | None = read_record(RECORD)
    return found


def is_of(record: State, resource: str, key: Key) -> bool:
    return bool(record["resource"] == resource and record["key"] == key)


def awaiting(resource: str, key: Key) -> State | None:
    record = once("unkept", unkept)
    return record if record and record["phase"] == "awaiting" and is_of(record, resource, key) else None


def as_kept(resource: str, key: Key, state: State) -> State:
    """The state that a change which nobody has kept yet may go back to."""
    record = awaiting(resource, key)
    return {**state, **record["before"]} if record else state


def save_record(record: State) -> None:
    put(RECORD, json.dumps(record) + "\n", 0o600)
    ONCE.clear()


def arm(record: State) -> None:
    program = globals().get("PROGRAM")
    if not isinstance(program, str):
        raise wrong_state("This agent was started in a way in which it cannot undo a change by itself.")
    put(UNDOER, re.sub(r"serve\(\)\n\Z", "", program) + f"\n{undo_by_timer.__name__}()\n", 0o600)
    put(f"{UNDO_UNIT}.service", UNDO_SERVICE.format(sys.executable, UNDOER))
    put(f"{UNDO_UNIT}.timer", UNDO_TIMER.format(record["within"]))
    save_record(record)
    must("systemctl", "daemon-reload")
    must("systemctl", "enable", "--quiet", "winhost-undo.timer")
    must("systemctl", "restart", "winhost-undo.timer")


def disarm() -> None:
    run("systemctl", "disable", "--now", "--quiet", "winhost-undo.timer")
    for path in (f"{UNDO_UNIT}.timer", f"{UNDO_UNIT}.service", UNDOER):
        remove(path)
    run("systemctl", "daemon-reload")


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def connection() -> State | None:
    """The sshd process of this very connection, and when it began; nothing at the machine itself."""
    process = os.getpid()
    while process > 1:
        name, _, rest = content(f"/proc/{process}/stat").decode("utf-8", "replace").rpartition(")")
        fields = rest.split()
        if name.partition("(")[2].startswith("sshd"):
            return {"id": f"{boot_id()} {process} {fields[19]}", "began": int(fields[19]) / os.sysconf("SC_CLK_TCK")}
        process = int(fields[1])
    return None
