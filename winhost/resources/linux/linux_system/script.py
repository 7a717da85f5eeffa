# key {}   state {id: text, version: text | null, kernel: text, architecture: text, wsl: bool,
# wsl_networking: text | null, systemd: bool, machine_id: text, simulated: bool,
# virtualization: text, secure_boot: bool | null, cgroups: int, memory: bytes, shm: bytes | null,
# pci_hyperv: bool | null}
from __future__ import annotations

import shlex

from winhost.agent.linux_head import *

SHM = "/dev/shm"  # noqa: S108 - nothing is written there
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


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
        "wsl_networking": value(lambda: run_checked("wslinfo", "--networking-mode").strip()) if wsl else None,
        "systemd": systemd_runs(),
        "machine_id": value(lambda: read_file("/etc/machine-id").decode("ascii").strip()),
        "simulated": False,
        "virtualization": value(virtualization),
        "secure_boot": value(secure_boot),
        "cgroups": value(lambda: 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1),
        "memory": value(memory),
        "shm": value(shm),
        "pci_hyperv": None if wsl else value(lambda: pci_hyperv(kernel.release)),
    }
    yield {}, state


def virtualization() -> str:
    # It says `none` with exit code 1.
    done = once("virtualization", lambda: run("systemd-detect-virt"))
    return check_text("[a-z0-9-]+", done.output.strip(), "what systemd-detect-virt says")


def pci_hyperv(release: str) -> bool | None:
    """Tell whether the kernel has pci-hyperv, as a module or built in."""
    if virtualization() != "microsoft":
        return None
    lists = [read_file(f"/usr/lib/modules/{release}/{name}") for name in ("modules.dep", "modules.builtin")]
    return any(b"/pci-hyperv.ko" in each for each in lists)


def secure_boot() -> bool | None:
    """Tell whether Secure Boot is on: the fifth byte of the variable, after four bytes of attributes, is 1."""
    if not Path("/sys/firmware/efi").is_dir():
        return None
    return read_file(SECURE_BOOT)[4] == 1


def memory() -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB$", read_file("/proc/meminfo").decode("ascii"), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def shm() -> int | None:
    if not os.path.ismount(SHM):
        return None
    found = os.statvfs(SHM)
    return found.f_blocks * found.f_frsize


def os_release() -> dict[str, str]:
    # /etc/os-release is usually a link to this file.
    found = {}
    for line in read_file("/usr/lib/os-release").decode("utf-8").splitlines():
        name, equals, text = line.partition("=")
        if equals and not line.startswith("#"):
            found[name] = "".join(shlex.split(text))
    return found
