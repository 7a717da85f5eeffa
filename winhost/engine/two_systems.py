"""A machine on which Windows and a Linux take turns: whichever runs answers, and what Windows said last is remembered.

The Linux is known by the host key that was made for it, of which Windows keeps a record.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from pathlib import Path

from winhost.connect.agent import Agent, Connector, Received, State
from winhost.connect.logged import failure
from winhost.connect.ssh import SshWire
from winhost.connect.ways_in import target_beside
from winhost.connect.wire_errors import Drifted, NotAvailable, Unreachable, WireError
from winhost.core.answers import Id, Json, Key, Record, RemoteFault, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.core.steps import SetAnswer
from winhost.engine.boot import LINUX as LINUX_SYSTEM
from winhost.engine.boot import WINDOWS, LinuxFirmware, entry_of, on_linux
from winhost.engine.store import Store, private_folder
from winhost.model.documents import write_document
from winhost.model.facts import Answer, Facts
from winhost.model.files import write_whole
from winhost.model.fleet import Host, LinuxHost
from winhost.resources.factsfile import read_facts
from winhost.resources.registry import LINUX, RULES, is_dual_boot
from winhost.resources.registry import WINDOWS as OF_WINDOWS
from winhost.resources.shared import RUNNING
from winhost.resources.windows.boot_entries import FirmwareBoot

log = logging.getLogger(__name__)

_FIRMWARE = FirmwareBoot.resource_type.name


@dataclass(frozen=True)
class RememberedWindows:
    """The last answers of one host's Windows, in the folder of runs: facts hold no secrets. Windows cannot change while
    it does not run, except by what the Linux changes of it.
    """

    store: Store
    host: str

    @property
    def _path(self) -> Path:
        return self.store.remembered(self.host)

    def answers(self) -> dict[str, Answer]:
        """The answers by resource; none of a host without a Linux beside Windows. Raises UsageError for a file that is
        none.
        """
        return dict(read_facts(self._path).resources) if self._path.is_file() else {}

    @property
    def read_at(self) -> str | None:
        """When Windows said so, as facts have it. Raises as `answers`."""
        return read_facts(self._path).read_at if self._path.is_file() else None

    def keep(self, facts: Facts) -> None:
        """Keep the facts of Windows where a Linux was or is being installed beside it; else remove them. Raises
        UsageError (NotPrivate), OSError.
        """
        if not is_dual_boot(facts):
            self._path.unlink(missing_ok=True)
            return
        private_folder(self._path.parent)
        resources = {name: answer for name, answer in facts.resources.items() if name in OF_WINDOWS}
        write_whole(self._path, [write_document(replace(facts, resources=resources))], mode=0o600)


def _told(target: LinuxHost, program: str, **request: Json) -> LinuxFirmware:
    with closing(SshWire(target, program)) as wire:
        return on_linux(wire, **request)


@dataclass(frozen=True)
class TwoSystems:
    """The way to whichever system runs. program: the agent's text for the Linux; boot: that of `winhost boot`."""

    windows: Connector
    target: Host
    memory: RememberedWindows
    program: str
    boot: str
    open_linux: Callable[[LinuxHost, str], Agent]
    tell: Callable[..., LinuxFirmware] = field(default=_told)

    @property
    def host(self) -> str:
        return self.windows.host

    def open(self) -> Agent:
        """Raises as the way to Windows does, also where neither answers."""
        try:
            agent = self.windows.open()
        except Unreachable as silent:
            linux = self._beside(silent)
            if linux is None:
                raise
            return linux
        agent.keep = self.memory.keep
        return agent

    def _beside(self, silent: Unreachable) -> Agent | None:
        """The agent of the Linux beside Windows; None where there is none, or its installer answers there."""
        answers = self.memory.answers()
        target = target_beside(self.target, answers)
        if target is None:
            return None
        try:
            linux = self.open_linux(target, self.program)
            firmware = self.tell(target, self.boot, heartbeat=True)
        except WireError as error:
            log.info("%s: Windows: %s; Linux: %s", self.host, failure(silent), failure(error))
            return None
        log.info("%s: its Linux runs, and Windows said last what is told of it", self.host)
        return LinuxBesideWindows(
            self.host, linux, answers, firmware, lambda **asked: self.tell(target, self.boot, **asked)
        )


