"""Disks for data on real loop devices: what is empty is formatted, and of everything else not a byte changes."""

import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.linux.loops import MIB, LoopDisk, blank, loop_disk, tool
from tests.linux.sandbox import Sandbox
from tests.processes import PATIENCE_S
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="this machine has no loop devices"),
]

UUID = "5f0e2d7a-9d1c-4b8e-8f3a-1c2d3e4f5a6b"
WANTED = {"filesystem": "ext4", "label": "models", "uuid": UUID}
CONSENT = {"accept": ["data"]}
SIZE = 48 * MIB


def asked(agent: Agent, key: Any, desired: Any, how: Any = CONSENT) -> Any:
    return agent.set("DataDisk", key, desired, {}, how)


def refusal(agent: Agent, key: Any, desired: Any = WANTED, how: Any = CONSENT) -> tuple[str, str]:
    with pytest.raises(RemoteError) as caught:
        asked(agent, key, desired, how)
    return caught.value.fault.code, caught.value.fault.message


@pytest.mark.parametrize(("kind", "mib"), [("ext4", 48), ("xfs", 320)])
def test_an_empty_disk_is_formatted_as_it_is_wanted_and_once(
    sandbox: Sandbox, agent: Agent, tmp_path: Path, kind: str, mib: int
) -> None:
    wanted = {**WANTED, "filesystem": kind}
    with loop_disk(sandbox, blank(tmp_path / "disk", mib), "EMPTY") as disk:
        before = agent.get("DataDisk", disk.key) or {}
        assert (before["holds"], before["filesystem"], before["uuid"]) == ([], None, None)
        answer = asked(agent, disk.key, wanted)
        assert {name: answer.after[name] for name in wanted} == wanted
        assert tool("blkid", "--probe", "--match-tag", "UUID", "--output", "value", disk.device).strip() == UUID
        formatted = disk.hash()
        assert asked(agent, disk.key, wanted).before == answer.after
        assert refusal(agent, disk.key, {"filesystem": "xfs" if kind == "ext4" else "ext4"})[0] == "Winhost.NotEmpty"
        assert refusal(agent, disk.key, {**wanted, "label": "other"})[0] == "Winhost.NotEmpty"
        assert disk.hash() == formatted


def test_nothing_is_formatted_without_consent_or_by_half_a_wish(sandbox: Sandbox, agent: Agent, tmp_path: Path) -> None:
    with loop_disk(sandbox, blank(tmp_path / "disk"), "EMPTY") as disk:
        found = disk.hash()
        assert refusal(agent, disk.key, WANTED, {})[0] == "Winhost.NotAccepted"
        for desired in ({"label": "models"}, {"filesystem": "ntfs"}, {**WANTED, "uuid": "$(reboot)"}):
            assert refusal(agent, disk.key, desired)[0] == "Winhost.BadRequest"
        assert refusal(agent, disk.key, {**WANTED, "label": "-F /dev/vda"})[0] == "Winhost.BadRequest"
        for key in ({"serial": "OTHER", "size": disk.key["size"]}, {"serial": "EMPTY", "size": "1"}):
            assert refusal(agent, key)[0] == "Winhost.NotFound"
        assert disk.hash() == found


# ---- what is on a disk


def md_superblock(sector: int) -> bytes:
    """Write a superblock of Linux software RAID, version 1: magic, version, and offset."""
    head = struct.pack("<4I", 0xA92B4EFC, 1, 0, 0) + b"\1" * 16 + b"host:array".ljust(32, b"\0")
    return head.ljust(144, b"\0") + struct.pack("<Q", sector) + b"\0" * 104


def old_md_superblock() -> bytes:
    return struct.pack("<4I", 0xA92B4EFC, 0, 90, 0).ljust(4096, b"\1")


def zfs_label() -> bytes:
    """Write uberblocks of ZFS, from 128 KiB on."""
    return b"".join(struct.pack("<5Q", 0x00BAB10C, 5000, number, 1, 1).ljust(1024, b"\0") for number in range(128))


