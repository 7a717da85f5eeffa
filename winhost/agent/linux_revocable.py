# Part of the agent: changes that may end the connection. They are undone unless they are requested again.
from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from typing import Any

from winhost.agent.linux_agent import (
    ONCE,
    STATE_FOLDER,
    AgentFault,
    Key,
    State,
    find_resource,
    once,
    run,
    run_checked,
    systemd_runs,
    wrong_state,
)
from winhost.agent.linux_files import put, read_boot_id, read_file, remove
from winhost.agent.linux_records import read_record

LOCK = "/run/winhost.lock"
UNDO = f"{STATE_FOLDER}/undo"
RECORD, UNDO_PROGRAM = f"{UNDO}/record.json", f"{UNDO}/agent.py"
UNDO_UNIT = "/etc/systemd/system/winhost-undo"
UNDO_SERVICE = """\
# Written by winhost. Undoes a change that may have ended SSH access, unless winhost connects again.
[Unit]
Description=Undo a change of winhost that was not confirmed
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={} -I {}
Restart=on-failure
RestartSec=10
"""
# The timer is enabled, so that a restart delays it and does not end it.
UNDO_TIMER = """\
# Written by winhost.
[Unit]
Description=Time for winhost to confirm a change

[Timer]
OnActiveSec={}
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def equals_json(one: Any, other: Any) -> bool:
    """Compare as JSON, in which 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def apply_change(call: State, before: State, missing: State) -> None:
    change = find_resource(call["resource"]).set
    assert change is not None
    change(call["key"], missing, call.get("how") or {})


def apply_revocably(call: State, before: State, missing: State) -> None:
    """Apply a change that may end the connection. The first call always raises AgentFault; the same call through a new
    connection confirms the change.
    """
    resource, key, how = call["resource"], call["key"], call.get("how") or {}
    record = read_pending_change()
    if record and record["phase"] == "undone" and is_change_of(record, resource, key):
        remove(RECORD)
        if equals_json(record["desired"], missing):
            message = "Nobody came back within {} s of this change, so it was undone.".format(record["within"])
            raise AgentFault("Winhost.Undone", "OperationStopped", message)
    elif record and record["phase"] == "awaiting":
        if not is_change_of(record, resource, key):
            message = "Another change waits to be kept or undone: {}.".format(record["resource"])
            raise AgentFault("Winhost.Awaiting", "ResourceBusy", message)
        if equals_json(record["desired"], missing) and record["changed_at"] is not None:
            confirm(record, how)
            return
        undo_unconfirmed()  # also a change that was interrupted, which cannot be confirmed
    apply_with_timer(resource, key, {name: before[name] for name in missing}, missing, how)


def apply_with_timer(resource: str, key: Key, before: State, missing: State, how: State) -> None:
    if not systemd_runs():
        raise wrong_state("Without systemd nothing would undo this change if it cut SSH access.")
    within = max(5, int(float(how.get("within") or 300)))
    record = {"resource": resource, "key": key, "before": before, "desired": missing, "within": within}
    record["accept"] = list(how.get("accept", ()))
    start_undo_timer(dict(record, phase="awaiting", connection=ssh_connection(), changed_at=None))
    try:
        apply_change({"resource": resource, "key": key, "how": how}, before, missing)
    except BaseException as error:
        if getattr(error, "code", "") == "Winhost.NotValid":  # then nothing was changed
            stop_undo_timer()
        else:
            undo_unconfirmed()
        remove(RECORD)
        raise
    save_record(dict(record, phase="awaiting", connection=ssh_connection(), changed_at=seconds_since_boot()))
    # The kernel reports the start of a process in these ticks. A connection after this pause has a later start.
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))
    raise needs_confirmation(within)


def needs_confirmation(within: int) -> AgentFault:
    message = f"It stands, and is undone in {within} s unless the same is asked for through a new connection."
    return AgentFault("Winhost.ComeBack", "OperationStopped", message)


def confirm(record: State, how: State) -> None:
    """Confirm the change: allowed through a connection made after it, or on the machine itself if the user says so."""
    connection = ssh_connection()
    new = connection and connection["id"] != (record["connection"] or {}).get("id")
    since = record["changed_at"] is not None and (connection or {}).get("began", 0) >= record["changed_at"]
    if not (new and since) and not (not connection and how.get("keep")):
        raise needs_confirmation(record["within"])
    remove(RECORD)
    stop_undo_timer()


def undo_unconfirmed() -> None:
    """Restore the state before a pending change. If that raises an error, it is tried again later."""
    record = read_pending_change()
    if record is None or record["phase"] != "awaiting":
        return
    apply_change({**record, "how": {"undoing": True, "accept": record["accept"]}}, {}, record["before"])
    save_record(dict(record, phase="undone"))
    stop_undo_timer()


def undo_by_timer() -> None:
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    undo_unconfirmed()


def read_pending_change() -> State | None:
    found: State | None = read_record(RECORD)
    return found


def is_change_of(record: State, resource: str, key: Key) -> bool:
    return bool(record["resource"] == resource and record["key"] == key)


def find_pending_change(resource: str, key: Key) -> State | None:
    record = once("unkept", read_pending_change)
    return record if record and record["phase"] == "awaiting" and is_change_of(record, resource, key) else None


def confirmed_state(resource: str, key: Key, state: State) -> State:
    """Return the state without a pending change, which may still be undone."""
    record = find_pending_change(resource, key)
    return {**state, **record["before"]} if record else state


def save_record(record: State) -> None:
    put(RECORD, json.dumps(record) + "\n", 0o600)
    ONCE.clear()


def start_undo_timer(record: State) -> None:
    program = globals().get("PROGRAM")
    if not isinstance(program, str):
        raise wrong_state("This agent was started in a way in which it cannot undo a change by itself.")
    put(UNDO_PROGRAM, re.sub(r"serve\(\)\n\Z", "", program) + f"\n{undo_by_timer.__name__}()\n", 0o600)
    put(f"{UNDO_UNIT}.service", UNDO_SERVICE.format(sys.executable, UNDO_PROGRAM))
    put(f"{UNDO_UNIT}.timer", UNDO_TIMER.format(record["within"]))
    save_record(record)
    run_checked("systemctl", "daemon-reload")
    run_checked("systemctl", "enable", "--quiet", "winhost-undo.timer")
    run_checked("systemctl", "restart", "winhost-undo.timer")


def stop_undo_timer() -> None:
    run("systemctl", "disable", "--now", "--quiet", "winhost-undo.timer")
    for path in (f"{UNDO_UNIT}.timer", f"{UNDO_UNIT}.service", UNDO_PROGRAM):
        remove(path)
    run("systemctl", "daemon-reload")


def seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ssh_connection() -> State | None:
    """Return the sshd process of this connection, and its start; None on the machine itself."""
    process = os.getpid()
    while process > 1:
        name, _, rest = read_file(f"/proc/{process}/stat").decode("utf-8", "replace").rpartition(")")
        fields = rest.split()
        if name.partition("(")[2].startswith("sshd"):
            return {
                "id": f"{read_boot_id()} {process} {fields[19]}",
                "began": int(fields[19]) / os.sysconf("SC_CLK_TCK"),
            }
        process = int(fields[1])
    return None
