"""What the small Linux does in the place of an installer, of Windows and of Ubuntu: the program of its initramfs.

By the role that its boot entry gives it, and by the SKU of the machine, by which a test tells it more. It runs the very
scripts of the medium, and says what it found in one line on the serial port.
"""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

sys.path[:0] = ["/cdrom/winhost", "/"]
boot, option = import_module("boot"), import_module("options").option  # as they are called there

VARIABLES = boot.BootVariables(Path("/"))
ESP = json.loads(Path("/cdrom/winhost/guard.json").read_text())["windows_esp"]
WORDS = "initrd=\\EFI\\initramfs console=ttyS0 no_timer_check quiet role="
INSTALLER = "\\efi\\winhost\\installer.efi"
# Numbers that the firmware has no use for: it takes the first free ones for what it finds, and one that no order names
# counts as free.
LOADERS = {"windows": (0x10, boot.WINDOWS), "installer": (0x11, INSTALLER), "ubuntu": (0x12, boot.UBUNTU)}


def enter(role: str) -> None:
    number, loader = LOADERS[role]
    data = option(role, ESP, loader, (WORDS + role + "\0").encode("utf-16-le"))
    file = Path(f"/sys/firmware/efi/efivars/Boot{number:04X}-{boot.GLOBAL}")
    file.write_bytes(b"\7\0\0\0" + data)


def run(*words: str) -> tuple[int, str]:
    ran = subprocess.run(["python3", "-I", *words], capture_output=True, text=True, timeout=300)
    return ran.returncode, ran.stderr.strip()


def act(role: str, told: str) -> dict[str, object]:
    if role == "setup":  # as Windows and winhost leave them: Windows first, the installer last, and next, once
        enter("windows")
        enter("installer")
        VARIABLES.write("BootOrder", [0x10, 0x11])
        VARIABLES.write("BootNext", [VARIABLES.entry(ESP, INSTALLER)])
    elif role == "installer":
        code, words = run("/cdrom/winhost/guard.py")
        resolved = json.loads(Path("/autoinstall.yaml").read_text())["storage"]["config"][0]
        if code:
            return {"guard": code, "said": words, "disk": resolved, "back": run("/cdrom/winhost/boot.py", "windows")}
        again, words = run("/cdrom/winhost/guard.py", "again")
        enter("ubuntu")
        VARIABLES.write("BootOrder", [0x12, *VARIABLES.read("BootOrder")])  # as grub-install does
        Path("/target/boot/efi/EFI/ubuntu").mkdir(parents=True)
        last = run("/cdrom/winhost/boot.py", "order")
        return {"guard": code, "again": again, "said": words, "disk": resolved, "order": last}
    elif told == "arm":
        VARIABLES.write("BootNext", [VARIABLES.entry(ESP, INSTALLER)])  # by what it starts, whatever its number is now
    return {}


def main() -> None:
    found = re.search(r"role=(\w+)", Path("/proc/cmdline").read_text())
    role = found[1] if found else "none"
    before = {name: VARIABLES.read(name) for name in ("BootCurrent", "BootNext", "BootOrder")}
    try:
        did: dict[str, object] = act(role, Path("/sys/class/dmi/id/product_sku").read_text().strip())
    except Exception as error:  # noqa: BLE001 - it is told, where a test looks for it
        did = {"failed": repr(error)}
    after = {name: VARIABLES.read(name) for name in ("BootNext", "BootOrder")}
    said = json.dumps({"role": role, "before": before, "after": after, **did})
    Path("/dev/ttyS0").write_text(f"\nwinhost:{said}\n")


main()
