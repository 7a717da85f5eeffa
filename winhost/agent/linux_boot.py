"""Runs on a Linux beside Windows: what the firmware starts next, once, and a timer that goes back to Windows by itself.

What `winhost boot` sends over SSH: constant, Python 3.8, the standard library alone. It reads and writes the firmware's
variables as the kernel shows them, and reads back what it wrote: some firmware takes a value and forgets it.
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
KEPT = 7  # attributes: without power, and while the firmware and a system run
RETURN = "usr/local/lib/winhost/return_to_windows.py"
UNITS = "etc/systemd/system"
HEARTBEAT = "run/winhost/heartbeat"
SERVICE = """[Unit]
Description=Back to Windows, where winhost never came since this system was started
ConditionPathExists=!/run/winhost/heartbeat

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I /usr/local/lib/winhost/return_to_windows.py
"""
TIMER = """[Unit]
Description=Back to Windows after {minutes} minutes without winhost

[Timer]
OnBootSec={minutes}min

[Install]
WantedBy=timers.target
"""


class CannotSwitch(Exception):
    """It cannot be done here; why."""


class BootFirmware:
    """Its variables below a root."""

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

    def one(self, name: str) -> Optional[str]:
        return next(iter(self.numbers(name)), None)

    def entries(self) -> List[Dict[str, Any]]:
        """The entries in the boot order; missing ones are left out."""
        known = ((number, self._file("Boot" + number)) for number in self.numbers("BootOrder"))
        return [load_option(number, file.read_bytes()[4:]) for number, file in known if file.exists()]

    def set_next(self, number: str) -> None:
        self._file("BootNext").write_bytes(struct.pack("<IH", KEPT, int(number, 16)))
        if self.one("BootNext") != number:
            raise CannotSwitch(f"BootNext was set to {number}, and is {self.one('BootNext')}")


def load_option(number: str, option: bytes) -> Dict[str, Any]:
    end = 6
    while end + 2 <= len(option) and option[end : end + 2] != b"\0\0":
        end += 2
    found = {"entry": number, "description": option[6:end].decode("utf-16-le", "replace"), "active": False}
    found.update({"partition": None, "path": None})
    if len(option) < 6:
        return found
    attributes, length = struct.unpack_from("<IH", option)
    found["active"] = bool(attributes & 1)
    for kind, content in nodes(option[end + 2 : end + 2 + length]):
        if kind == (4, 1) and len(content) >= 38 and content[37] == 2:
            found["partition"] = str(uuid.UUID(bytes_le=content[20:36]))
        elif kind == (4, 4):
            found["path"] = content.decode("utf-16-le", "replace").rstrip("\0")
    return found


def nodes(path: bytes) -> Iterator[Tuple[Tuple[int, int], bytes]]:
    while len(path) >= 4:
        kind, sub, length = struct.unpack_from("<BBH", path)
        if length < 4 or length > len(path):
            return
        yield (kind, sub), path[4:length]
        path = path[length:]


def windows_entry(entries: List[Dict[str, Any]]) -> str:
    """The one that starts Windows, by its loader: its number changes, and its name is in a language."""
    found = [each["entry"] for each in entries if (each["path"] or "").lower() == WINDOWS_LOADER]
    if len(found) != 1:
        raise CannotSwitch(f"{len(found)} boot entries start Windows, and one is needed")
    return str(found[0])


def started(firmware: BootFirmware) -> str:
    """The entry that this system was started by."""
    number = firmware.one("BootCurrent")
    if number not in {each["entry"] for each in firmware.entries()}:
        raise CannotSwitch(f"this system was started by {number or 'no boot entry'}, which is not in the boot order")
    return str(number)


def return_to_windows(root: Path = Path("/")) -> None:
    """Restart into Windows: the timer runs this."""
    firmware = BootFirmware(root)
    firmware.set_next(windows_entry(firmware.entries()))
    subprocess.run(["systemctl", "reboot"], check=True)  # noqa: S607 - as the system finds it


# ---- the timer


def timer_minutes(root: Path) -> Optional[int]:
    file = root / UNITS / "winhost-return.timer"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    found = [line for line in lines if line.startswith("OnBootSec=")]
    return int(found[0][len("OnBootSec=") : -len("min")]) if found else None


def set_timer(root: Path, minutes: Optional[int], program: str) -> None:
    """Nothing as the minutes takes it away."""
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


def systemctl(*words: str) -> None:
    ended = subprocess.run(["systemctl", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # noqa: S603, S607
    if ended.returncode and words[0] != "disable":
        told = ended.stdout.decode("utf-8", "replace").strip()[-300:]
        raise CannotSwitch(f"systemctl {' '.join(words)}: {told}")


# ---- one request


def answered(request: Dict[str, Any], root: Path = Path("/"), program: str = "") -> Dict[str, Any]:
    firmware = BootFirmware(root)
    if request.get("heartbeat"):
        (root / HEARTBEAT).parent.mkdir(parents=True, exist_ok=True)
        (root / HEARTBEAT).touch()
    if "timer" in request:
        windows_entry(firmware.entries())  # without one it would restart into this system for ever
        set_timer(root, request["timer"], program)
    if request.get("to") == "windows":
        firmware.set_next(windows_entry(firmware.entries()))
    if request.get("to") == "linux":  # again: a restart alone starts the first of the order, which may be Windows
        firmware.set_next(started(firmware))
    answer = {
        "ok": True,
        "boot_id": (root / "proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
        "current": firmware.one("BootCurrent"),
        "next": firmware.one("BootNext"),
        "order": firmware.numbers("BootOrder"),
        "entries": firmware.entries(),
        "timer": timer_minutes(root),
    }
    if request.get("restart"):
        # In a moment, so that this answer still leaves.
        wait = ["sh", "-c", "sleep 2; exec systemctl reboot"]
        subprocess.Popen(wait, start_new_session=True, stdin=subprocess.DEVNULL)  # noqa: S603
    return answer


def serve() -> None:
    """Answer lines of requests until there are no more."""
    for line in iter(sys.stdin.buffer.readline, b""):
        try:
            answer = answered(json.loads(line.decode("ascii")), Path("/"), globals().get("PROGRAM", ""))
        except (CannotSwitch, OSError, ValueError, struct.error) as error:
            hresult = [] if not isinstance(error, OSError) else [f"errno {error.errno}"]
            fault = {"category": "InvalidOperation", "code": "Winhost.Boot", "hresults": hresult, "cmdlet": "boot"}
            answer = {"ok": False, "error": {**fault, "message": str(error)[:500]}, "warnings": []}
        sys.stdout.buffer.write(json.dumps({"answers": [answer]}).encode("ascii") + b"\n")
        sys.stdout.buffer.flush()
