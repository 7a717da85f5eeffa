"""Real firmware: BootNext is consumed once, BootOrder stays, and in another machine the guard stops and Windows starts.

A small Debian stands in for the installer, for Windows and for Ubuntu, each started by its own boot entry; it runs the
scripts of the medium as the installer would.
"""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.autoinstall.layouts import MACHINE, WINDOWS_11, guid_of, manifest_of
from tests.autoinstall.made_disk import made_by_hand
from tests.autoinstall.rig import digest
from tests.linux.debian import sure
from tests.vm.qemu_vm import CODE, FIRMWARE, FLASH, QEMU, WITHOUT_KEYS, NoQemu, accelerator
from tests.vm.small_linux import NoLinux, make_linux
from winhost.autoinstall.guard_order import order_beside, storage_beside_windows
from winhost.autoinstall.install_plan import SCRIPTS
from winhost.autoinstall.installer_storage import guard_commands
from winhost.autoinstall.manifest import PartitionRole
from winhost.autoinstall.medium_files import script

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
HERE = Path(__file__).parent
# The ESP holds kernel and initramfs, three times and once.
ROWS = tuple((role, type_, 200 if role is PartitionRole.ESP else 32, kind) for role, type_, _, kind in WINDOWS_11)
MANIFEST = manifest_of(ROWS)
WINDOWS, INSTALLER, UBUNTU = 0x10, 0x11, 0x12  # the numbers of their entries
BOOT_S = 600  # of an emulated processor on a busy machine


