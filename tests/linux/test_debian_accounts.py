"""Users, groups and keys of a real Debian: made, used to log on, changed by others, and given back byte for byte."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.connect.sshd import keypair
from tests.linux.debian import INSIDE, Debian
from tests.processes import wait_for
from winhost.connect.agent import Agent
from winhost.connect.ssh import SshConnector
from winhost.connect.wire_errors import AuthenticationFailed, RemoteError, SessionDropped, WireError
from winhost.core.undo import find_undo
from winhost.model.fleet import LinuxHost
from winhost.model.secrets import SecretRef
from winhost.resources.linux.linux_scripts import session_text
from winhost.resources.registry import RULES

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

DATABASES = ("etc/passwd", "etc/shadow", "etc/group", "etc/gshadow", "etc/subuid", "etc/subgid")
GROUP, SYSTEM, PERSON = {"group": "models"}, {"user": "vllm"}, {"user": "ada"}
SERVER = {"there": True, "system": True, "home": "/srv/models", "shell": "/usr/sbin/nologin", "groups": ["models"]}
LOGON = {"there": True, "shell": "/bin/bash", "groups": ["models", "sudo"]}
NOPASSWD = "ada ALL=(ALL) NOPASSWD: ALL\n"


def databases(debian: Debian) -> list[bytes]:
    """And what lies in homes."""
    homes = sorted(str(path) for path in (debian.root / "home").rglob("*"))
    return [*((debian.root / path).read_bytes() for path in DATABASES), "\n".join(homes).encode()]


@pytest.fixture
def agent(debian: Debian) -> Iterator[Agent]:
    """The agent. Its changes are undone at the end."""
    found = databases(debian)
    with closing(debian.agent()) as made:
        yield made
    assert databases(debian) == found
    assert list((debian.root / "var/lib/winhost/made").glob("*")) == []


def undo(agent: Agent, resource: str, key: Any, answer: Any, desired: dict[str, Any]) -> Any:
    before = {name: answer.before[name] for name in desired if answer.before[name] != desired[name]}
    undone = find_undo(RULES[resource], before, answer.after, agent.get(resource, key) or {})
    assert isinstance(undone, dict), undone
    return agent.set(resource, key, undone, {}, {}).after


def code(agent: Agent, resource: str, key: Any, desired: dict[str, Any]) -> str:
    with pytest.raises(RemoteError) as caught:
        agent.set(resource, key, desired, {}, {"within": 5})
    return caught.value.fault.code


def test_a_group_and_a_user_of_the_system_come_and_go(agent: Agent, debian: Debian) -> None:
    group = agent.set("LinuxGroup", GROUP, {"there": True, "system": True}, {"there": False}, {})
    answer = agent.set("LinuxUser", SYSTEM, SERVER, {"there": False}, {})
    assert debian.run("id", "-nG", "vllm").split() == ["vllm", "models"]
    assert int(debian.run("id", "-u", "vllm")) == answer.after["uid"] < 1000
    assert not (debian.root / "srv/models").exists(), "whose home is made is a person's"
    again = agent.set("LinuxUser", SYSTEM, SERVER, {}, {})
    assert again.before == again.after == answer.after
    assert code(agent, "LinuxGroup", GROUP, {"there": False}) == "Winhost.InUse"
    assert code(agent, "LinuxUser", {"user": "daemon"}, {"there": False}) == "Winhost.NotOurs"
    assert undo(agent, "LinuxUser", SYSTEM, answer, SERVER)["there"] is False
    assert undo(agent, "LinuxGroup", GROUP, group, {"there": True, "system": True})["there"] is False


def test_a_user_that_others_changed_is_kept_and_its_files_too(agent: Agent, debian: Debian) -> None:
    agent.set("LinuxGroup", GROUP, {"there": True}, {}, {})
    answer = agent.set("LinuxUser", PERSON, LOGON, {"there": False}, {})
    assert (debian.root / "home/ada/.bashrc").exists()
    debian.run("usermod", "--shell", "/bin/sh", "ada")
    kept = find_undo(
        RULES["LinuxUser"], {"there": False, "shell": None}, answer.after, agent.get("LinuxUser", PERSON) or {}
    )
    assert "shell changed since" in str(kept)
    (debian.root / "home/ada/work").write_text("hers\n")
    gone = agent.set("LinuxUser", PERSON, {"there": False}, {}, {})
    assert "stays" in gone.warnings[0]
    assert (debian.root / "home/ada/work").read_text() == "hers\n"
    debian.run("rm", "-r", "/home/ada")
    agent.set("LinuxGroup", GROUP, {"there": False}, {}, {})


def test_a_group_of_the_same_name_stays_when_its_user_goes(agent: Agent, debian: Debian) -> None:
    debian.run("groupadd", "ada")
    agent.set("LinuxUser", PERSON, {"there": True}, {}, {})
    agent.set("LinuxUser", PERSON, {"there": False}, {}, {})
    debian.run("groupdel", "ada")


# ---- keys


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keypair(tmp_path_factory.mktemp("theirs") / "key")


def line_of(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def logon(debian: Debian, user: str, key: Path, sudo: bool = False) -> Agent:
    pinned = (debian.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
    target = LinuxHost(name="x", address=INSIDE, user=user, host_key=pinned, key=SecretRef("file", str(key)), sudo=sudo)
    return SshConnector(target, session_text()).open()


def test_a_key_lets_in_and_all_that_was_made_for_it_goes_with_it(agent: Agent, debian: Debian, theirs: Path) -> None:
    key = {"user": "ada", "key": line_of(theirs)}
    agent.set("LinuxUser", PERSON, {"there": True, "shell": "/bin/bash"}, {}, {})
    wanted = {"present": True, "options": 'no-pty,environment="A=b \\"c d"', "comment": "ada's \u2019 laptop"}
    answer = agent.set("SshKey", key, wanted, {"present": False}, {})
    assert answer.after == wanted
    assert agent.get("LinuxSystem", {})
    with closing(logon(debian, "ada", theirs)) as hers:
        assert hers.get("LinuxSystem", {})
    listed = agent.read(["SshKey"])["SshKey"]
    assert isinstance(listed, tuple)
    assert dict(key) in [dict(each.key) for each in listed]
    other = agent.set("SshKey", key, {"options": None}, {}, {})
    assert undo(agent, "SshKey", key, other, {"options": None})["options"] == wanted["options"]
    assert undo(agent, "SshKey", key, answer, wanted)["present"] is False
    assert not (debian.root / "home/ada/.ssh").exists()
    agent.set("LinuxUser", PERSON, {"there": False}, {}, {})


def test_lines_of_others_stay_byte_for_byte(agent: Agent, debian: Debian, theirs: Path) -> None:
    key = {"user": "ada", "key": line_of(theirs)}
    agent.set("LinuxUser", PERSON, {"there": True, "shell": "/bin/bash"}, {}, {})
    file = debian.root / "home/ada/.ssh/authorized_keys"
    others = "# \u00e4 note\n\n  broken line \x0b\u2028 here\r\nssh-ed25519 AAAA no key\nssh-rsa AAAAB3 the last one"
    debian.run("install", "-d", "-o", "ada", "-g", "ada", "-m", "700", "/home/ada/.ssh")
    file.write_text(others, newline="")
    debian.run("chown", "ada:ada", "/home/ada/.ssh/authorized_keys")
    file.chmod(0o640)
    agent.set("SshKey", key, {"present": True}, {}, {})
    assert file.read_bytes() == f"{key['key']}\n{others}".encode()
    assert file.stat().st_mode & 0o777 == 0o640
    agent.set("SshKey", key, {"present": False}, {}, {})
    assert file.read_bytes() == others.encode()
    file.chmod(0o666)
    assert code(agent, "SshKey", key, {"present": True}) == "Winhost.WrongState"
    file.unlink()
    file.symlink_to("/root/.ssh/authorized_keys")
    assert code(agent, "SshKey", key, {"present": True}) != ""
    assert key["key"] not in (debian.root / "root/.ssh/authorized_keys").read_text()
    debian.run("rm", "-r", "/home/ada/.ssh")
    assert code(agent, "SshKey", key, {"present": True, "comment": "two\nlines"}) == "Winhost.BadRequest"
    (debian.root / "etc/ssh/sshd_config.d/60-test.conf").write_text("AuthorizedKeysFile /etc/keys/%u\n")
    assert code(agent, "SshKey", key, {"present": True}) == "Winhost.WrongState"
    (debian.root / "etc/ssh/sshd_config.d/60-test.conf").unlink()
    agent.set("LinuxUser", PERSON, {"there": False}, {}, {})


# ---- what cuts off whoever does it


def restored(debian: Debian) -> None:
    wait_for(lambda: not (debian.root / "var/lib/winhost/undo/agent.py").exists())
    (debian.root / "var/lib/winhost/undo/record.json").unlink()


def test_the_key_that_winhost_itself_comes_in_with_comes_back(agent: Agent, debian: Debian) -> None:
    file = debian.root / "root/.ssh/authorized_keys"
    found = file.read_bytes()
    with pytest.raises(SessionDropped):
        agent.set("SshKey", {"user": "root", "key": line_of(debian.key)}, {"present": False}, {}, {"within": 3})
    with pytest.raises(AuthenticationFailed):
        debian.agent()
    restored(debian)
    debian.agent().close()
    assert file.read_bytes().split()[:2] == found.split()[:2]
    file.write_bytes(found)


@pytest.fixture
def ada(debian: Debian, theirs: Path) -> Iterator[Debian]:
    """She logs on with her key, and becomes root by sudo."""
    hosts = f"127.0.0.1 localhost {debian.run('hostname').strip()}\n"
    (debian.root / "etc/hosts").write_text(hosts)
    rule = debian.root / "etc/sudoers.d/ada"
    with closing(debian.agent()) as agent:
        agent.set("LinuxUser", PERSON, {"there": True, "shell": "/bin/bash"}, {}, {})
        agent.set("SshKey", {"user": "ada", "key": line_of(theirs)}, {"present": True}, {}, {})
    rule.write_text(NOPASSWD)
    rule.chmod(0o440)
    yield debian
    rule.unlink()
    with closing(debian.agent()) as agent:
        agent.set("SshKey", {"user": "ada", "key": line_of(theirs)}, {"present": False}, {}, {})
        agent.set("LinuxUser", PERSON, {"there": False}, {}, {})


CUTS = {
    "its user can log on no more": ("LinuxUser", PERSON, {"expires": "1970-01-02"}, WireError),
    "its shell is none": ("LinuxUser", PERSON, {"shell": "/bin/false"}, WireError),
    "its key is gone": ("SshKey", {"user": "ada"}, {"present": False}, AuthenticationFailed),
    "it may not become root": (
        *("LinuxFile", {"path": "/etc/sudoers.d/zz-winhost"}),
        *({"text": "ada ALL=(ALL) !ALL\n"}, AuthenticationFailed),
    ),
}


@pytest.mark.parametrize(("resource", "key", "desired", "refusal"), CUTS.values(), ids=CUTS.keys())
def test_what_cuts_off_whoever_logs_on_with_sudo_is_undone(
    ada: Debian, theirs: Path, resource: str, key: Any, desired: dict[str, Any], refusal: type[Exception]
) -> None:
    key = {**key, "key": line_of(theirs)} if resource == "SshKey" else key
    path = {"path": "/etc/sudoers.d/winhost-zz"}
    key = path if resource == "LinuxFile" else key
    with closing(logon(ada, "ada", theirs, sudo=True)) as hers:
        before = hers.get(resource, key)
        with pytest.raises(SessionDropped):
            hers.set(resource, key, desired, {}, {"within": 4})
    with pytest.raises(refusal):
        logon(ada, "ada", theirs, sudo=True)
    restored(ada)
    with closing(logon(ada, "ada", theirs, sudo=True)) as hers:
        assert hers.get(resource, key) == before


def test_what_does_not_cut_off_is_kept_over_a_new_connection(ada: Debian, theirs: Path) -> None:
    with closing(logon(ada, "ada", theirs, sudo=True)) as hers, pytest.raises(SessionDropped):
        hers.set("LinuxUser", PERSON, {"shell": "/bin/sh"}, {}, {"within": 60})
    with closing(logon(ada, "ada", theirs, sudo=True)) as hers:
        assert hers.set("LinuxUser", PERSON, {"shell": "/bin/sh"}, {}, {"within": 60}).after["shell"] == "/bin/sh"
