"""One way to two machines: each resource goes to the one that has it, and Windows tells where the other is."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.connect.served import QUICK
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.cli.live_hosts import connector_for
from winhost.connect.agent import Agent
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.connect.wire_errors import (
    AuthenticationFailed,
    NotAvailable,
    RemoteError,
    SessionDropped,
    TimedOut,
    Unreachable,
    WireError,
)
from winhost.core.answers import Json, Key, Record, RemoteFault, Unavailable, Unknown
from winhost.core.steps import Step
from winhost.engine.detect import read_facts
from winhost.engine.host_session import HostSession
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.hostfile import find
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.physics.wsl_exe import Distro
from winhost.lab.running_lab import Lab
from winhost.model.errors import WinhostError
from winhost.model.facts import Answer
from winhost.model.fleet import Host, LinuxHost, Ssh, Transport, load_fleet
from winhost.model.secrets import SecretRef
from winhost.resources.registry import LINUX

HOST_KEY = "ssh-ed25519 AAAA"
LISTENS: dict[str, Json] = {
    "user": "root",
    "port": 22,
    "listen": "192.0.2.7",
    "address": None,
    "host_key": HOST_KEY,
    "authorized": ["ssh-ed25519 BBBB controller"],
    "active": True,
}
SSH = Ssh(key=SecretRef("env", "NOT_READ"))
RESOURCES = ("LinuxSystem", "LinuxFile")


def way_in(name: str = "ubuntu", **changes: Json) -> Record:
    return Record({**LISTENS, **changes}, {"account": "winhost", "distro": name})


def forward(port: int, target: str, connect_port: int) -> Record:
    return Record({"target": target, "connect_port": connect_port, "allowed": None}, {"port": str(port)})


class NoWire:
    host = "gpu-01"

    def invoke(self, request: str, within: float) -> str:
        raise AssertionError(request)

    def close(self) -> None:
        pass


class Told(Agent):
    """Answers what it is given, and remembers what it was asked. `fails`: with what, first to last."""

    def __init__(self, answers: Mapping[str, Answer] | None = None, fails: Sequence[WinhostError] = ()) -> None:
        super().__init__(NoWire(), 7)
        self.answers = dict(answers or {})
        self.fails = list(fails)
        self.asked: list[Any] = []
        self.closed = False

    def read(self, resources: Sequence[str], *, settled: bool = False) -> dict[str, Answer]:
        self._meet(("read", tuple(resources), settled))
        return {resource: self.answers.get(resource, ()) for resource in resources}

    def get(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        self._meet(("get", resource, settled))
        return {"from": id(self)}

    def set(self, resource: str, key: Key, desired: Any, expect: Any, how: Any) -> Any:
        self._meet(("set", resource))
        return None

    def close(self) -> None:
        self.closed = True

    def _meet(self, asked: Any) -> None:
        self.asked.append(asked)
        if self.fails:
            raise self.fails.pop(0)


@dataclass
class Windows:
    agent: Told
    host: str = "gpu-01"

    def open(self) -> Agent:
        return self.agent


@dataclass
class Both:
    """A host with Windows and, in their order, what is found behind its ways in."""

    windows: Told
    linuxes: list[Told | WireError] = field(default_factory=lambda: [Told()])
    ssh: Ssh | None = SSH
    opened: list[LinuxHost] = field(default_factory=list)

    def open(self) -> Agent:
        target = Host(
            name="gpu-01", address="gpu-01.example", transport=Transport(port=5986, connect_timeout=3), ssh=self.ssh
        )
        return WindowsWithLinux(Windows(self.windows), target, RESOURCES, "the program", self._enter).open()

    def _enter(self, target: LinuxHost, program: str) -> Agent:
        assert program == "the program"
        self.opened.append(target)
        found = self.linuxes[len(self.opened) - 1]
        if isinstance(found, WireError):
            raise found
        return found


def both(*ways_in: Record, forwards: tuple[Record, ...] = (), **how: Any) -> Both:
    return Both(Told({"WslAccess": ways_in, "PortForward": forwards}), **how)


# ---- which machine


def test_a_resource_goes_to_the_machine_that_has_it_and_linux_is_entered_when_it_is_needed() -> None:
    here = both(way_in())
    agent = here.open()
    agent.get("Boot", {})
    agent.set("VmPower", {}, {}, {}, {})
    assert here.opened == []
    agent.get("LinuxFile", {}, settled=True)
    agent.set("LinuxFile", {}, {}, {}, {})
    assert len(here.opened) == 1
    (inside,) = here.linuxes
    assert isinstance(inside, Told)
    assert inside.asked == [("get", "LinuxFile", True), ("set", "LinuxFile")]
    assert [asked[:2] for asked in here.windows.asked] == [
        ("get", "Boot"),
        ("set", "VmPower"),
        ("read", ("WslAccess", "PortForward", "VmSeed", "VmPower", "UbuntuInstaller")),
    ]


def test_to_leave_is_to_leave_both() -> None:
    here = both(way_in())
    agent = here.open()
    agent.get("LinuxFile", {})
    agent.close()
    assert here.windows.closed
    assert isinstance(here.linuxes[0], Told)
    assert here.linuxes[0].closed


# ---- where Linux is

PLACES: dict[str, tuple[Record, tuple[Record, ...], Ssh, tuple[str, int]]] = {
    "an address of its own": (way_in(), (), SSH, ("192.0.2.7", 22)),
    "everywhere, where it shares the host's addresses": (
        way_in(listen="0.0.0.0", port=2222),
        (),
        SSH,
        ("gpu-01.example", 2222),
    ),
    "everywhere, at the address that a bridge gave it": (
        way_in(listen="0.0.0.0", address="192.0.2.77"),
        (),
        SSH,
        ("192.0.2.77", 22),
    ),
    "behind a port of Windows": (
        way_in(listen="0.0.0.0"),
        (forward(8000, "172.28.1.2", 8000), forward(2200, "172.28.1.2", 22)),
        SSH,
        ("gpu-01.example", 2200),
    ),
    "behind a port of Windows, at the address of now": (
        way_in(listen="172.28.1.2"),
        (forward(2200, "172.28.1.2", 22),),
        SSH,
        ("gpu-01.example", 2200),
    ),
    "a port of Windows that leads to somebody else": (
        way_in(listen="192.0.2.7"),
        (forward(2200, "172.28.1.2", 22),),
        SSH,
        ("192.0.2.7", 22),
    ),
    "IPv6": (way_in(listen="2001:db8::7"), (), SSH, ("2001:db8::7", 22)),
    "where the fleet file says": (
        way_in(),
        (),
        SSH.model_copy(update={"address": "198.51.100.1", "port": 4022}),
        ("198.51.100.1", 4022),
    ),
}


@pytest.mark.parametrize(("record", "forwards", "ssh", "place"), PLACES.values(), ids=PLACES.keys())
def test_linux_is_sought_where_windows_says(
    record: Record, forwards: tuple[Record, ...], ssh: Ssh, place: tuple[str, int]
) -> None:
    here = both(record, forwards=forwards, ssh=ssh)
    here.open().get("LinuxSystem", {})
    (target,) = here.opened
    assert (target.address, target.port) == place
    assert (target.name, target.user, target.host_key) == ("gpu-01/ubuntu", "root", HOST_KEY)
    assert (target.key, target.connect_timeout) == (ssh.key, 3)


# ---- nobody is let in

CLOSED = {
    "there is none": (),
    "it does not listen": (way_in(active=False),),
    "nobody could tell what it will show": (way_in(host_key=None),),
}


@pytest.mark.parametrize("ways_in", CLOSED.values(), ids=CLOSED.keys())
def test_where_nobody_is_let_in_linux_is_not_read_and_not_available(ways_in: tuple[Record, ...]) -> None:
    here = both(*ways_in)
    agent = here.open()
    assert set(agent.read(("Session", "WslAccess"))) == {"Session", "WslAccess"}
    for ask in (lambda: agent.get("LinuxFile", {}), lambda: agent.set("LinuxFile", {}, {}, {}, {})):
        with pytest.raises(NotAvailable) as caught:
            ask()
        assert caught.value.needs == "WslAccess"
    assert here.opened == []


@pytest.mark.parametrize("answer", [Unavailable("WslDistro"), Unknown(RemoteFault("PermissionDenied"))])
def test_where_windows_cannot_tell_there_is_no_linux_either(answer: Answer) -> None:
    here = Both(Told({"WslAccess": answer}))
    assert set(here.open().read(("WslAccess",))) == {"WslAccess"}


UNANSWERED: dict[str, tuple[Both, str, str]] = {
    "no key": (both(way_in(), ssh=None), "Winhost.NoLinuxKey", "hosts.gpu-01.ssh.key"),
    "two of them": (both(way_in(), way_in("debian")), "Winhost.SeveralLinuxes", "winhost/debian"),
    "not there": (both(way_in(), linuxes=[Unreachable("gpu-01/ubuntu", "refused")]), "Winhost.Unreachable", "refused"),
    "another host key": (
        both(way_in(), linuxes=[HostKeyRefused("gpu-01/ubuntu", "SHA256:x")]),
        "Winhost.HostKeyRefused",
        "SHA256:x",
    ),
    "it answers too late": (both(way_in(), linuxes=[Told(fails=[TimedOut("x", "late")])]), "Winhost.TimedOut", "late"),
    "it answers nonsense": (
        both(way_in(), linuxes=[Told(fails=[RemoteError("x", RemoteFault("InvalidResult"), "read")])]),
        "Winhost.RemoteError",
        "InvalidResult",
    ),
}


@pytest.mark.parametrize(("here", "code", "says"), UNANSWERED.values(), ids=UNANSWERED.keys())
def test_a_linux_that_cannot_be_asked_is_unknown_with_the_reason(here: Both, code: str, says: str) -> None:
    answers = here.open().read(("WslAccess",))
    for resource in RESOURCES:
        answer = answers[resource]
        assert isinstance(answer, Unknown)
        assert answer.unknown.code == code
        assert says in answer.unknown.message


def test_without_a_key_or_with_two_linuxes_nothing_is_set() -> None:
    for here, code in ((both(way_in(), ssh=None), "NoLinuxKey"), (both(way_in(), way_in("debian")), "SeveralLinuxes")):
        with raises(code):
            here.open().set("LinuxFile", {}, {}, {}, {})


# ---- sessions end


def test_a_session_that_a_new_start_has_forgotten_is_opened_again_to_read() -> None:
    old, new = Told(), Told()
    here = both(way_in(), linuxes=[old, new])
    agent = here.open()
    agent.read(("WslAccess",))
    old.fails = [SessionDropped("gpu-01/ubuntu", "closed")]
    assert agent.read(("WslAccess",))["LinuxFile"] == ()
    assert old.closed
    assert new.asked == [("read", RESOURCES, False)]


def test_a_lost_answer_is_left_to_whoever_asked_and_the_next_question_goes_a_new_way() -> None:
    lost, new = Told(fails=[SessionDropped("gpu-01/ubuntu", "closed")]), Told()
    here = both(way_in(), linuxes=[lost, new])
    agent = here.open()
    with pytest.raises(SessionDropped):
        agent.set("LinuxFile", {}, {}, {}, {})
    assert lost.closed
    agent.get("LinuxFile", {})
    assert len(here.opened) == 2


def test_a_way_in_that_was_closed_is_left() -> None:
    here = both(way_in())
    agent = here.open()
    agent.get("LinuxFile", {})
    here.windows.answers["WslAccess"] = ()
    agent.read(("WslAccess",))
    with pytest.raises(NotAvailable):
        agent.get("LinuxFile", {})


# ---- over real wires


@dataclass
class Served:
    lab: Lab
    target: Host

    @property
    def distro(self) -> Distro:
        sessions = self.lab.hosts[self.target.name].machine.distros.sessions.values()
        return next(distro for session in sessions for distro in session.distros.values() if distro.port is not None)

    def hands(self) -> HostSession:
        return HostSession(connector_for(self.target), QUICK, lambda event: None, within=0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Lab([find("win11-wsl-served")], tmp_path, scale=0.0) as lab:
        (target,) = load_fleet(lab.fleet_file).hosts
        made = Served(lab, target)
        made.distro.keys = [lab.public_key]
        yield made


STEP = Step(
    id="1",
    resource="LinuxFile",
    key={"path": "/etc/docker/daemon.json"},
    role="desired",
    before={"text": None},
    desired={"text": "{}\n"},
    title="The daemon's file",
    why="",
)


def test_linux_is_read_and_set_over_ssh(served: Served) -> None:
    with closing(served.hands()) as hands:
        facts = hands.facts()
        assert set(LINUX) <= set(facts.resources)
        assert isinstance(facts.resources["LinuxSystem"], tuple)
        assert hands.set(STEP, frozenset()).after["mode"] == "0644"
        assert (hands.state("LinuxFile", STEP.key) or {})["text"] == "{}\n"


def test_a_set_whose_answer_is_lost_on_the_way_is_done_once(served: Served) -> None:
    with closing(served.hands()) as hands:
        hands.facts()
        served.lab.ssh_endpoints[served.target.name].answers_to_lose = 1
        assert hands.set(STEP, frozenset()).after["text"] == "{}\n"


def test_a_slow_change_shows_signs_of_life(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winhost.lab.wire.ssh_endpoint._KEEPALIVE_S", 0.05)
    host = served.lab.hosts[served.target.name]
    host.linux.distros.answers(served.distro).faults.add(InjectedFault("LinuxFile", "set", seconds=2.0))
    object.__setattr__(host.machine.clock, "scale", 1.0)
    hasty = served.target.model_copy(
        update={"transport": served.target.transport.model_copy(update={"operation_timeout": 1})}
    )
    with closing(connector_for(hasty).open()) as agent:
        answer = agent.set(STEP.resource, STEP.key, STEP.desired, STEP.before, {})
    assert answer.after["text"] == "{}\n"


def test_only_the_key_of_the_controller_is_let_in(served: Served) -> None:
    served.distro.keys = [public_line(bytes(32))]
    with closing(connector_for(served.target).open()) as agent, pytest.raises(AuthenticationFailed):
        agent.get("LinuxSystem", {})


def test_whoever_is_refused_and_goes_keeps_no_thread_of_the_lab(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a file waited half a minute for each of them."""
    monkeypatch.setattr("winhost.lab.wire.ssh_endpoint._TIMEOUT_S", 100_000)
    served.distro.keys = [public_line(bytes(32))]
    before = set(threading.enumerate())
    with closing(connector_for(served.target).open()) as agent, pytest.raises(AuthenticationFailed):
        agent.get("LinuxSystem", {})
    until = time.monotonic() + PATIENCE_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left


def test_where_every_key_of_ours_was_taken_out_nobody_is_let_in(served: Served) -> None:
    served.distro.keys = []
    with closing(connector_for(served.target).open()) as agent, pytest.raises(NotAvailable):
        agent.get("LinuxSystem", {})


def test_another_host_key_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(connector_for(served.target).open()) as agent:
        shown = served.distro.host_key
        monkeypatch.setattr(Distro, "seed", property(lambda self: bytes(32)))
        monkeypatch.setattr(Distro, "host_key", property(lambda self: shown))
        with pytest.raises(HostKeyRefused):
            agent.get("LinuxSystem", {})
        answer = read_facts(agent).resources["LinuxSystem"]
    assert isinstance(answer, Unknown)
    assert answer.unknown.category == "SecurityError"


def test_a_distro_that_ends_takes_its_session_along(served: Served) -> None:
    with closing(connector_for(served.target).open()) as agent:
        agent.get("LinuxSystem", {})
        served.distro.running = False
        with pytest.raises(SessionDropped):
            agent.get("LinuxSystem", {})
        with pytest.raises(NotAvailable):
            agent.get("LinuxSystem", {})
