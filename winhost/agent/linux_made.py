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
    """What winhost keeps in this file; None where there is none."""
    return None if status(path) is None else json.loads(content(path))


def recorded(kind: str, part: str) -> list[str]:
    """This part of all records of a kind, in order."""
    return sorted(json.loads(content(str(each)))[part] for each in Path(KEPT, kind).glob("*"))


def mark_of(path: str) -> list[int] | None:
    """A mark by which a file is recognized without reading hundreds of gigabytes."""
    found = status(path)
    return None if found is None else [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def made_file(kind: str, name: str) -> str:
    return "{}/made/{}-{}.json".format(KEPT, kind, hashlib.sha256(name.encode("utf-8")).hexdigest()[:32])


def remember(kind: str, name: str, what: State) -> None:
    put(made_file(kind, name), json.dumps({"name": name, **what}) + "\n", 0o600)


def remembered(kind: str, name: str) -> State | None:
    found: State | None = read_record(made_file(kind, name))
    return found


def forget(kind: str, name: str) -> None:
    remove(made_file(kind, name))


def not_ours(what: str) -> AgentFault:
    return AgentFault("Winhost.NotOurs", "PermissionDenied", f"{what} was not made by winhost; it stays.")
