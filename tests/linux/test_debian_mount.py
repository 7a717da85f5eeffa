"""File systems for data mounted in a real Debian, with each start, and unmounted without a byte of them gone."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.linux.debian import Debian, NoDebian, wait_for
from tests.linux.loops import blank, tool
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError, WireError
from winhost.core.undo import find_undo
from winhost.resources.registry import RULES

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),  # the first time, a Debian is fetched
    pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="this machine has no loop devices"),
]

UUID, NOBODYS = "5f0e2d7a-9d1c-4b8e-8f3a-1c2d3e4f5a6b", "00000000-0000-4000-8000-000000000000"
MODELS = {"path": "/srv/models-1.d"}
WANTED = {"uuid": UUID, "filesystem": "ext4", "options": "noatime", "mounted": True}
NONE = {"uuid": None, "filesystem": None, "options": None, "mounted": False}


class DebianWithDisk(Debian):
    """disk: a loop device with a file system."""

    disk = ""

    def start(self, *, systemd: bool = True) -> None:
        self.devices = (self.disk,)
        super().start(systemd=systemd)
        self.name_disk()

    def name_disk(self) -> None:
        """As udev does, which no container has."""
        wait_for(lambda: Path(f"/proc/{self.inside()[1].partition('=')[2]}/root/dev/null").exists())
        self.run("mkdir", "-p", "/dev/disk/by-uuid")
        self.run("ln", "-sfn", self.disk, f"/dev/disk/by-uuid/{UUID}")


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Debian]:
    folder = tmp_path_factory.mktemp("disk")
    DebianWithDisk.disk = tool("losetup", "--find", "--show", str(blank(folder / "disk"))).strip()
    try:
        tool("mkfs.ext4", "-q", "-U", UUID, DebianWithDisk.disk)
        try:
            made = DebianWithDisk(pytestconfig.cache.mkdir("debian") / "base", tmp_path_factory.mktemp("debian"))
        except NoDebian as why:
            pytest.skip(f"no Debian with systemd can be made here: {why}")
        yield made
        made.close()
    finally:
        tool("losetup", "--detach", DebianWithDisk.disk)


@pytest.fixture
def agent(debian: Debian) -> Iterator[Agent]:
    with closing(debian.agent()) as made:
        yield made


def code(agent: Agent, key: Any, desired: Any) -> str:
    with pytest.raises(RemoteError) as caught:
        agent.set("Mount", key, desired, {}, {})
    return caught.value.fault.code


def test_a_file_system_is_mounted_now_and_with_each_start_and_goes_back(debian: Debian) -> None:
    with closing(debian.agent()) as agent:
        answer = agent.set("Mount", MODELS, WANTED, NONE, {})
        assert answer.after == WANTED
        assert agent.set("Mount", MODELS, WANTED, {}, {}).before == WANTED
        debian.run("sh", "-c", "echo weights > /srv/models-1.d/model; chown 1234 /srv/models-1.d/model")
        assert [dict(each.key) for each in agent.read(["Mount"])["Mount"]] == [MODELS]  # type: ignore[union-attr]
    debian.stop()
    debian.start()
    wait_for(lambda: "noatime" in debian.run("cat", "/proc/self/mountinfo") and debian.running)
    wait_for(lambda: lets_in(debian))
    with closing(debian.agent()) as agent:
        # systemd mounted it before the name was there, where it waits for none.
        assert (agent.get("Mount", MODELS) or {})["uuid"] == UUID
        assert debian.run("cat", "/srv/models-1.d/model") == "weights\n"
        undo = find_undo(RULES["Mount"], NONE, answer.after, agent.get("Mount", MODELS) or {})
        assert undo == NONE
        gone = agent.set("Mount", MODELS, undo, {}, {})
        assert gone.after == NONE
        assert "stays on its disk" in gone.warnings[0]
        assert not (debian.root / "srv/models-1.d").exists()
        assert list((debian.root / "etc/systemd/system").rglob("*.mount")) == []
        agent.set("Mount", MODELS, WANTED, {}, {})
        assert debian.run("cat", "/srv/models-1.d/model") == "weights\n"
        agent.set("Mount", MODELS, NONE, {}, {})


def lets_in(debian: Debian) -> bool:
    with suppress(WireError):
        debian.agent().close()
        return True
    return False


def test_a_mount_that_is_used_stays(agent: Agent, debian: Debian) -> None:
    agent.set("Mount", MODELS, WANTED, {}, {})
    debian.run("systemd-run", "--quiet", "--unit=uses", "--working-directory=/srv/models-1.d", "sleep", "999")
    assert code(agent, MODELS, {"uuid": None}) == "Winhost.InUse"
    assert (agent.get("Mount", MODELS) or {})["mounted"] is True
    debian.run("systemctl", "stop", "uses")
    agent.set("Mount", MODELS, NONE, {}, {})


def test_what_would_hide_files_or_is_of_others_is_refused(agent: Agent, debian: Debian) -> None:
    full = debian.root / "srv/full"
    full.mkdir()
    (full / "file").write_text("x")
    assert code(agent, {"path": "/srv/full"}, WANTED) == "Winhost.WrongPlace"
    (full / "file").unlink()
    agent.set("Mount", {"path": "/srv/full"}, WANTED, {}, {})
    agent.set("Mount", {"path": "/srv/full"}, NONE, {}, {})
    assert full.is_dir(), "it was there before"
    (debian.root / "etc/fstab").write_text("# none\nUUID=x /srv/models-1.d ext4 defaults 0 2\n")
    assert code(agent, MODELS, WANTED) == "Winhost.WrongPlace"
    (debian.root / "etc/fstab").unlink()
    unit = debian.root / "etc/systemd/system/srv-theirs.mount"
    unit.write_text("[Mount]\nWhat=tmpfs\nWhere=/srv/theirs\nType=tmpfs\n")
    assert code(agent, {"path": "/srv/theirs"}, WANTED) == "Winhost.NotOurs"
    unit.unlink()
    full.rmdir()
    full.symlink_to("/etc")
    assert code(agent, {"path": "/srv/full/x"}, WANTED) in ("ELOOP", "ENOTDIR")
    full.unlink()
    assert list((debian.root / "etc/systemd/system").rglob("*.mount")) == []


def test_a_disk_that_is_not_there_leaves_no_unit_that_would_hold_up_the_start(agent: Agent, debian: Debian) -> None:
    assert code(agent, MODELS, {**WANTED, "uuid": NOBODYS}) == "Winhost.WrongPlace"
    state = agent.get("Mount", MODELS) or {}
    assert (state["uuid"], state["mounted"]) == (NOBODYS, False)
    assert not list((debian.root / "etc/systemd/system").rglob("*.wants/*.mount"))
    agent.set("Mount", MODELS, NONE, {}, {})
