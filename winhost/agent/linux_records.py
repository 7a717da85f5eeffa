# Part of the agent: records of what winhost created on this machine, so that it never removes anything else.
from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from winhost.agent.linux_agent import STATE_FOLDER, AgentFault, State
from winhost.agent.linux_files import file_status, put, read_file, remove


def record_path(kind: str, name: str) -> str:
    return f"{STATE_FOLDER}/{kind}/{hashlib.sha256(name.encode('utf-8')).hexdigest()[:32]}.json"


def read_record(path: str) -> Any:
    """Read a record of winhost; None if the file does not exist."""
    return None if file_status(path) is None else json.loads(read_file(path))


def write_record(kind: str, name: str, what: State) -> None:
    put(record_path(kind, name), json.dumps(what) + "\n", 0o600)


def find_record(kind: str, name: str) -> State | None:
    found: State | None = read_record(record_path(kind, name))
    return found


def remove_record(kind: str, name: str) -> None:
    remove(record_path(kind, name))


def read_records(kind: str) -> list[State]:
    return [json.loads(read_file(str(each))) for each in sorted(Path(STATE_FOLDER, kind).glob("*.json"))]


def recorded_values(kind: str, part: str) -> list[str]:
    """Return one value of each record of a kind, sorted."""
    return sorted(each[part] for each in read_records(kind))


def file_mark(path: str) -> list[int] | None:
    """Return attributes by which a file is recognized without reading it: it may be a secret, or hundreds of
    gigabytes.
    """
    found = file_status(path)
    return None if found is None else [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def not_owned_error(what: str) -> AgentFault:
    return AgentFault("Winhost.NotOurs", "PermissionDenied", f"{what} was not made by winhost; it stays.")


def foreign_file_error(path: str) -> AgentFault:
    return AgentFault("Winhost.NotOurs", "ResourceExists", f"{path} is another file, which winhost did not write.")