class BootRig:
    """A machine whose firmware keeps its variables from one start to the next."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._accelerator = accelerator()
        self.folder, self.disk, self._variables = folder, folder / "disk", folder / "variables.fd"
        self._variables.write_bytes((FIRMWARE / WITHOUT_KEYS).read_bytes())
        early = {"version": 1, "early-commands": guard_commands("/cdrom/winhost")}
        document = early | {"storage": storage_beside_windows(MANIFEST)}
        files = {"program.py": (HERE / "installer_program.py").read_text(), "autoinstall.yaml": json.dumps(document)}
        # It restarts once it has been said what came of it.
        files |= {"usr/bin/systemctl": "#!/bin/busybox sh\nexit 0\n"}
        files |= {"options.py": "import struct\nimport uuid\n\n\n" + _function("option")}
        files |= {f"cdrom/winhost/{name}": script(name) for name in SCRIPTS}
        files |= {"cdrom/winhost/guard.json": json.dumps(order_beside(MANIFEST))}
        self.kernel, self.initramfs = make_linux(cache, files)
        made_by_hand(self.disk, MANIFEST)
        self._fill_esp()
        self.boots = 0

    def _fill_esp(self) -> None:
        esp, part = MANIFEST.with_role(PartitionRole.ESP), self.folder / "esp"
        with part.open("wb") as file:
            file.truncate(esp.size)
        sure("mkfs.vfat", "-F", "32", str(part))
        for path in ("EFI", "EFI/Microsoft", "EFI/Microsoft/Boot", "EFI/winhost", "EFI/ubuntu"):
            sure("mmd", "-i", str(part), f"::{path}")
        loaders = ("EFI/Microsoft/Boot/bootmgfw.efi", "EFI/winhost/installer.efi", "EFI/ubuntu/shimx64.efi")
        for path in loaders:
            sure("mcopy", "-i", str(part), str(self.kernel), f"::{path}")
        sure("mcopy", "-i", str(part), str(self.initramfs), "::EFI/initramfs")
        with part.open("rb") as source, self.disk.open("r+b") as disk:
            disk.seek(esp.offset)
            while piece := source.read(1 << 20):
                disk.write(piece)
        part.unlink()

    def start(self, *more: str, uuid: str = MACHINE.uuid, sku: str = "none") -> dict[str, Any]:
        """One start, until it restarts: what the program said."""
        self.boots += 1
        console = self.folder / f"console-{self.boots}"
        machine = f"type=1,uuid={uuid},serial={MACHINE.serial},sku={sku}"
        command = [*QEMU, *self._accelerator, "-smp", "1", "-m", "1024", "-no-reboot", "-smbios", machine]
        command += ["-uuid", uuid, "-drive", f"{FLASH},readonly=on,file={FIRMWARE / CODE}"]
        command += ["-drive", f"{FLASH},file={self._variables}", "-serial", f"file:{console}"]
        command += ["-drive", f"if=none,id=disk,format=raw,cache=unsafe,file={self.disk}"]
        command += ["-device", "virtio-blk-pci,drive=disk,serial=S5XNNG0R", *more]
        began = time.monotonic()
        subprocess.run(command, check=True, timeout=BOOT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        text = console.read_text(errors="replace")
        found = re.search(r"^winhost:(\{.*\})", text, re.MULTILINE)
        assert found, (time.monotonic() - began, text[-2000:])
        said: dict[str, Any] = json.loads(found[1])
        assert "failed" not in said, said
        return said


def _function(name: str) -> str:
    """Of the tests of the scripts, which write entries as firmware has them."""
    text = (HERE.parent / "autoinstall/test_installer_boot.py").read_text()
    found = re.search(rf"^def {name}\(.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)
    assert found
    return found[0]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> BootRig:
    try:
        return BootRig(tmp_path_factory.mktemp("boots"), pytestconfig.cache.mkdir("small-linux") / "bookworm")
    except (NoQemu, NoLinux) as why:
        pytest.skip(f"nothing can be started here: {why}")


def test_each_entry_starts_once_and_windows_stays_first(rig: BootRig) -> None:
    before = digest(rig.disk)
    words = "console=ttyS0 no_timer_check quiet role=setup"
    armed = rig.start("-kernel", str(rig.kernel), "-initrd", str(rig.initramfs), "-append", words)
    assert armed["after"] == {"BootNext": [INSTALLER], "BootOrder": [WINDOWS, INSTALLER]}

    installer = rig.start()
    assert (installer["role"], installer["before"]["BootCurrent"]) == ("installer", [INSTALLER])
    assert installer["before"]["BootNext"] == []  # consumed
    assert installer["before"]["BootOrder"][:2] == [WINDOWS, INSTALLER]
    assert (installer["guard"], installer["again"]) == (0, 0), installer["said"]
    assert installer["disk"]["path"] == "/dev/vda"
    assert installer["order"][0] == 0, installer["order"]
    assert installer["after"]["BootOrder"][:3] == [WINDOWS, UBUNTU, INSTALLER]
    assert installer["after"]["BootNext"] == [UBUNTU]

    ubuntu = rig.start()
    assert (ubuntu["role"], ubuntu["before"]["BootCurrent"], ubuntu["before"]["BootNext"]) == ("ubuntu", [UBUNTU], [])
    assert ubuntu["before"]["BootOrder"][:3] == [WINDOWS, UBUNTU, INSTALLER]

    windows = rig.start(sku="arm")
    assert (windows["role"], windows["before"]["BootCurrent"]) == ("windows", [WINDOWS])
    assert windows["after"]["BootNext"] == [INSTALLER]

    stopped = rig.start(uuid=guid_of(0xBAD))  # the disk in another machine
    assert stopped["role"] == "installer"
    assert stopped["guard"] == 1
    assert "stopped before the first write: machine-uuid" in stopped["said"]
    assert stopped["disk"]["serial"] == "WINHOST-UNRESOLVED"
    assert stopped["back"][0] == 0, stopped["back"]
    assert stopped["after"]["BootNext"] == [WINDOWS]

    back = rig.start()
    assert (back["role"], back["before"]["BootCurrent"], back["before"]["BootNext"]) == ("windows", [WINDOWS], [])
    assert back["before"]["BootOrder"][:3] == [WINDOWS, UBUNTU, INSTALLER]
    assert digest(rig.disk) == before  # no byte of the disk was written in six starts
