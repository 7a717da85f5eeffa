# key {}   state {boot_id: text, ready: bool}
from __future__ import annotations

from winhost.agent.linux_head import *


@reads("LinuxBoot")
def linux_boot(key: Key | None) -> Found:
    yield {}, {"boot_id": value(read_boot_id), "ready": value(has_started)}


def has_started() -> bool:
    """Tell whether systemd has finished starting units, even if some failed. True without systemd."""
    return not systemd_runs() or run("systemctl", "is-system-running").output.strip() not in (
        "initializing",
        "starting",
    )
