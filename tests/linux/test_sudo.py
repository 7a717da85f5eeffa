"""Becoming root in a real Debian, by its sudo: with a password and without one, and each way in which sudo says no."""

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.errors import raises
from tests.linux.debian import INSIDE, Debian, NoDebian
from tests.processes import PATIENCE_S, wait_for
from winhost.cli.output import error_text
from winhost.connect.agent import Agent
from winhost.connect.reboot import Patience
from winhost.connect.ssh import SshConnector
from winhost.connect.wire_errors import AuthenticationFailed
from winhost.engine.detect import read_facts, unread_facts
from winhost.engine.host_session import HostSession
from winhost.model.fleet import LinuxHost
from winhost.model.secrets import SecretRef
from winhost.resources.host import HostFacts
from winhost.resources.linux.linux_scripts import session_text
from winhost.resources.linux.read_only import LinuxSystem, ListeningPort
from winhost.resources.registry import is_linux
from winhost.resources.shape import check_records

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

USER, CANARY = "serving", "canary-9b41 'with\" $(words)"
ASKS, FREE = f"{USER} ALL=(ALL) ALL\n", f"{USER} ALL=(ALL) NOPASSWD: ALL\n"


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Debian]:
    try:
        made = Debian(pytestconfig.cache.mkdir("debian") / "base", tmp_path_factory.mktemp("debian"))
    except NoDebian as why:
        pytest.skip(f"no Debian with systemd can be made here: {why}")
    # Without it sudo asks name servers for its own host, and here is none.
    (made.root / "etc/hosts").write_text(f"127.0.0.1 localhost {made.run('hostname').strip()}\n")
    made.run("useradd", "--create-home", "--shell", "/bin/bash", USER)
    made.run("sh", "-c", 'printf "%s:%s" "$1" "$2" | chpasswd', "sh", USER, CANARY)
    keys = made.root / f"home/{USER}/.ssh/authorized_keys"
    keys.parent.mkdir()
    keys.write_text(made.key.with_suffix(".pub").read_text())
    made.run("chown", "-R", f"{USER}:{USER}", f"/home/{USER}/.ssh")
    yield made
    made.close()


@pytest.fixture
def password(tmp_path: Path) -> SecretRef:
    return written(tmp_path, CANARY)


def written(folder: Path, text: str) -> SecretRef:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(0o600)
    return SecretRef("file", str(path))


def opened(debian: Debian, sudoers: str, password: SecretRef | None, **changes: Any) -> Agent:
    return connector(debian, sudoers, password, **changes).open()


