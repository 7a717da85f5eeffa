"""A machine with Windows and a Linux next to it, of which one runs at a time. The running system answers, and the last
answers of Windows are stored on this computer.

The Linux is recognized by the host key that was made for it, which Windows has recorded.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from pathlib import Path

from winhost.connect.agent import Agent, Connector, Received, State
from winhost.connect.logged import error_code
from winhost.connect.ssh import SshWire
from winhost.connect.ways_in import dual_boot_target
from winhost.connect.wire_errors import Drifted, NotAvailable, Unreachable, WireError
from winhost.core.answers import Id, Json, Key, Record, RemoteFault, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.core.steps import SetAnswer
from winhost.engine.boot import LINUX as LINUX_SYSTEM
from winhost.engine.boot import WINDOWS, LinuxFirmware, find_entry, query_linux_boot
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
    """The last answers of one host's Windows, in the state folder (facts have no secrets). Windows does not change
    while it does not run, except by changes of the Linux.
    """

    store: Store
    host: str

    @property
    def _path(self) -> Path:
        return self.store.remembered_windows_path(self.host)

    def answers(self) -> dict[str, Answer]:
        """Return the answers by resource; none for a host without a Linux next to Windows. Raises UsageError for an
        invalid file.
        """
        return dict(read_facts(self._path).resources) if self._path.is_file() else {}

    @property
    def read_at(self) -> str | None:
        """The time of these answers, as in facts. Raises as `answers` does."""
        return read_facts(self._path).read_at if self._path.is_file() else None

    def keep(self, facts: Facts) -> None:
        """Store the facts of Windows if a Linux is, or is being, installed next to it; else remove the file. Raises
        UsageError (NotPrivate), OSError.
        """
        if not is_dual_boot(facts):
            self._path.unlink(missing_ok=True)
            return
        private_folder(self._path.parent)
        resources = {name: answer for name, answer in facts.resources.items() if name in OF_WINDOWS}
        write_whole(self._path, [write_document(replace(facts, resources=resources))], mode=0o600)


def _query_boot(target: LinuxHost, program: str, **request: Json) -> LinuxFirmware:
    with closing(SshWire(target, program)) as wire:
        return query_linux_boot(wire, **request)


@dataclass(frozen=True)
class TwoSystems:
    """The connector to the running one of two systems. target: the host in fleet.yaml; program: the agent's program for
    the Linux; boot: the program of `winhost boot`.
    """

    windows: Connector
    target: Host
    memory: RememberedWindows
    program: str
    boot: str
    open_linux: Callable[[LinuxHost, str], Agent]
    query_boot: Callable[..., LinuxFirmware] = field(default=_query_boot)

    @property
    def host(self) -> str:
        return self.windows.host

    def open(self) -> Agent:
        """Open a session with the running system. Raises as the connector of Windows does, also if neither answers."""
        try:
            agent = self.windows.open()
        except Unreachable as silent:
            linux = self._open_linux(silent)
            if linux is None:
                raise
            return linux
        agent.on_facts_read = self.memory.keep
        return agent

    def _open_linux(self, silent: Unreachable) -> Agent | None:
        """Open a session with the Linux next to Windows; None if there is none, or if its installer answers."""
        answers = self.memory.answers()
        target = dual_boot_target(self.target, answers)
        if target is None:
            return None
        try:
            linux = self.open_linux(target, self.program)
            firmware = self.query_boot(target, self.boot, heartbeat=True)
        except WireError as error:
            log.info("%s: Windows: %s; Linux: %s", self.host, error_code(silent), error_code(error))
            return None
        log.info("%s: its Linux runs, and Windows said last what is told of it", self.host)
        return LinuxBesideWindows(
            self.host, linux, answers, firmware, lambda **asked: self.query_boot(target, self.boot, **asked)
        )


class LinuxBesideWindows(Agent):
    """The agent of the Linux while that runs. For resources of Windows it returns the stored answers."""

    def __init__(
        self,
        host: str,
        linux: Agent,
        windows: Mapping[str, Answer],
        firmware: LinuxFirmware,
        query: Callable[..., LinuxFirmware],
    ) -> None:
        super().__init__(linux.wire, linux.call_timeout, linux.fits, "linux")
        linux.on_wait = lambda text: self.on_wait(text)
        self._host = host
        self._windows = {**windows, **_firmware_answers(windows, firmware)}
        self._query_firmware = query

    @property
    def host(self) -> str:
        """The host's name, the same for both systems."""
        return self._host

    def read_with(
        self, resources: Sequence[str], ids: Sequence[Id], *, settled: bool = False
    ) -> tuple[dict[str, Answer], dict[Id, State]]:
        """Read the Linux, and add the stored answers of Windows."""
        answers, states = super().read_with(resources, ids, settled=settled)
        return {**self._windows, **answers}, states

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """Read a resource as `Agent` does. Resources of Windows have their stored state."""
        if resource in LINUX:
            return super().get(resource, key, settled=settled)
        state = self._remembered(resource, key)
        if isinstance(state, RemoteFault):
            raise self._windows_unavailable(f"get {resource}")
        return state

    def get_each(self, ids: Sequence[Id]) -> list[State]:
        asked = [id_ for id_ in ids if id_[0] in LINUX]
        found = dict(zip(asked, super().get_each(asked), strict=True)) if asked else {}
        return [found[id_] if id_ in found else self._remembered(id_[0], dict(id_[1])) for id_ in ids]

    def set(
        self, resource: str, key: Key, desired: Mapping[str, Json], expect: Mapping[str, Json], how: Mapping[str, Json]
    ) -> SetAnswer:
        """Change a resource as `Agent` does. Of Windows only the running system can be changed. Raises NotAvailable."""
        if resource in LINUX:
            return super().set(resource, key, desired, expect, how)
        if resource != RUNNING:
            raise self._windows_unavailable(f"set {resource}")
        before = self._remembered(RUNNING, {})
        assert isinstance(before, Mapping)
        drift = {name: (value, before.get(name)) for name, value in expect.items() if before.get(name) != value}
        if drift:
            raise Drifted(self.host, f"set {resource}", drift)
        if desired.get("system") != WINDOWS:
            return SetAnswer(before, before)
        firmware = self._query_firmware(to=WINDOWS)
        find_entry(self.host, WINDOWS, firmware.entries)
        self._windows |= _firmware_answers(self._windows, firmware)
        after = self._remembered(RUNNING, {})
        assert isinstance(after, Mapping)
        return SetAnswer(before, after, restart=True)

    def received(self, resource: str, key: Key, expect: Mapping[str, Json]) -> Received:
        """Count received bytes as `Agent` does. Raises NotAvailable for resources of Windows."""
        if resource not in LINUX:
            raise self._windows_unavailable(f"send {resource}")
        return super().received(resource, key, expect)

    def restart(self) -> None:
        """Restart into the system that was requested before, else into this Linux again. Without such a request the
        firmware would boot Windows, which is first in its order.
        """
        if self._query_firmware().next is None:
            self._query_firmware(to=LINUX_SYSTEM)
        super().restart()

    def _remembered(self, resource: str, key: Key) -> State:
        answer = self._windows.get(resource, ())
        if isinstance(answer, Unknown):
            return answer.unknown
        if isinstance(answer, Unavailable):
            return None
        absent = RULES[resource].absent if resource in RULES else None
        return next((each.state for each in answer if dict(each.key) == dict(key)), absent)

    def _windows_unavailable(self, doing: str) -> NotAvailable:
        """Make the error for a resource of Windows, which can be used only while Windows runs."""
        return NotAvailable(self.host, doing, RUNNING)


def runs_linux(facts: Facts) -> bool:
    """Tell whether the Linux next to Windows runs."""
    found = facts.resources.get(RUNNING)
    return isinstance(found, tuple) and any(each.state.get("system") == LINUX_SYSTEM for each in found)


def _firmware_answers(windows: Mapping[str, Answer], firmware: LinuxFirmware) -> dict[str, Answer]:
    """Return the firmware's state, which the Linux has read, in the form of Windows' answers."""
    entries = [vars(each) for each in firmware.entries]
    boot: dict[str, Json] = {
        "kind": "uefi",
        "current": firmware.current,
        "next": firmware.next,
        "order": list(firmware.order),
        "entries": entries,
    }
    running_answer = windows.get(RUNNING)
    state = (
        dict(running_answer[0].state) if isinstance(running_answer, tuple) and running_answer else {"installer": None}
    )
    started = (each.path for each in firmware.entries if each.entry == firmware.current)
    linux = next(started, None) or firmware.current  # this Linux runs, by whatever entry
    running = {**state, "system": LINUX_SYSTEM, "linux": linux}
    return {_FIRMWARE: (Record(boot),), RUNNING: (Record(running),)}
