"""Set the system that the firmware starts next, and by default. Runs in the installer; the text is constant, and uses
only the standard library.

`windows`, after a failed installation: set BootNext to Windows, and restart. `order`, after a successful one: put
Windows first in BootOrder, where Ubuntu's installer has put Ubuntu; set BootNext to Ubuntu for one start; and write the
label of the target next to the boot loader, which tells Windows that the installation is done. Both refuse unless
exactly one entry starts each of these systems from its recorded ESP. Each variable is read back, because some firmware
accepts a value without storing it.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
WINDOWS = "\\efi\\microsoft\\boot\\bootmgfw.efi"
UBUNTU = "\\efi\\ubuntu\\shimx64.efi"
ATTRIBUTES = 7  # non-volatile, with access for boot services and at run time
MEDIA, HARD_DRIVE, FILE_PATH = 4, 1, 4
DIGITS = "[0-9A-F]" * 4


def nodes(path: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the nodes of a device path: type, subtype and content."""
    while len(path) >= 4:
        kind, sub, length = struct.unpack_from("<BBH", path)
        if length < 4 or length > len(path):
            return
        yield kind, sub, path[4:length]
        path = path[length:]


def starts(option: bytes, esp: str, loader: str) -> bool:
    """Tell whether this Boot#### starts that loader from the partition with this GUID."""
    if len(option) < 6:
        return False
    (length,) = struct.unpack_from("<H", option, 4)
    end = 6
    while end + 2 <= len(option) and option[end : end + 2] != b"\0\0":
        end += 2
    partition, file = "", ""
    for kind, sub, content in nodes(option[end + 2 : end + 2 + length]):
        if (kind, sub) == (MEDIA, HARD_DRIVE) and len(content) >= 38:
            partition = str(uuid.UUID(bytes_le=content[20:36]))
        elif (kind, sub) == (MEDIA, FILE_PATH):
            file += content.decode("utf-16-le", "replace").rstrip("\0")
    return partition == esp and file.lower() == loader


class BootVariables:
    """The firmware's boot variables, in the file system in which Linux shows them."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "sys/firmware/efi/efivars"

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}-{GLOBAL}"

    def entry(self, esp: str, loader: str) -> int:
        """Return the number of the only entry that starts this loader from this ESP. Raises ValueError."""
        files = sorted(self._folder.glob(f"Boot{DIGITS}-{GLOBAL}"))
        found = [int(file.name[4:8], 16) for file in files if starts(file.read_bytes()[4:], esp, loader)]
        if len(found) != 1:
            raise ValueError(f"{len(found)} boot entries start {loader} from the partition {esp}")
        return found[0]

    def read(self, name: str) -> list[int]:
        file = self._file(name)
        raw = file.read_bytes()[4:] if file.exists() else b""
        return [number for (number,) in struct.iter_unpack("<H", raw)]

    def write(self, name: str, numbers: list[int]) -> None:
        """Write a list of entries. Raises OSError if the firmware did not store it."""
        self._file(name).write_bytes(struct.pack(f"<I{len(numbers)}H", ATTRIBUTES, *numbers))
        if self.read(name) != numbers:
            raise OSError(f"{name} reads back as something else")


def start_windows_next(order: dict[str, Any], firmware: BootVariables) -> None:
    firmware.write("BootNext", [firmware.entry(order["windows_esp"], WINDOWS)])


def put_windows_first(order: dict[str, Any], firmware: BootVariables) -> None:
    first, now = firmware.entry(order["windows_esp"], WINDOWS), firmware.read("BootOrder")
    if now[:1] != [first]:
        firmware.write("BootOrder", list(dict.fromkeys([first, *now])))
    firmware.write("BootNext", [firmware.entry(order["linux_esp"], UBUNTU)])


def write_label(order: dict[str, Any], root: Path) -> None:
    for label in (disk["label"] for disk in order.get("disks", ()) if "label" in disk):
        (root / "target/boot/efi/EFI/ubuntu/winhost.txt").write_text(f"{label}\n", "ascii")


VERBS: dict[str, Callable[[dict[str, Any], BootVariables], None]] = {
    "windows": start_windows_next,
    "order": put_windows_first,
}


def main(verb: str, folder: Path, root: Path = Path("/")) -> int:
    try:
        order = json.loads((folder / "guard.json").read_text("utf-8"))
        VERBS[verb](order, BootVariables(root))
        if verb == "order":
            write_label(order, root)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"winhost: {verb}: the firmware's boot entries are not as they should be: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], Path(__file__).resolve().parent)
    if sys.argv[1] == "windows":
        subprocess.run(["systemctl", "reboot"])  # noqa: S607 - as the installer finds it
    sys.exit(code)
