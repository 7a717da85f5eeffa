"""A machine for the guard: /sys, /proc and /dev of an installer, with images for disks."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.autoinstall.layouts import MACHINE
from winhost.autoinstall.guard_order import order_beside, storage_beside_windows
from winhost.autoinstall.installer_guard import InstallDisk, main
from winhost.autoinstall.installer_storage import guard_commands
from winhost.autoinstall.manifest import DiskManifest, MachineIdentity, PartitionRole
from winhost.model.units import Bytes, MiB

Maker = Callable[[Path, DiskManifest], None]


@dataclass(frozen=True)
class Rig:
    """root: what the guard takes for the installer's root; folder: where the guard's order is."""

    root: Path
    folder: Path

    def device(self, name: str) -> Path:
        return self.root / "dev" / name

    def attach(self, name: str, image: Path, sector: Bytes = 512, serial: str = "S5XNNG0R") -> None:
        """As the kernel shows a disk that it has found."""
        self.device(name).parent.mkdir(parents=True, exist_ok=True)
        if not self.device(name).exists():
            image.rename(self.device(name))
        sys = self.root / "sys/block" / name
        for file, text in {
            "size": self.device(name).stat().st_size // 512,
            "queue/logical_block_size": sector,
            "device/serial": serial,
        }.items():
            told(sys / file, text)
        for entry in InstallDisk(self.root, name).entries:
            told(sys / f"{name}p{entry.number}/partition", entry.number)
            told(sys / f"{name}p{entry.number}/start", entry.offset // 512)
            told(sys / f"{name}p{entry.number}/size", entry.size // 512)

    def order(self, order: dict[str, Any], storage: dict[str, Any]) -> None:
        told(self.folder / "guard.json", json.dumps(order))
        document = {"version": 1, "early-commands": guard_commands(str(self.folder)), "storage": storage}
        told(self.root / "autoinstall.yaml", json.dumps(document))

    def guard(self, *, again: bool = False) -> int:
        return main(self.folder, self.root, again=again)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the installer's file as somebody does with an editor."""
        document = json.loads((self.root / "autoinstall.yaml").read_text())
        change(document)
        told(self.root / "autoinstall.yaml", json.dumps(document))

    @property
    def resolved(self) -> dict[str, Any]:
        storage: dict[str, Any] = json.loads((self.root / "autoinstall.yaml").read_text())["storage"]
        return storage


def told(file: Path, text: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def bare_rig(tmp: Path, machine: MachineIdentity = MACHINE) -> Rig:
    rig = Rig(tmp / "root", tmp / "cdrom")
    told(rig.root / "sys/class/dmi/id/product_uuid", machine.uuid)
    told(rig.root / "sys/class/dmi/id/product_serial", machine.serial or "Default string")
    told(rig.root / "proc/self/mounts", "overlay / overlay rw 0 0")
    told(rig.root / "proc/swaps", "Filename\tType\tSize\tUsed\tPriority")
    for folder in ("sys/firmware/efi/efivars", "sys/block", "dev"):
        (rig.root / folder).mkdir(parents=True)
    return rig


def rig_of(tmp: Path, manifest: DiskManifest, make: Maker) -> Rig:
    """The machine as the manifest has it, at the moment when the guard begins."""
    rig = bare_rig(tmp, manifest.machine)
    image = tmp / "image"
    make(image, manifest)
    rig.attach("nvme0n1", image, manifest.sector)
    rig.order(order_beside(manifest), storage_beside_windows(manifest))
    return rig


def outside(manifest: DiskManifest) -> list[tuple[Bytes, Bytes]]:
    """All spans of the disk that are not of the target."""
    target = manifest.with_role(PartitionRole.TARGET)
    return [(0, target.offset), (target.end, manifest.size)]


def digest(image: Path, spans: Iterable[tuple[Bytes, Bytes]] | None = None) -> tuple[str, Bytes]:
    """SHA-256 of these bytes of the image, or of all of them, and how many there were."""
    total, hashed = 0, hashlib.sha256()
    with image.open("rb") as file:
        for begin, end in spans if spans is not None else [(0, image.stat().st_size)]:
            file.seek(begin)
            while begin < end:
                piece = file.read(min(MiB, end - begin))
                assert piece, "the image has become shorter"
                hashed.update(piece)
                begin, total = begin + len(piece), total + len(piece)
    return hashed.hexdigest(), total
