# Part of the agent, what winhost made on this machine: remembered there, so that nothing else is ever taken away.
from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from winhost.agent.linux_agent import KEPT, AgentFault, State
from winhost.agent.linux_files import content, put, remove, status


def record_path(kind: str, name: str) -> str:
    return f"{KEPT}/{kind}/{hashlib.sha256(name.encode('utf-8')).hexdigest()[:32]}.json"


def read_record(path: str) -> Any:
    """Read a record of winhost; None where the file does not exist."""
    return None if status(path) is None else json.loads(content(path))


def remember(kind: str, name: str, what: State) -> None:
    put(record_path(kind, name), json.dumps(what) + "\n", 0o600)


def remembered(kind: str, name: str) -> State | None:
    found: State | None = read_record(record_path(kind, name))
    return found


def forget(kind: str, name: str) -> None:
    remove(record_path(kind, name))


def records(kind: str) -> list[State]:
    return [json.loads(content(str(each))) for each in sorted(Path(KEPT, kind).glob("*.json"))]


def recorded(kind: str, part: str) -> list[str]:
    """This part of all records of a kind, in order."""
    return sorted(each[part] for each in records(kind))


def mark_of(path: str) -> list[int] | None:
    """A mark by which a file is recognized without reading it: hundreds of gigabytes, or a secret."""
    found = status(path)
    return None if found is None else [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def not_ours(what: str) -> AgentFault:
    return AgentFault("Winhost.NotOurs", "PermissionDenied", f"{what} was not made by winhost; it stays.")


def another_file(path: str) -> AgentFault:
    return AgentFault("Winhost.NotOurs", "ResourceExists", f"{path} is another file, which winhost did not write.")
