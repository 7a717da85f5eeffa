"""What a machine does at a start of it, as its process 1: see image_boots.py, which names the steps to the kernel."""

import json
import os
import re
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

FOLDER, ENGINE = Path("/srv/image"), "/run/engine/engine.sock"
COMMAND = ("/usr/bin/python3", "/srv/process_image.py", str(FOLDER), "/srv/model", "engine", "--")
LIMIT_S = 240  # of an emulated processor


def ask(path: str | Path, line: dict[str, str] | None = None) -> dict[str, Any]:
    until = time.monotonic() + LIMIT_S
    while True:
        with socket.socket(socket.AF_UNIX) as to, suppress(OSError, ValueError):
            to.settimeout(LIMIT_S)
            to.connect(str(path))
            if line is not None:
                to.sendall(json.dumps(line).encode() + b"\n")
            found: dict[str, Any] = json.loads(to.makefile().read())
            return found
        if time.monotonic() > until:
            return {"failed": f"{path} does not answer"}
        time.sleep(0.1)


def counted_on() -> dict[str, Any]:
    """The engine, once it counted."""
    first = ask(ENGINE)
    until = time.monotonic() + LIMIT_S
    while (found := ask(ENGINE))["count"] < first["count"] + 5:
        if time.monotonic() > until:
            return {"failed": "it does not count", "first": first, **found}
        time.sleep(0.2)
    return {"first": first["count"], **found}


def show(lines: IO[bytes]) -> None:
    for each in lines:
        os.write(1, b"unit: " + each)


def main() -> None:
    said: dict[str, Any] = {}
    steps = (re.search(r"steps=(\S*)", Path("/proc/cmdline").read_text()) or [""] * 2)[1].split(",")
    said["kernel"] = os.uname().release
    began = time.monotonic()
    engine = ("/usr/bin/python3", "/srv/engine.py", ENGINE)
    path = {"PATH": os.environ["PATH"]}  # without what the kernel makes of its command line
    unit = subprocess.Popen([*COMMAND, *engine], env=path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert unit.stdout is not None
    threading.Thread(target=show, args=(unit.stdout,), daemon=True).start()
    said["look"] = ask(FOLDER / "control", {"do": "look"})
    said["seconds"] = round(time.monotonic() - began, 1)
    if "at-once" not in steps:
        said["engine"] = counted_on()
    if "confirm" in steps:
        said["confirm"] = ask(FOLDER / "control", {"do": "confirm"})
    if "take" in steps:
        said["take"] = ask(FOLDER / "control", {"do": "take"})
        if "taken" in said["take"]:
            said["code"] = unit.wait(LIMIT_S)
    os.write(1, f"\nwinhost:{json.dumps(said)}\n".encode())
    if "reset" not in steps:
        os.sync()
    Path("/proc/sysrq-trigger").write_text("b")


try:
    main()
finally:
    time.sleep(1)
    Path("/proc/sysrq-trigger").write_text("b")
