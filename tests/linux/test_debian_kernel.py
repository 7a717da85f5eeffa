"""Settings and modules of the kernel, on a real Debian. What is not its own to change there has stand-ins."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.linux.debian import Debian
from tests.processes import wait_for
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError, SessionDropped
from winhost.core.undo import find_undo
from winhost.resources.registry import RULES

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

BACKLOG = {"name": "net.core.somaxconn"}
ROUTES = {"name": "net.ipv4.conf.all.secure_redirects"}
NOUVEAU = {"module": "nouveau"}
OFF = {"blacklisted": True, "options": "modeset=0", "initramfs_due": False}
INITRAMFS = """\
#!/bin/sh
[ ! -e /var/broken ] || exit 1
cat /etc/modprobe.d/winhost-* > /boot/initrd.img-test 2>/dev/null || true
"""


def undone(resource: str, key: dict[str, str], agent: Agent, answer: Any, desired: dict[str, Any]) -> Any:
    before = {name: answer.before[name] for name in desired if answer.before[name] != desired[name]}
    undo = find_undo(RULES[resource], before, answer.after, agent.get(resource, key) or {})
    return agent.set(resource, key, undo, {}, {}).after  # type: ignore[arg-type]


@pytest.fixture
def initramfs(debian: Debian) -> Iterator[Debian]:
    """The stand-in keeps the files that it got."""
    program = debian.root / "usr/sbin/update-initramfs"
    program.write_text(INITRAMFS)
    program.chmod(0o755)
    yield debian
    program.unlink()


def kept(debian: Debian) -> str:
    return (debian.root / "boot/initrd.img-test").read_text()


def test_a_setting_holds_now_and_with_each_start_and_goes_back(asked: Agent, debian: Debian) -> None:
    desired = {"live": "2048", "at_boot": "2048"}
    answer = asked.set("Sysctl", BACKLOG, desired, {}, {})
    assert answer.after == desired
    assert debian.run("cat", "/proc/sys/net/core/somaxconn") == "2048\n"
    file = debian.root / "etc/sysctl.d/99-winhost-net.core.somaxconn.conf"
    assert file.read_text() == "# Written by winhost.\nnet.core.somaxconn = 2048\n"
    assert undone("Sysctl", BACKLOG, asked, answer, desired) == answer.before
    assert not file.exists()


def test_what_the_kernel_refuses_leaves_no_file(asked: Agent, debian: Debian) -> None:
    before = asked.get("Sysctl", BACKLOG)
    for value in ("-5", "many"):
        with pytest.raises(RemoteError):
            asked.set("Sysctl", BACKLOG, {"live": value, "at_boot": value}, {}, {})
        assert asked.get("Sysctl", BACKLOG) == before
    with pytest.raises(RemoteError) as caught:
        asked.set("Sysctl", BACKLOG, {"at_boot": "1\nkernel.panic = 1"}, {}, {})
    assert caught.value.fault.code == "Winhost.BadRequest"


def test_a_setting_that_routes_packets_is_undone_unless_somebody_comes_back(debian: Debian) -> None:
    agent = debian.agent()
    before = (agent.get("Sysctl", ROUTES) or {})["live"]
    other = "1" if before == "0" else "0"
    with pytest.raises(SessionDropped):
        agent.set("Sysctl", ROUTES, {"live": other, "at_boot": other}, {}, {"within": 5})
    assert debian.run("cat", "/proc/sys/net/ipv4/conf/all/secure_redirects").strip() == other
    wait_for(lambda: not (debian.root / "var/lib/winhost/undo/agent.py").exists())
    assert debian.run("cat", "/proc/sys/net/ipv4/conf/all/secure_redirects").strip() == before
    assert agent.get("Sysctl", ROUTES) == {"live": before, "at_boot": None}
    agent.close()


def test_a_module_is_kept_from_loading_also_in_the_initramfs_and_goes_back(asked: Agent, initramfs: Debian) -> None:
    answer = asked.set("KernelModule", NOUVEAU, OFF, {}, {})
    assert {name: answer.after[name] for name in OFF} == OFF
    assert answer.warnings == ("The initramfs was made again.",)
    assert kept(initramfs) == "# Written by winhost.\noptions nouveau modeset=0\nblacklist nouveau\n"
    assert undone("KernelModule", NOUVEAU, asked, answer, OFF) == answer.before
    assert kept(initramfs) == ""
    assert not (initramfs.root / "etc/modprobe.d/winhost-nouveau.conf").exists()


def test_an_initramfs_that_was_not_made_is_made_by_whoever_goes_on(asked: Agent, initramfs: Debian) -> None:
    (initramfs.root / "var/broken").touch()
    with pytest.raises(RemoteError):
        asked.set("KernelModule", NOUVEAU, OFF, {}, {})
    assert (asked.get("KernelModule", NOUVEAU) or {})["initramfs_due"] is True
    (initramfs.root / "var/broken").unlink()
    answer = asked.set("KernelModule", NOUVEAU, OFF, {}, {})
    assert answer.after["initramfs_due"] is False
    asked.set("KernelModule", NOUVEAU, {"blacklisted": False, "options": None}, {}, {})


def loaded_modules() -> list[str]:
    """Return the modules that can be unloaded; built-in ones have no state."""
    return sorted(path.parent.name for path in Path("/sys/module").glob("*/initstate"))


if loaded_modules():  # no skip: a kernel that is built without modules has nothing that could be tried

    def test_a_module_that_runs_and_should_not_says_that_a_restart_is_due(asked: Agent) -> None:
        running = loaded_modules()[0]
        key = {"module": running}
        answer = asked.set("KernelModule", key, {"blacklisted": True}, {}, {})
        assert (answer.after["loaded"], answer.after["restart_due"]) == (True, True)
        assert answer.warnings == (f"{running} runs as before until this Linux restarts.",)
        undone("KernelModule", key, asked, answer, {"blacklisted": True})


def test_a_file_that_somebody_changed_is_left_alone(asked: Agent, debian: Debian) -> None:
    asked.set("KernelModule", NOUVEAU, {"at_boot": True, "blacklisted": True}, {}, {})
    file = debian.root / "etc/modprobe.d/winhost-nouveau.conf"
    text = file.read_text()
    file.write_text(f"{text}install nouveau /bin/false\n")
    with pytest.raises(RemoteError) as caught:
        asked.set("KernelModule", NOUVEAU, {"blacklisted": False}, {}, {})
    assert caught.value.fault.code == "Winhost.WrongState"
    file.write_text(text)
    asked.set("KernelModule", NOUVEAU, {"at_boot": False, "blacklisted": False}, {}, {})
    assert not (debian.root / "etc/modules-load.d/winhost-nouveau.conf").exists()
