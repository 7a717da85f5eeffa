# key {}   state {id: text, version: text | null, kernel: text, architecture: text, wsl: bool,
# wsl_networking: text | null, systemd: bool, machine_id: text, simulated: bool}
from __future__ import annotations

import os
import shlex
from pathlib import Path

from winhost.agent.linux_agent import Found, Key, content, in_wsl, must, reads, value


@reads("LinuxSystem")
def linux_system(key: Key | None) -> Found:
    kernel = os.uname()
    wsl = in_wsl()
    state = {
        "id": value(lambda: os_release().get("ID", "linux")),
        "version": value(lambda: os_release().get("VERSION_ID")),
        "kernel": kernel.release,
        "architecture": kernel.machine,
        "wsl": wsl,
        "wsl_networking": value(networking_mode) if wsl else None,
        "systemd": Path("/run/systemd/system").is_dir(),
        "machine_id": value(machine_id),
        "simulated": False,
    }
    yield {}, state


def machine_id() -> str:
    return content("/etc/machine-id").decode("ascii").strip()


def networking_mode() -> str:
    return must("wslinfo", "--networking-mode").strip()


def os_release() -> dict[str, str]:
    # Where /etc/os-release is a link, this is what it points to.
    found = {}
    for line in content("/usr/lib/os-release").decode("utf-8").splitlines():
        name, equals, text = line.partition("=")
        if equals and not line.startswith("#"):
            found[name] = "".join(shlex.split(text))
    return found
