# Part of the agent, what winhost made on this machine: remembered there, so that nothing else is ever taken away.
from __future__ import annotations

import hashlib
import json

from winhost.agent.linux_agent import KEPT, AgentFault, State
from winhost.agent.linux_files import content, put, remove, status


def made_file(kind: str, name: str) -> str:
    return "{}/made/{}-{}.json".format(KEPT, kind, hashlib.sha256(name.encode("utf-8")).hexdigest()[:32])


def remember(kind: str, name: str, what: State) -> None:
    put(made_file(kind, name), json.dumps({"name": name, **what}) + "\n", 0o600)


def remembered(kind: str, name: str) -> State | None:
    found: State | None = None
    if status(made_file(kind, name)) is not None:
        found = json.loads(content(made_file(kind, name)))
    return found


def forget(kind: str, name: str) -> None:
    remove(made_file(kind, name))


def not_ours(what: str) -> AgentFault:
    return AgentFault("Winhost.NotOurs", "PermissionDenied", f"{what} was not made by winhost; it stays.")
