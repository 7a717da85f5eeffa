"""Tries winhost on a Windows that is thrown away afterwards, as a runner of a workflow is.

    python .github/windows/try_windows.py fleet.yaml

On every host of the fleet file it reads each resource, all of it and one instance by its key, then makes changes that
harm nobody and undoes them as a rollback would. Exit 1 where an answer breaks the contract of docs/resources.md, or
something was not changed or not put back. Made ready by .github/windows/open_winrm.ps1.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from winhost.connect.agent import NOT_TEXT, Agent
from winhost.connect.windows import WindowsConnector
from winhost.connect.wire_errors import BAD_ANSWER
from winhost.core.answers import Json, Key, Unavailable, Unknown
from winhost.core.undo import Keep, find_undo
from winhost.model.errors import WinhostError
from winhost.model.facts import Answer
from winhost.model.fleet import load_fleet
from winhost.resources.registry import RULES, WINDOWS
from winhost.resources.shape import check_records
from winhost.resources.windows.parts import WindowsScripts

ACCOUNT = "winhost-try"
CONTENT = b"winhost was here\n"
HOW: Mapping[str, Json] = {"accept": ["network"], "within": 120}


@dataclass
class Trial:
    """What was seen on one host; each failure as one line."""

    agent: Agent
    failures: list[str] = field(default_factory=list)

    def say(self, ok: bool, text: str) -> None:
        print(f"{self.agent.host} {'ok    ' if ok else 'FAILED'} {text}", flush=True)
        if not ok:
            self.failures.append(text)

    def read(self) -> None:
        for resource, answer in self.agent.read(list(WINDOWS)).items():
            broken = isinstance(answer, Unknown) and answer.unknown.code in (BAD_ANSWER, NOT_TEXT)
            self.say(not broken, f"{resource}: {summary(answer)}")
            if isinstance(answer, tuple) and answer:
                self.read_one(resource, answer[0].key)

    def read_one(self, resource: str, key: Key) -> None:
        try:
            state = self.agent.get(resource, key)
        except WinhostError as error:
            self.say(False, f"{resource} by its key: {error.what}")
        else:
            self.say(state is not None, f"{resource} by its key {dict(key)}")

    def change(self, resource: str, key: Key, desired: Mapping[str, Json], undo: ExitStack, content: bytes) -> None:
        try:
            before = self.settable(resource, key)
            if content:
                self.agent.send(resource, key, 0, content)
            undo.callback(self.put_back, resource, key, before)
            now = self.settable(resource, key)
            self.agent.set(resource, key, desired, {name: now[name] for name in desired}, HOW)
            now = self.settable(resource, key)
            self.say({name: now[name] for name in desired} == desired, f"{resource}: set {dict(desired)}")
        except WinhostError as error:
            self.say(False, f"{resource}: set {dict(desired)}: {error.what}")

    def put_back(self, resource: str, key: Key, before: Mapping[str, Json]) -> None:
        try:
            now = self.agent.get(resource, key) or {}
            undo = find_undo(RULES[resource], before, {name: now[name] for name in before}, now)
            if not isinstance(undo, Keep):
                self.agent.set(resource, key, undo, {name: now[name] for name in undo}, HOW)
            self.say(self.settable(resource, key) == before, f"{resource}: put back {dict(before)}")
        except WinhostError as error:
            self.say(False, f"{resource}: put back {dict(before)}: {error.what}")

    def settable(self, resource: str, key: Key) -> dict[str, Json]:
        state = self.agent.get(resource, key) or {}
        return {name: state[name] for name in WINDOWS[resource].sets}


def summary(answer: Answer) -> str:
    if isinstance(answer, Unknown):
        return f"could not be read: {answer.unknown.code} {answer.unknown.message}"
    if isinstance(answer, Unavailable):
        return f"cannot be there before {answer.unavailable}"
    return f"{len(answer)} read"


def changes(agent: Agent) -> Iterator[tuple[str, Key, dict[str, Json], bytes]]:
    """Each change: resource, key, desired, and the content of a file that is sent for it."""
    file = {"sha256": hashlib.sha256(CONTENT).hexdigest(), "name": "try.txt", "source": "./try.txt"}
    yield "LocalAccount", {"account": ACCOUNT}, {"there": True}, b""
    yield "AccountRight", {"account": ACCOUNT, "right": "SeBatchLogonRight"}, {"granted": True}, b""
    yield "StagedFile", file, {"present": True}, CONTENT
    forward: dict[str, Json] = {"target": "127.0.0.1", "connect_port": 48022, "allowed": ["127.0.0.1/32"]}
    yield "PortForward", {"port": "48021"}, forward, b""
    plans = agent.read(["PowerPlan"])["PowerPlan"]
    for plan in plans if isinstance(plans, tuple) else ():
        if plan.state["active"] is True:
            yield "PowerPlan", plan.key, {"standby": 3600 if plan.state["standby"] != 3600 else 7200}, b""


def main(fleet_file: str) -> int:
    failed = 0
    for host in load_fleet(Path(fleet_file)).hosts:
        with closing(WindowsConnector(host, WindowsScripts(), check_records).open()) as agent:
            trial = Trial(agent)
            trial.read()
            with ExitStack() as undo:
                for resource, key, desired, content in changes(agent):
                    trial.change(resource, key, desired, undo, content)
            failed += len(trial.failures)
    print(f"{failed} failures")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
