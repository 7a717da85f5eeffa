"""`winhost up` and `winhost down` as they are typed, on a simulated Windows without wires between."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.up_desk import IMAGE, hub_of_all
from tests.engine.two_machines import LinuxWire
from tests.engine.world import QUICK
from tests.engine.wsl2_world import Wsl2World
from winhost.cli import live_hosts, run
from winhost.cli.change import running
from winhost.connect.agent import Agent
from winhost.connect.own_key import public_key_line
from winhost.connect.ssh_logon import key_refused_error, no_sshd_error
from winhost.engine import keys
from winhost.engine.keys import with_ssh_key
from winhost.engine.run_context import Outcome
from winhost.engine.store import Store
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.fleet import Host, LinuxHost, Transport
from winhost.resources.shape import check_records

CONSENTS = "restart,network,vm-stop,headless"
FLEET = "schema: winhost.fleet/1\nhosts:\n  {host}:\n    address: 192.0.2.5\n"


@dataclass
class UpWorld(Wsl2World):
    """place: where winhost finds its state while a command runs; between them each world keeps its own elsewhere,
    because journals name the folder of their plan; words: options in place of the internet.
    """

    place: Path = Path()
    words: tuple[str, ...] = ()

    @property
    def ssh_host(self) -> Host:
        return with_ssh_key(Host(name=self.host, address="192.0.2.5", transport=Transport(port=5986)), self.store)

    @property
    def connector(self) -> Any:
        self.ssh = self.ssh_host.ssh
        return super().connector

    def _enter(self, target: LinuxHost, program: str) -> Agent:
        listening = self.linux.find_sshd()
        if listening is None:
            raise no_sshd_error(target.name, "Connection refused")
        assert target.key
        if not any(each.startswith(public_key_line(target.name, target.key, None)) for each in listening.authorized):
            raise key_refused_error(target.name, "user root")
        return Agent(LinuxWire(self, target.name, listening), 60, check_records, "linux")

    def typed(self, *words: str) -> int:
        """The exit code of a command."""
        kept, self.store.folder = self.store.folder, self.place
        if kept.exists():
            kept.rename(self.place)
        _AT.append(self)
        try:
            return run([*words, "--yes", "--accept", CONSENTS, "--fleet", str(self.place.with_name("fleet.yaml"))])
        finally:
            _AT.pop()
            self.store.folder = kept
            if self.place.exists():
                self.place.rename(kept)

    def apply(self, plan: object = None, accepted: object = None) -> Outcome:
        code = self.typed("up", "--on", self.host, *self.words)
        assert code == 0, code
        return Outcome("", self.host, "applied", 0)

    def resume(self, accepted: object = None) -> Outcome:
        return self.apply()

    def rollback(self, accepted: object = None) -> Outcome:
        code = self.typed("down", self.host)
        assert code == 0, code
        return Outcome("", self.host, "rolled back", 0)

    def plan(self, vm: str | None = None, **request: Any) -> Any:
        return None  # up makes it

    @property
    def begun(self) -> bool:
        """Whoever was killed before the first line of a journal has left files, too."""
        return self.store.folder.exists()

    def left(self) -> list[str]:
        """What lies in the private state and belongs to no run."""
        journals = [path.read_text("utf-8") for path in (self.store.folder / "runs").glob("*.jsonl")]
        folders = self.store.folder / "up"
        unused = [path for path in folders.glob("*") if not any(path.name in text for text in journals)]
        pending, notes = folders.glob("*/keys/*"), self.store.folder.glob("locks/*.json")
        return sorted(str(path.relative_to(self.store.folder)) for path in (*unused, *pending, *notes))


_AT: list[UpWorld] = []  # whose command runs


def nothing_is_left(here: UpWorld) -> None:
    assert here.left() == []


@contextmanager
def up_world(folder: Path, host: str = "win11-pro-1gpu") -> Iterator[UpWorld]:
    """Keys are the same ones each time, and the engine's last completion is not asked for."""
    folder.mkdir(mode=0o700, parents=True)
    facts, section = expand(find(host))
    (folder / "fleet.yaml").write_text(FLEET.format(host=facts.host))
    contexts = running.run_context
    private = keys._new_private_key()

    def context(*words: Any) -> Any:
        return replace(
            contexts(*words), journal_hook=_AT[-1].around, patience=QUICK, final_checks=lambda record, session: ()
        )

    with pytest.MonkeyPatch.context() as patch, hub_of_all() as hub:
        patch.setenv("WINHOST_STATE", str(folder / "state"))
        patch.setattr(keys, "_new_private_key", lambda: private)
        patch.setattr("secrets.token_urlsafe", lambda size: "A" * 43)
        for module in (live_hosts, running):
            patch.setattr(module, "connector_for", lambda host: _AT[-1].connector)
        patch.setattr(running, "run_context", context)
        yield UpWorld(
            Machine(facts, section, LabClock(0)),
            Store(folder / "kept"),
            facts.host,
            place=folder / "state",
            words=("--hub", hub.url, *IMAGE),
        )