class LinuxBesideWindows(Agent):
    """The Linux, while it runs. What Windows said last is told for Windows, which nobody can change meanwhile."""

    def __init__(
        self,
        host: str,
        linux: Agent,
        windows: Mapping[str, Answer],
        firmware: LinuxFirmware,
        ask: Callable[..., LinuxFirmware],
    ) -> None:
        super().__init__(linux.wire, linux.call_timeout, linux.fits, "linux")
        linux.hear = lambda text: self.hear(text)
        self._host = host
        self._windows = {**windows, **_of_firmware(windows, firmware)}
        self._ask = ask

    @property
    def host(self) -> str:
        """The machine, whichever system runs."""
        return self._host

    def read_with(
        self, resources: Sequence[str], ids: Sequence[Id], *, settled: bool = False
    ) -> tuple[dict[str, Answer], dict[Id, State]]:
        """Read both: the answers of Windows are the remembered ones."""
        answers, states = super().read_with(resources, ids, settled=settled)
        return {**self._windows, **answers}, states

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """Read a resource as `Agent` does; resources of Windows have their remembered state."""
        if resource in LINUX:
            return super().get(resource, key, settled=settled)
        state = self._remembered(resource, key)
        if isinstance(state, RemoteFault):
            raise self._not_there(f"get {resource}")
        return state

    def each(self, ids: Sequence[Id]) -> list[State]:
        asked = [id_ for id_ in ids if id_[0] in LINUX]
        found = dict(zip(asked, super().each(asked), strict=True)) if asked else {}
        return [found[id_] if id_ in found else self._remembered(id_[0], dict(id_[1])) for id_ in ids]

    def set(
        self, resource: str, key: Key, desired: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """Change a resource as `Agent` does; of Windows only the running system. Raises NotAvailable for others."""
        if resource in LINUX:
            return super().set(resource, key, desired, expect, how)
        if resource != RUNNING:
            raise self._not_there(f"set {resource}")
        before = self._remembered(RUNNING, {})
        assert isinstance(before, Mapping)
        drift = {name: (value, before.get(name)) for name, value in expect.items() if before.get(name) != value}
        if drift:
            raise Drifted(self.host, f"set {resource}", drift)
        if desired.get("system") != WINDOWS:
            return SetAnswer(before, before)
        found = self._ask(to=WINDOWS)
        entry_of(self.host, WINDOWS, found.entries)
        self._windows |= _of_firmware(self._windows, found)
        after = self._remembered(RUNNING, {})
        assert isinstance(after, Mapping)
        return SetAnswer(before, after, restart=True)

    def received(self, resource: str, key: Key, expect: Mapping[str, Json]) -> Received:
        """Count received bytes as `Agent` does. Raises NotAvailable for resources of Windows."""
        if resource not in LINUX:
            raise self._not_there(f"send {resource}")
        return super().received(resource, key, expect)

    def restart(self) -> None:
        """Into what was asked for before, else into this Linux again: by its order the firmware starts Windows."""
        if self._ask().next is None:
            self._ask(to=LINUX_SYSTEM)
        super().restart()

    def _remembered(self, resource: str, key: Key) -> State:
        answer = self._windows.get(resource, ())
        if isinstance(answer, Unknown):
            return answer.unknown
        if isinstance(answer, Unavailable):
            return None
        absent = RULES[resource].absent if resource in RULES else None
        return next((each.state for each in answer if dict(each.key) == dict(key)), absent)

    def _not_there(self, doing: str) -> NotAvailable:
        """Windows can be asked, and changed, only while it runs."""
        return NotAvailable(self.host, doing, RUNNING)


def runs_linux(facts: Facts) -> bool:
    """Tell whether the Linux runs, of two systems that take turns."""
    found = facts.resources.get(RUNNING)
    return isinstance(found, tuple) and any(each.state.get("system") == LINUX_SYSTEM for each in found)


def _of_firmware(windows: Mapping[str, Answer], firmware: LinuxFirmware) -> dict[str, Answer]:
    """The firmware as the Linux reads it, in the form that Windows would answer."""
    entries = [vars(each) for each in firmware.entries]
    boot: dict[str, Json] = {
        "kind": "uefi",
        "current": firmware.current,
        "next": firmware.next,
        "order": list(firmware.order),
        "entries": entries,
    }
    found = windows.get(RUNNING)
    state = dict(found[0].state) if isinstance(found, tuple) and found else {"installer": None}
    started = (each.path for each in firmware.entries if each.entry == firmware.current)
    linux = next(started, None) or firmware.current  # it runs, whatever started it
    running = {**state, "system": LINUX_SYSTEM, "linux": linux}
    return {_FIRMWARE: (Record(boot),), RUNNING: (Record(running),)}