def connector(debian: Debian, sudoers: str, password: SecretRef | None, **changes: Any) -> SshConnector:
    file = debian.root / "etc/sudoers.d/serving"
    file.write_text(sudoers)
    file.chmod(0o440)
    target = LinuxHost(
        name="llm-01",
        address=INSIDE,
        user=USER,
        host_key=(debian.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text(),
        key=SecretRef("file", str(debian.key)),
        **{"sudo": True, "sudo_password": password, **changes},
    )
    return SshConnector(target, session_text(), check_records)


FILE = {"path": "/etc/systemd/network/winhost.d/winhost.conf"}


def changes_as_root(agent: Agent, text: str) -> None:
    desired = {"text": text, "mode": "0600", "owner": "root:root"}
    assert agent.set("LinuxFile", FILE, desired, {}, {}).after == {**desired, "link": None}
    agent.close()


@pytest.mark.parametrize(
    "sudoers", [ASKS, FREE, f"Defaults use_pty, !lecture\n{ASKS}", f"Defaults lecture=always\n{ASKS}"]
)
def test_a_password_that_is_named_is_given_where_it_is_asked_for(
    debian: Debian, password: SecretRef, sudoers: str
) -> None:
    changes_as_root(opened(debian, sudoers, password), f"{sudoers}\n")


def test_without_a_password_sudo_may_ask_for_none(debian: Debian) -> None:
    changes_as_root(opened(debian, FREE, None), "free\n")


def test_without_sudo_what_is_readable_is_read_and_nothing_is_changed(debian: Debian) -> None:
    agent = opened(debian, FREE, None, sudo=False)
    assert (agent.get("LinuxSystem", {}) or {})["id"] == "debian"
    with raises("RemoteError"):
        agent.set("LinuxFile", FILE, {"text": "x\n"}, {}, {})
    agent.close()


def test_a_session_outlives_what_sudo_remembers_and_answers_long(debian: Debian, password: SecretRef) -> None:
    agent = opened(debian, ASKS, password)
    text = "ä" * 300_000
    agent.set("LinuxFile", FILE, {"text": text}, {}, {})
    assert (agent.get("LinuxFile", FILE) or {})["text"] == text
    agent.close()


def test_a_rule_that_takes_sudo_away_is_undone_by_the_machine_itself(debian: Debian) -> None:
    key = {"path": "/etc/sudoers.d/winhost-x"}
    agent = opened(debian, FREE, None)
    with raises("RemoteError"):
        agent.set("LinuxFile", key, {"text": "winhost is no rule\n"}, {}, {"within": 5})
    with raises("SessionDropped"):
        agent.set("LinuxFile", key, {"text": f"{USER} ALL=(ALL) !ALL\n"}, {"text": None}, {"within": 5})
    agent.close()
    with raises("SudoNeedsPassword"):
        opened(debian, FREE, None)
    wait_for(lambda: not (debian.root / "var/lib/winhost/undo/agent.py").exists())
    assert not (debian.root / key["path"].lstrip("/")).exists()
    kept = opened(debian, FREE, None)
    rule = f"Defaults:{USER} !lecture\n"
    with raises("SessionDropped"):
        kept.set("LinuxFile", key, {"text": rule}, {"text": None}, {"within": 60})
    kept.close()
    again = opened(debian, FREE, None)
    after = again.set("LinuxFile", key, {"text": rule}, {"text": None}, {"within": 60}).after
    assert (after["text"], after["mode"]) == (rule, "0440")
    again.close()


def test_a_machine_of_its_own_tells_all_that_it_has(debian: Debian) -> None:
    agent = opened(debian, FREE, None)
    facts = read_facts(agent)
    agent.close()
    assert is_linux(facts)
    assert facts.origin == "recorded"
    unread = {name: why for name, why in unread_facts(facts) if not name.startswith("LinuxGpuDriver.")}
    assert set(unread) <= {"LinuxDisk"}  # a container shows none of its machine's
    host = HostFacts(facts)
    ports = {(each.key["port"], *each.state.processes) for each in host.all(ListeningPort)}
    assert ("22", "sshd") in ports
    assert host.machine_id == (debian.root / "etc/machine-id").read_text().strip()
    system = host.the(LinuxSystem)
    assert system.virtualization == "systemd-nspawn"
    assert system.cgroups in (1, 2)


REFUSALS = {
    "SudoNeedsPassword": (ASKS, None, "sudo_password"),
    "SudoWrongPassword": (ASKS, "canary-wrong", "sudo_password"),
    "SudoNotAllowed": ("", CANARY, "usermod -aG sudo serving"),
    "SudoNeedsTty": (f"Defaults requiretty\n{FREE}", None, "!requiretty"),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_each_way_to_be_refused_says_what_to_do(
    debian: Debian, tmp_path: Path, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    sudoers, said, advice = REFUSALS[code]
    secret = written(tmp_path, said) if said else None
    at = {"sudo_password": "hosts.llm-01.ssh.sudo_password (fleet.yaml:9)"}
    caplog.set_level(logging.DEBUG)
    with raises(code) as caught:
        opened(debian, sudoers, secret, operation_timeout=8, written_at=at)
    assert isinstance(caught.value, AuthenticationFailed)
    assert advice in error_text(caught.value)
    assert "canary" not in error_text(caught.value) + caplog.text
    assert caught.value.__context__ is None


def test_a_sudo_that_does_not_ask_in_our_words_is_waited_for_and_left(debian: Debian, password: SecretRef) -> None:
    pam = debian.root / "etc/pam.d/sudo"
    text = pam.read_text()
    pam.write_text(f"auth required pam_exec.so /bin/sleep 60\n{text}")
    with raises("SudoSilent") as caught:
        opened(debian, ASKS, password, operation_timeout=2)
    pam.write_text(text)
    assert "passprompt_override" in error_text(caught.value)


def test_one_password_in_sudoers_that_allows_one_try_is_wrong_too(debian: Debian, tmp_path: Path) -> None:
    with raises("SudoWrongPassword"):
        opened(debian, f"Defaults passwd_tries=1\n{ASKS}", written(tmp_path, "wrong"))


def test_the_password_is_in_no_command_line_and_no_file(debian: Debian, password: SecretRef, tmp_path: Path) -> None:
    agent = opened(debian, ASKS, password)
    shown = debian.run("sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert "python3" in shown
    assert "canary" not in shown
    agent.close()
    journal = debian.run("journalctl", "--no-pager", "--output=json")
    assert "canary" not in journal
    found = debian.inside("grep", "-rlaF", "canary-9b41", "/var/log", "/tmp", "/run", "/home", "/root", "/var/lib")
    assert subprocess.run(found, capture_output=True, text=True, timeout=PATIENCE_S).stdout == ""


def test_a_password_in_several_lines_is_refused_unsent(debian: Debian, tmp_path: Path) -> None:
    with raises("SecretUnreadable", match="several lines"):
        opened(debian, ASKS, written(tmp_path, "canary\nsecond"))


def test_a_restart_is_waited_for_by_whoever_becomes_root_with_a_password(debian: Debian, password: SecretRef) -> None:
    way = connector(debian, ASKS, password)
    session = HostSession(way, Patience(deadline=120, first=0.5, longest=2), lambda event: None)
    old = session.boot_id()
    with debian.kept_going():
        new = session.restart(old)
    assert new == session.boot_id() != old
    assert session.state("LinuxBoot", {}) == {"boot_id": new, "ready": True}
    session.close()
