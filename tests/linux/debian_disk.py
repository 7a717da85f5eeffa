"""A real Debian with a disk of its own, which is a loop device of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.linux.debian import Debian, NoDebian
from tests.linux.loops import blank, tool
from tests.processes import wait_for

UUID = "5f0e2d7a-9d1c-4b8e-8f3a-1c2d3e4f5a6b"
SERIAL = "WINHOST-TEST-1"
NO_LOOPS = pytest.mark.skipif(not Path("/dev/loop-control").exists(), reason="this machine has no loop devices")


class DebianWithDisk(Debian):
    """A Debian with a disk. disk: the device on this machine; names: those that udev would give it, which no
    container has.
    """

    disk = ""

    def start(self, *, systemd: bool = True) -> None:
        self.devices = (self.disk,)
        super().start(systemd=systemd)
        wait_for(lambda: Path(f"/proc/{self.inside()[1].partition('=')[2]}/root/dev/null").exists())
        number = Path(f"/sys/class/block/{Path(self.disk).name}/dev").read_text().strip()
        self.run("mkdir", "-p", "/dev/disk/by-uuid", "/run/udev/data")
        self.run("ln", "-sfn", self.disk, f"/dev/disk/by-uuid/{UUID}")
        self.run("sh", "-c", f"printf 'E:ID_SERIAL_SHORT={SERIAL}\\n' >/run/udev/data/b{number}")


@contextmanager
def debian_with_disk(base: Path, folder: Path, *, formatted: bool) -> Iterator[DebianWithDisk]:
    """Start a Debian with a disk. The disk is named UUID if it has, or gets, a file system with that UUID."""
    DebianWithDisk.disk = tool("losetup", "--find", "--show", str(blank(folder / "disk"))).strip()
    try:
        if formatted:
            tool("mkfs.ext4", "-q", "-U", UUID, DebianWithDisk.disk)
        try:
            made = DebianWithDisk(base, folder)
        except NoDebian as why:
            pytest.skip(f"no Debian with systemd can be made here: {why}")
        try:
            yield made
        finally:
            made.close()
    finally:
        tool("losetup", "--detach", DebianWithDisk.disk)
