"""Changes that cut SSH access, on a real Debian with systemd and sshd: the old state comes back by itself."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.world import QUICK
from tests.linux.debian import Debian
from tests.linux.unpacked import unpack_linux
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.agent import Agent
from winhost.connect.reboot import Patience
from winhost.connect.wire_errors import AuthenticationFailed, RemoteError, SessionDropped, Unreachable, WireError
from winhost.core.order import steps_for
from winhost.core.steps import DesiredResource, Step
from winhost.engine.host_session import HostSession
from winhost.lab.linux.linux_machine import SSHD_FILE
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest, Stage
from winhost.resources.registry import host_answers

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

SSHD = {"path": "/etc/ssh/sshd_config.d/50-winhost-more.conf"}
UNDO = (
    "etc/systemd/system/winhost-undo.timer",
    "etc/systemd/system/winhost-undo.service",
    "var/lib/winhost/undo/agent.py",
)
HARMLESS = "MaxAuthTries 3\n"
CUTS = {
    "no such user any more": "DenyUsers root\n",
    "the key is looked for elsewhere": "AuthorizedKeysFile /nowhere\n",
    "no key is good enough": "PubkeyAcceptedAlgorithms rsa-sha2-512\n",
}
PATIENT = Patience(deadline=PATIENCE_S, first=0.5, longest=1)


@pytest.fixture
def agent(debian: Debian) -> Iterator[Agent]:
    """Nothing waits to be kept, before and after."""
    found = files(debian)
    made = back(debian)
    yield made
    made.close()
    wait_for(lambda: not any((debian.root / path).exists() for path in UNDO))
    assert files(debian) == found
    forget(debian)


@pytest.fixture
def netplan(debian: Debian) -> Iterator[None]:
    """A stand-in, because netplan asks udev about adapters, which a container does not have."""
    standin = debian.root / "usr/bin/udevadm"
    standin.write_text("#!/bin/sh\n")
    standin.chmod(0o755)
    yield
    standin.unlink()


def forget(debian: Debian) -> None:
    """Drop the record of an undone change, which the next request would report."""
    (debian.root / "var/lib/winhost/undo/record.json").unlink(missing_ok=True)


def files(debian: Debian) -> Any:
    """Byte for byte, with mode and owner."""
    folders = ("etc/ssh/sshd_config.d", "etc/sudoers.d", "root/.ssh")
    every = [path for folder in folders for path in sorted((debian.root / folder).glob("*"))]
    return [(str(path), path.read_bytes(), path.stat().st_mode, path.stat().st_uid) for path in every]


def step(text: str | None) -> Step:
    return Step(
        "1.1", "LinuxFile", SSHD, "desired", {"text": None}, {"text": text}, "sshd", "For the test.", ("network",)
    )


def session(debian: Debian, patience: Patience, within: float) -> HostSession:
    return HostSession(debian.connector(), patience, lambda event: None, within)


def refusal(debian: Debian) -> WireError:
    """sshd is away for a moment while it reads its files again."""
    with pytest.raises(WireError) as caught:
        debian.agent()
    return refusal(debian) if isinstance(caught.value, Unreachable) else caught.value


def back(debian: Debian) -> Agent:
    """Once somebody is let in again."""
    made: list[Agent] = []

    def lets_in() -> bool:
        try:
            made.append(debian.agent())
        except WireError:
            return False
        return True

    wait_for(lets_in)
    return made[0]


@pytest.mark.parametrize("text", CUTS.values(), ids=CUTS.keys())
def test_what_cuts_the_line_is_undone_by_the_machine_itself(agent: Agent, debian: Debian, text: str) -> None:
    with pytest.raises(SessionDropped):
        agent.set("LinuxFile", SSHD, {"text": text}, {"text": None}, {"within": 5})
    assert isinstance(refusal(debian), AuthenticationFailed)
    new = back(debian)
    assert (new.get("LinuxFile", SSHD) or {})["text"] is None
    with pytest.raises(RemoteError) as caught:
        new.set("LinuxFile", SSHD, {"text": text}, {"text": None}, {"within": 5})
    assert caught.value.fault.code == "Winhost.Undone"
    new.close()


def test_sshd_on_another_port_comes_back_to_its_own(agent: Agent, debian: Debian) -> None:
    key = {"path": SSHD_FILE}
    found = (agent.get("LinuxFile", key) or {})["text"]
    with pytest.raises(SessionDropped):
        agent.set("LinuxFile", key, {"text": found.replace(":22\n", ":2299\n")}, {"text": found}, {"within": 5})
    with pytest.raises(Unreachable):
        debian.agent()
    back(debian).close()


@pytest.mark.usefixtures("netplan")
def test_another_address_by_netplan_goes_back_to_the_one_that_was(agent: Agent, debian: Debian) -> None:
    key = {"path": "/etc/netplan/90-winhost.yaml"}
    text = "network: {version: 2, renderer: networkd, ethernets: {eth0: {addresses: [198.51.100.9/24]}}}\n"
    with pytest.raises(WireError):
        agent.set("LinuxFile", key, {"text": text}, {"text": None}, {"within": 8})
    back(debian).close()
    wait_for(lambda: not (debian.root / key["path"].lstrip("/")).exists())
    assert "198.51.100.9" not in debian.run("ip", "address")
    assert list((debian.root / "run/systemd/network").glob("*netplan*")) == []


def test_the_engine_reports_what_was_undone(agent: Agent, debian: Debian) -> None:
    opened = session(debian, PATIENT, within=5)
    with pytest.raises(RemoteError) as caught:
        opened.set(step(CUTS["no such user any more"]), frozenset({"network"}))
    assert caught.value.fault.code == "Winhost.Undone"
    opened.close()


def test_the_engine_keeps_what_cuts_nothing(agent: Agent, debian: Debian) -> None:
    opened = session(debian, QUICK, within=30)
    assert opened.set(step(HARMLESS), frozenset({"network"})).after["text"] == HARMLESS
    assert "maxauthtries 3" in debian.run("sshd", "-T")
    assert [path for path in UNDO if (debian.root / path).exists()] == []
    undo = Step("u1", "LinuxFile", SSHD, "undo", {"text": HARMLESS}, {"text": None}, "sshd", "As found.", ("network",))
    assert opened.set(undo, frozenset({"network"})).after["text"] is None
    opened.close()


def test_an_old_connection_keeps_nothing_and_one_from_before_the_change_neither(agent: Agent, debian: Debian) -> None:
    other = debian.agent()
    other.get("LinuxFile", SSHD)
    for each in (agent, agent, other):
        with pytest.raises(SessionDropped):
            each.set("LinuxFile", SSHD, {"text": HARMLESS}, {"text": None}, {"within": 8})
    other.close()
    assert (debian.root / SSHD["path"].lstrip("/")).read_text() == HARMLESS
    assert (agent.get("LinuxFile", SSHD) or {})["text"] is None, "until it is kept, it may go back"
    wait_for(lambda: not (debian.root / SSHD["path"].lstrip("/")).exists())


def test_what_was_broken_off_half_way_is_begun_anew(agent: Agent, debian: Debian) -> None:
    """The agent was killed, so it is not known how far the change came, and it cannot be confirmed."""
    with pytest.raises(SessionDropped):
        agent.set("LinuxFile", SSHD, {"text": HARMLESS}, {"text": None}, {"within": 600})
    file = debian.root / "var/lib/winhost/undo/record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "changed_at": None}))
    opened = session(debian, QUICK, within=600)
    assert opened.set(step(HARMLESS), frozenset({"network"})).after["text"] == HARMLESS
    undo = Step("u1", "LinuxFile", SSHD, "undo", {"text": HARMLESS}, {"text": None}, "sshd", "As found.", ("network",))
    opened.set(undo, frozenset({"network"}))
    opened.close()


def test_what_is_wanted_as_it_was_is_so_at_once(agent: Agent, debian: Debian) -> None:
    with pytest.raises(SessionDropped):
        agent.set("LinuxFile", SSHD, {"text": HARMLESS}, {"text": None}, {"within": 600})
    agent.set("LinuxFile", SSHD, {"text": None}, {"text": None}, {})
    assert not (debian.root / SSHD["path"].lstrip("/")).exists()


def test_a_controller_that_went_away_leaves_the_undoing_to_the_timer(agent: Agent, debian: Debian) -> None:
    with pytest.raises(SessionDropped):
        agent.set("LinuxFile", SSHD, {"text": CUTS["no such user any more"]}, {"text": None}, {"within": 5})
    agent.close()
    back(debian).close()


def test_a_restart_puts_the_undoing_off_and_does_not_end_it(debian: Debian) -> None:
    agent = back(debian)
    with pytest.raises(SessionDropped):
        agent.set("LinuxFile", SSHD, {"text": CUTS["no such user any more"]}, {"text": None}, {"within": 20})
    debian.stop()
    debian.start()
    back(debian).close()
    assert not (debian.root / SSHD["path"].lstrip("/")).exists()


# ---- validators


REFUSED = {
    "sshd": (SSHD["path"], "PasswordAuthentication perhaps\n", "sshd"),
    "a unit": (
        "/etc/systemd/system/winhost-x.service",
        "[Service]\nTyp=oneshot\nExecStart=/bin/true\n",
        "systemd-analyze",
    ),
    "a unit that does nothing": ("/etc/systemd/system/winhost-x.service", "[Service]\n", "systemd-analyze"),
    "a drop-in": ("/etc/systemd/system/ssh.service.d/winhost-x.conf", "[Service]\nRestrat=always\n", "systemd-analyze"),
    "JSON": ("/etc/docker/daemon.json", "{'a': 1}", "json"),
    "sudo": ("/etc/sudoers.d/50-winhost", "ada ALL=(ALL NOPASSWD ALL\n", "visudo"),
    "netplan": (
        "/etc/netplan/90-winhost.yaml",
        "network: {version: 2, ethernets: {e: {adresses: []}}}\n",
        "netplan",
    ),
    "netplan, no YAML": ("/etc/netplan/90-winhost.yaml", "network: {\n", "netplan"),
    "nftables": ("/etc/nftables.d/50-winhost-x.nft", "table inet x { chain y { type filter hook nowhere } }\n", "nft"),
}
ACCEPTED = {
    "sudo": ("/etc/sudoers.d/50-winhost", "root ALL=(ALL) NOPASSWD: /bin/true\n"),
    "netplan": ("/etc/netplan/90-winhost.yaml", "network: {version: 2, ethernets: {eth9: {dhcp4: true}}}\n"),
    "nftables": ("/etc/nftables.d/50-winhost-x.nft", "table inet x { chain y { tcp dport 1 accept; }; }\n"),
}


@pytest.mark.parametrize(("path", "text", "program"), REFUSED.values(), ids=REFUSED.keys())
def test_what_its_program_refuses_never_takes_the_place(
    agent: Agent, debian: Debian, path: str, text: str, program: str
) -> None:
    with pytest.raises(RemoteError) as caught:
        agent.set("LinuxFile", {"path": path}, {"text": text}, {}, {"within": 5})
    assert (caught.value.fault.code, caught.value.fault.cmdlet) == ("Winhost.NotValid", program)
    assert not (debian.root / path.lstrip("/")).exists()
    assert list((debian.root / "run/winhost").glob("*")) == []


@pytest.mark.usefixtures("netplan")
@pytest.mark.parametrize(("path", "text"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_its_program_accepts_comes_and_goes(agent: Agent, debian: Debian, path: str, text: str) -> None:
    key, file = {"path": path}, debian.root / path.lstrip("/")
    rules = debian.run("nft", "list", "ruleset")
    opened = session(debian, QUICK, within=60)
    for before, desired in ((None, text), (text, None)):
        wanted = Step("1.1", "LinuxFile", key, "desired", {"text": before}, {"text": desired}, "x", "x.", ("network",))
        assert opened.set(wanted, frozenset({"network"})).after["text"] == desired
        assert file.exists() == (desired is not None)
    opened.close()
    assert debian.run("nft", "list", "ruleset") == rules, "a check loads nothing"


def test_a_program_that_a_later_step_brings_is_no_fault_of_a_unit(agent: Agent) -> None:
    key = {"path": "/etc/systemd/system/winhost-x.service"}
    text = "[Service]\nExecStart=/usr/bin/brought-later\n"
    assert agent.set("LinuxFile", key, {"text": text}, {}, {}).after["text"] == text
    agent.set("LinuxFile", key, {"text": None}, {}, {})


# ---- by hand


def by_hand(debian: Debian, *words: str) -> Any:
    command = debian.inside("python3", "-I", "/root/by-hand/run.py", *words, "--json")
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout)


def test_by_hand_at_the_machine_somebody_has_to_say_that_ssh_works(agent: Agent, debian: Debian) -> None:
    facts = Facts("here", "recorded", "2026-11-23T00:00:00+00:00", "0", agent.read(["WslAccess", "LinuxFile"]))
    found = (agent.get("LinuxFile", {"path": SSHD_FILE}) or {})["text"]
    goal = DesiredResource("LinuxFile", {"path": SSHD_FILE}, {"text": HARMLESS + found}, "sshd", "For the test.")
    stage = Stage(1, (goal,), steps_for((goal,), host_answers(facts), prefix="1."))
    key = (debian.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
    plan = Plan("here", "none", "recorded", facts.read_at, "0", PlanRequest("wsl2", {}), (stage,), (), key)
    unpack_linux(plan, debian.root / "root/by-hand")
    assert by_hand(debian, "apply")["error"]["kind"] == "ConsentNeeded"
    assert by_hand(debian, "apply", "--accept", "network")["error"]["kind"] == "NotKept"
    assert by_hand(debian, "apply", "--accept", "network")["error"]["kind"] == "NotKept"
    assert by_hand(debian, "apply", "--accept", "network", "--keep")["outcome"] == "applied"
    assert by_hand(debian, "rollback", "--accept", "network")["error"]["kind"] == "NotKept"
    assert by_hand(debian, "rollback", "--accept", "network", "--keep")["outcome"] == "rolled back"
