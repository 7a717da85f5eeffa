"""Loop devices with a serial number, as disks of a test."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.linux.sandbox import SYSTEM_PATH, Sandbox
from tests.processes import PATIENCE_S

MIB = 1 << 20


@dataclass(frozen=True)
class LoopDisk:
    """A loop device. file: its content; device: its path in /dev; serial: the one that udev would report."""

    file: Path
    device: str
    serial: str

    @property
    def key(self) -> dict[str, str]:
        return {"serial": self.serial, "size": str(self.file.stat().st_size)}

    def write(self, at: int, data: bytes) -> None:
        """Write bytes at an offset; a negative one counts from the end."""
        with self.file.open("r+b") as file:
            file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            file.write(data)

    def hash(self) -> str:
        digest = sha256()
        with self.file.open("rb") as file:
            for piece in iter(lambda: file.read(MIB), b""):
                digest.update(piece)
        return digest.hexdigest()


def tool(*command: str) -> str:
    path = f"{os.environ['PATH']}:{SYSTEM_PATH}"
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": path}, timeout=PATIENCE_S)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def loop_disk(sandbox: Sandbox, file: Path, serial: str, *options: str) -> Iterator[LoopDisk]:
    """Attach an existing file."""
    device = tool("losetup", "--find", "--show", *options, str(file)).strip()
    number = Path(f"/sys/class/block/{Path(device).name}/dev").read_text().strip()
    told = f"/run/udev/data/b{number}"
    sandbox.write(told, f"I:1\nE:ID_SERIAL=loop_{serial}\nE:ID_SERIAL_SHORT={serial}\n")
    try:
        yield LoopDisk(file, device, serial)
    finally:
        sandbox.path(told).unlink()
        tool("losetup", "--detach", device)


def blank(file: Path, mib: int = 48) -> Path:
    with file.open("wb") as made:
        made.truncate(mib * MIB)
    return file