MIDDLE = SIZE // 256 * 100
WRITTEN: dict[str, dict[int, bytes]] = {
    "the sign of NTFS": {3: b"NTFS    ", 510: b"\x55\xaa"},
    "the sign of BitLocker": {0: b"\xebR\x90-FVE-FS-", 510: b"\x55\xaa"},
    "the sign of exFAT": {3: b"EXFAT   ", 510: b"\x55\xaa"},
    "an ISO image": {32769: b"CD001\1", 34817: b"\xffCD001\1"},
    "a member of a RAID, version 1.2": {4096: md_superblock(8)},
    "a member of a RAID, version 1.0": {SIZE - 8192: md_superblock((SIZE - 8192) // 512)},
    "a member of a RAID, version 0.90": {SIZE - 64 * 1024: old_md_superblock()},
    "a member of a ZFS pool": {128 * 1024: zfs_label()},
    "the last label of a ZFS pool": {SIZE - 128 * 1024: zfs_label()},
    "a member of bcache": {4096 + 24: bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81")},
    "a member of Ceph": {0: b"bluestore block device\n0e5a6b2c-1f4d-4f4e-9a6f-5b7a4b8d9c3e\n"},
    "a disk of DRBD": {SIZE - 4096: b"\0" * 60 + bytes.fromhex("8374026b")},
    "the database of an Oracle ASM": {32: b"ORCLDISKDATA0001"},
    "one byte at its beginning": {0: b"\1"},
    "one byte at the end of its first MiB": {MIB - 1: b"\1"},
    "one byte at its end": {SIZE - 1: b"\1"},
    "bytes in its middle": {MIDDLE: b"rows of a database"},
}
MADE: dict[str, Callable[[LoopDisk], Any]] = {
    "a partition table without partitions": lambda disk: tool("sgdisk", "--clear", str(disk.file)),
    "a partition table of MS-DOS": lambda disk: partitioned(disk, "label: dos\n"),
    "partitions": lambda disk: partitioned(disk, "label: gpt\nsize=8MiB\n"),
    "the second half of a GPT": lambda disk: (tool("sgdisk", "--clear", str(disk.file)), disk.write(0, b"\0" * MIB)),
    "ext4": lambda disk: tool("mkfs.ext4", "-q", str(disk.file)),
    "ext2 without a name": lambda disk: tool("mkfs.ext2", "-q", str(disk.file)),
    "swap": lambda disk: tool("mkswap", str(disk.file)),
    "LUKS": lambda disk: encrypted(disk),
    "a volume of LVM": lambda disk: tool("pvcreate", "--config", PVS, "-ff", "-y", disk.device),
    "ext4 that wipefs has taken the sign of": lambda disk: (
        tool("mkfs.ext4", "-q", str(disk.file)),
        tool("wipefs", "--all", str(disk.file)),
    ),
}
PVS = 'devices { use_devicesfile=0 scan="/dev" types=["loop", 16] } global { use_lvmlockd=0 }'


def partitioned(disk: LoopDisk, script: str) -> None:
    subprocess.run(["sfdisk", "--quiet", str(disk.file)], input=script, text=True, check=True, timeout=PATIENCE_S)


def encrypted(disk: LoopDisk) -> None:
    command = ["cryptsetup", "luksFormat", "--batch-mode", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"]
    subprocess.run([*command, str(disk.file), "-"], input=b"a key", check=True, timeout=PATIENCE_S)


def stays(agent: Agent, disk: LoopDisk) -> str:
    """Return the message of the refusal."""
    tool("blockdev", "--flushbufs", disk.device)
    found = disk.hash()
    state = agent.get("DataDisk", disk.key) or {}
    assert state["holds"] != []
    code, message = refusal(agent, disk.key, {name: WANTED[name] for name in WANTED if state[name] != WANTED[name]})
    tool("blockdev", "--flushbufs", disk.device)
    assert disk.hash() == found
    assert code == "Winhost.NotEmpty"
    return message


@pytest.mark.parametrize("name", WRITTEN)
def test_what_somebody_wrote_stays(sandbox: Sandbox, agent: Agent, tmp_path: Path, name: str) -> None:
    with loop_disk(sandbox, blank(tmp_path / "disk"), "FULL") as disk:
        for at, data in WRITTEN[name].items():
            disk.write(at, data)
        stays(agent, disk)


@pytest.mark.parametrize("name", MADE)
def test_what_a_program_made_stays(sandbox: Sandbox, agent: Agent, tmp_path: Path, name: str) -> None:
    with loop_disk(sandbox, blank(tmp_path / "disk"), "FULL") as disk:
        MADE[name](disk)
        stays(agent, disk)


def test_btrfs_of_which_only_the_second_superblock_is_left_stays(
    sandbox: Sandbox, agent: Agent, tmp_path: Path
) -> None:
    with loop_disk(sandbox, blank(tmp_path / "disk", 128), "FULL") as disk:
        tool("mkfs.btrfs", "--quiet", str(disk.file))
        disk.write(0, b"\0" * MIB)
        disk.write(-MIB, b"\0" * MIB)
        assert "middle" in stays(agent, disk)


# ---- who uses it


@contextmanager
def opened(disk: LoopDisk) -> Iterator[None]:
    number = os.open(disk.device, os.O_RDONLY | os.O_EXCL)
    try:
        yield
    finally:
        os.close(number)


def test_a_disk_that_the_kernel_uses_is_not_even_read(sandbox: Sandbox, agent: Agent, tmp_path: Path) -> None:
    with loop_disk(sandbox, blank(tmp_path / "disk"), "USED") as disk, opened(disk):
        found = disk.hash()
        assert refusal(agent, disk.key)[0] == "Winhost.NotEmpty"
        assert disk.hash() == found


def test_a_disk_that_is_mounted_stays_wherever_it_is(sandbox: Sandbox, agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    with loop_disk(sandbox, blank(tmp_path / "disk"), "USED") as disk:
        tool("mkfs.ext4", "-q", disk.device)
        tool("mount", disk.device, str(tmp_path / "at"))  # outside of the sandbox
        try:
            (tmp_path / "at/model").write_text("weights\n")
            assert refusal(agent, disk.key)[0] == "Winhost.NotEmpty"
            assert (tmp_path / "at/model").read_text() == "weights\n"
        finally:
            tool("umount", str(tmp_path / "at"))


def test_a_disk_that_cannot_be_written_stays(sandbox: Sandbox, agent: Agent, tmp_path: Path) -> None:
    with loop_disk(sandbox, blank(tmp_path / "disk"), "USED", "--read-only") as disk:
        assert "read-only" in refusal(agent, disk.key)[1]


def test_two_ways_to_one_disk_are_none(sandbox: Sandbox, agent: Agent, tmp_path: Path) -> None:
    with ExitStack() as stack:
        disks = [stack.enter_context(loop_disk(sandbox, blank(tmp_path / name), "TWICE")) for name in ("a", "b")]
        found = [disk.hash() for disk in disks]
        assert refusal(agent, disks[0].key)[0] == "Winhost.NotEmpty"
        assert [disk.hash() for disk in disks] == found
