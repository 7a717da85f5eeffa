"""File systems for data mounted in a real Debian, with each start, and unmounted without a byte of them gone."""

from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.linux.debian import Debian
from tests.linux.debian_disk import NO_LOOPS, UUID, debian_with_disk
from tests.processes import wait_for
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError, WireError
from winhost.core.undo import find_undo
from winhost.resources.registry import RULES

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(2400),  # they take turns, and one is fetched
    NO_LOOPS,
]

NOBODYS = "00000000-0000-4000-8000-000000000000"
MODELS = {"path": "/srv/models-1.d"}
WANTED = {"uuid": UUID, "filesystem": "ext4", "options": "noatime", "mounted": True}
NONE = {"uuid": None, "filesystem": None, "options": None, "mounted": False}


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Debian]:
    base = pytestconfig.cache.mkdir("debian") / "base"
    with debian_with_disk(base, tmp_path_factory.mktemp("debian"), formatted=True) as made:
        yield made


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
    assert code(agent, {"path": "/srv/full"}, WANTED) == "Winhost.WrongState"
    (full / "file").unlink()
    agent.set("Mount", {"path": "/srv/full"}, WANTED, {}, {})
    agent.set("Mount", {"path": "/srv/full"}, NONE, {}, {})
    assert full.is_dir(), "it was there before"
    (debian.root / "etc/fstab").write_text("# none\nUUID=x /srv/models-1.d ext4 defaults 0 2\n")
    assert code(agent, MODELS, WANTED) == "Winhost.WrongState"
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
    assert code(agent, MODELS, {**WANTED, "uuid": NOBODYS}) == "Winhost.WrongState"
    state = agent.get("Mount", MODELS) or {}
    assert (state["uuid"], state["mounted"]) == (NOBODYS, False)
    assert not list((debian.root / "etc/systemd/system").rglob("*.wants/*.mount"))
    agent.set("Mount", MODELS, NONE, {}, {})
