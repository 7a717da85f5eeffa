"""A VM in QEMU: UEFI with Secure Boot, its disk and its CD on one SCSI controller, a serial port, its own network."""

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.connect.sshd import free_port
from tests.linux.debian import sure
from tests.processes import PATIENCE_S, started, wait_for

FIRMWARE = Path("/usr/share/OVMF")
# Built without System Management Mode, which KVM in a VM may lack: it enforces Secure Boot all the same.
CODE, WITH_KEYS, WITHOUT_KEYS = "OVMF_CODE_4M.fd", "OVMF_VARS_4M.ms.fd", "OVMF_VARS_4M.fd"
NETWORK, GATEWAY, RESOLVER, GUEST = "192.0.2.0/24", "192.0.2.1", "192.0.2.53", "192.0.2.10"
QEMU = ("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none")
FLASH = "if=pflash,format=raw"
WITH_KVM = ("-machine", "q35", "-accel", "kvm", "-cpu", "host")
# An AMD: against Meltdown, which others are taken to have, each system call would cost a flush of all translations.
EMULATED = ("-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "qemu64")
EMULATE = "WINHOST_EMULATE"
FIRMWARE_S = 30  # until it looks for a disk


class NoQemu(Exception):
    """Why there is none."""


@dataclass(frozen=True)
class Shape:
    """What the hypervisor says of a VM. mac: 12 digits."""

    id: str
    mac: str
    secure_boot: bool


class QemuVm:
    """disk: a VHDX, which stays as it is: what the guest writes goes to a file beside it, of a disk that is larger, as
    Resize-VHD makes it.
    """

    def __init__(self, folder: Path, disk: Path, size: str = "8G") -> None:
        self._accelerator = accelerator()
        self.folder, self.port = folder, free_port()
        self.console = folder / "console.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._disk, self._variables = folder / "disk.qcow2", folder / "variables.fd"
        sure("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(disk), "-F", "vhdx", str(self._disk), size)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, shape: Shape, disc: bytes | None) -> None:
        """disc: what is in its drive."""
        assert not self.running
        if not self._variables.exists():
            keys = FIRMWARE / (WITH_KEYS if shape.secure_boot else WITHOUT_KEYS)
            self._variables.write_bytes(keys.read_bytes())
        command = [*QEMU, *self._accelerator, "-smp", "2", "-m", "1536", *self._devices(shape, disc)]
        with (self.folder / "qemu.log").open("ab") as said:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        wait_for(lambda: self._monitor.exists() or not self.running)
        assert self.running, (self.folder / "qemu.log").read_text()

    def _devices(self, shape: Shape, disc: bytes | None) -> list[str]:
        mac = ":".join(shape.mac[at : at + 2] for at in range(0, 12, 2))
        cd = "if=none,id=cd,media=cdrom"
        if disc is not None:
            path = self.folder / "seed.iso"
            path.touch(0o600)
            path.write_bytes(disc)
            cd += f",format=raw,readonly=on,file={path}"
        self._monitor.unlink(missing_ok=True)
        # It reaches nobody, and is reached at the one port alone.
        network = f"user,id=net,restrict=on,net={NETWORK},host={GATEWAY},dns={RESOLVER}"
        return [
            *("-uuid", shape.id, "-qmp", f"unix:{self._monitor},server=on,wait=off"),
            *("-drive", f"{FLASH},readonly=on,file={FIRMWARE / CODE}", "-drive", f"{FLASH},file={self._variables}"),
            *("-device", "virtio-scsi-pci", "-device", "virtio-rng-pci"),
            *("-drive", f"if=none,id=disk,format=qcow2,cache=unsafe,file={self._disk}"),
            *("-device", "scsi-hd,drive=disk,bootindex=0", "-drive", cd, "-device", "scsi-cd,drive=cd,id=dvd"),
            *("-netdev", f"{network},hostfwd=tcp:127.0.0.1:{self.port}-{GUEST}:22"),
            *("-device", f"virtio-net-pci,netdev=net,mac={mac}"),
            *("-chardev", f"file,id=com1,append=on,path={self.console}", "-serial", "chardev:com1"),
        ]

    @property
    def _monitor(self) -> Path:
        return self.folder / "monitor"

    def eject(self) -> None:
        """Whatever is in its drive, also where the guest has locked it."""
        ask(self._monitor, "eject", id="dvd", force=True)

    def shut_down(self, within: float) -> None:
        """By its power button; the guest does the rest."""
        assert self._process is not None
        if self.running:
            ask(self._monitor, "system_powerdown")
            self._process.wait(within)

    def turn_off(self) -> None:
        """As if its power failed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)


def ask(monitor: Path, command: str, **arguments: Any) -> Any:
    """QEMU's own protocol: what it returns."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(PATIENCE_S)
        line.connect(str(monitor))
        with line.makefile("rw") as talk:
            talk.readline()
            for words in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                talk.write(json.dumps(words) + "\n")
                talk.flush()
                answer: dict[str, Any] = {}
                while "return" not in answer:
                    answer = json.loads(talk.readline())
                    assert "error" not in answer, answer
    return answer["return"]


def accelerator() -> tuple[str, ...]:
    """KVM; the processor is emulated where that cannot be had, and somebody has the time. Raises NoQemu."""
    if shutil.which(QEMU[0]) is None or not (FIRMWARE / CODE).exists():
        raise NoQemu("there is no QEMU with OVMF (Debian: qemu-system-x86, ovmf)")
    if has_kvm():
        return WITH_KVM
    if not os.environ.get(EMULATE):
        raise NoQemu(f"KVM cannot run a firmware here; {EMULATE}=1 emulates a processor, for some 20 minutes")
    return EMULATED


@cache
def has_kvm() -> bool:
    """Whether it runs a firmware, too: where this machine is a VM itself, it may be there and not do that."""
    with TemporaryDirectory() as folder, suppress(OSError, ValueError):
        monitor, console = Path(folder) / "monitor", Path(folder) / "console"
        command = [*QEMU, *WITH_KVM, "-drive", f"{FLASH},readonly=on,file={FIRMWARE / CODE}"]
        command += ["-qmp", f"unix:{monitor},server=on,wait=off", "-serial", f"file:{console}"]
        said = subprocess.DEVNULL
        with started(command, stdin=said, stdout=said, stderr=said) as process:
            wait_for(lambda: monitor.exists() or process.poll() is not None)
            end, runs = time.monotonic() + FIRMWARE_S, False
            while not runs and time.monotonic() < end and process.poll() is None:
                if ask(monitor, "query-status")["status"] != "running":
                    break
                time.sleep(0.2)
                runs = b"BdsDxe" in console.read_bytes()  # it looks for something to start
            process.kill()
            return runs
    return False
