"""Choose what the firmware of a Linux next to Windows starts next, and set a timer that returns to Windows.

`winhost boot` sends this text over SSH. It is constant, and runs with Python 3.8 and the standard library alone. It
reads and writes the firmware's variables through the kernel, and reads back what it wrote: some firmware accepts a
value and drops it.
"""

import json
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
WINDOWS_LOADER = "\\efi\\microsoft\\boot\\bootmgfw.efi"
VARIABLE_ATTRIBUTES = 7  # non-volatile, boot service access, runtime access
RETURN = "usr/local/lib/winhost/return_to_windows.py"
UNITS = "etc/systemd/system"
HEARTBEAT = "run/winhost/heartbeat"
SERVICE = """[Unit]
Description=Return to Windows if winhost has not connected since this system was started
ConditionPathExists=!/run/winhost/heartbeat

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I /usr/local/lib/winhost/return_to_windows.py
"""
TIMER = """[Unit]
Description=Return to Windows after {minutes} minutes without winhost

[Timer]
OnBootSec={minutes}min

[Install]
WantedBy=timers.target
"""


class CannotSwitch(Exception):
    """The system cannot be switched. The message says why."""


class BootFirmware:
    """The variables of the firmware. root: the root of the file system."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "sys/firmware/efi/efivars"
        if not self._folder.is_dir():
            raise CannotSwitch("this system was not started by UEFI, or its variables are not mounted")

    def _file(self, name: str) -> Path:
        return self._folder / (name + "-" + GLOBAL)

    def numbers(self, name: str) -> List[str]:
        file = self._file(name)
        content = file.read_bytes()[4:] if file.exists() else b""
        return [f"{number:04X}" for (number,) in struct.iter_unpack("<H", content[: len(content) // 2 * 2])]

    def first_number(self, name: str) -> Optional[str]:
        return next(iter(self.numbers(name)), None)

    def entries(self) -> List[Dict[str, Any]]:
        """Read the entries in the boot order; missing ones are skipped."""
        known = ((number, self._file("Boot" + number)) for number in self.numbers("BootOrder"))
        return [parse_load_option(number, file.read_bytes()[4:]) for number, file in known if file.exists()]

    def set_next(self, number: str) -> None:
        self._file("BootNext").write_bytes(struct.pack("<IH", VARIABLE_ATTRIBUTES, int(number, 16)))
        if self.first_number("BootNext") != number:
            raise CannotSwitch(f"BootNext was set to {number}, and is {self.first_number('BootNext')}")


def parse_load_option(number: str, option: bytes) -> Dict[str, Any]:
    end = 6
    while end + 2 <= len(option) and option[end : end + 2] != b"\0\0":
        end += 2
    found = {"entry": number, "description": option[6:end].decode("utf-16-le", "replace"), "active": False}
    found.update({"partition": None, "path": None})
    if len(option) < 6:
        return found
    attributes, length = struct.unpack_from("<IH", option)
    found["active"] = bool(attributes & 1)
    for kind, content in device_path_nodes(option[end + 2 : end + 2 + length]):
        if kind == (4, 1) and len(content) >= 38 and content[37] == 2:
            found["partition"] = str(uuid.UUID(bytes_le=content[20:36]))
        elif kind == (4, 4):
            found["path"] = content.decode("utf-16-le", "replace").rstrip("\0")
    return found


def device_path_nodes(path: bytes) -> Iterator[Tuple[Tuple[int, int], bytes]]:
    while len(path) >= 4:
        kind, sub, length = struct.unpack_from("<BBH", path)
        if length < 4 or length > len(path):
            return
        yield (kind, sub), path[4:length]
        path = path[length:]


def find_windows_entry(entries: List[Dict[str, Any]]) -> str:
    """Find the entry that starts Windows, by its loader: the number can change, and the name is in any language."""
    found = [each["entry"] for each in entries if (each["path"] or "").lower() == WINDOWS_LOADER]
    if len(found) != 1:
        raise CannotSwitch(f"{len(found)} boot entries start Windows, and one is needed")
    return str(found[0])


def find_started_entry(firmware: BootFirmware) -> str:
    """Find the entry by which this system was started."""
    number = firmware.first_number("BootCurrent")
    if number not in {each["entry"] for each in firmware.entries()}:
        raise CannotSwitch(f"this system was started by {number or 'no boot entry'}, which is not in the boot order")
    return str(number)


def return_to_windows(root: Path = Path("/")) -> None:
    """Restart into Windows. The timer runs this."""
    firmware = BootFirmware(root)
    firmware.set_next(find_windows_entry(firmware.entries()))
    subprocess.run(["systemctl", "reboot"], check=True)  # noqa: S607 - found on the PATH


# ---- the timer


def timer_minutes(root: Path) -> Optional[int]:
    file = root / UNITS / "winhost-return.timer"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    found = [line for line in lines if line.startswith("OnBootSec=")]
    return int(found[0][len("OnBootSec=") : -len("min")]) if found else None


def set_timer(root: Path, minutes: Optional[int], program: str) -> None:
    """Set the timer, or remove it if minutes is None."""
    texts = {
        RETURN: program.rpartition("serve()")[0] + "return_to_windows()\n",
        UNITS + "/winhost-return.service": SERVICE,
        UNITS + "/winhost-return.timer": TIMER.format(minutes=minutes),
    }
    if minutes is None:
        systemctl("disable", "--now", "winhost-return.timer")
    for name, text in texts.items():
        file = root / name
        if minutes is None:
            if file.exists():
                file.unlink()
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    systemctl("daemon-reload")
    if minutes is not None:
        systemctl("enable", "--now", "winhost-return.timer")


def systemctl(*arguments: str) -> None:
    ended = subprocess.run(["systemctl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: S603, S607
    if ended.returncode and arguments[0] != "disable":
        output = ended.stdout.decode("utf-8", "replace").strip()[-300:]
        raise CannotSwitch(f"systemctl {' '.join(arguments)}: {output}")


# ---- one request


def answer_request(request: Dict[str, Any], root: Path = Path("/"), program: str = "") -> Dict[str, Any]:
    firmware = BootFirmware(root)
    if request.get("heartbeat"):
        (root / HEARTBEAT).parent.mkdir(parents=True, exist_ok=True)
        (root / HEARTBEAT).touch()
    if "timer" in request:
        find_windows_entry(
            firmware.entries()
        )  # without an entry for Windows it would restart into this system for ever
        set_timer(root, request["timer"], program)
    if request.get("to") == "windows":
        firmware.set_next(find_windows_entry(firmware.entries()))
    if request.get("to") == "linux":  # a restart starts the first entry of the order, which may be Windows
        firmware.set_next(find_started_entry(firmware))
    answer = {
        "ok": True,
        "boot_id": (root / "proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
        "current": firmware.first_number("BootCurrent"),
        "next": firmware.first_number("BootNext"),
        "order": firmware.numbers("BootOrder"),
        "entries": firmware.entries(),
        "timer": timer_minutes(root),
    }
    if request.get("restart"):
        # After two seconds, so that this answer is still sent.
        wait = ["sh", "-c", "sleep 2; exec systemctl reboot"]
        subprocess.Popen(wait, start_new_session=True, stdin=subprocess.DEVNULL)  # noqa: S603
    return answer


def serve() -> None:
    """Answer lines of requests until the input ends."""
    for line in iter(sys.stdin.buffer.readline, b""):
        try:
            answer = answer_request(json.loads(line.decode("ascii")), Path("/"), globals().get("PROGRAM", ""))
        except (CannotSwitch, OSError, ValueError, struct.error) as error:
            hresult = [] if not isinstance(error, OSError) else [f"errno {error.errno}"]
            fault = {"category": "InvalidOperation", "code": "Winhost.Boot", "hresults": hresult, "cmdlet": "boot"}
            answer = {"ok": False, "error": {**fault, "message": str(error)[:500]}, "warnings": []}
        sys.stdout.buffer.write(json.dumps({"answers": [answer]}).encode("ascii") + b"\n")
        sys.stdout.buffer.flush()
