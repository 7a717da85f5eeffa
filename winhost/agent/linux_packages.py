# Part of the agent: packages of dpkg, and the common part of all changes by apt.
from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from winhost.agent.linux_agent import ONCE, AgentFault, State, in_wsl, once, poll, run_checked, seconds, waiting, warn
from winhost.agent.linux_files import file_status, open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Packages with a kernel module or a libcuda of their own.
GPU_DRIVERS = re.compile(
    r"cuda-drivers.*|libcuda1|libnvidia-compute-\d+.*|linux-modules-nvidia-.*"
    r"|nvidia-(dkms|driver|headless|kernel|open)(-.*)?|xserver-xorg-video-nvidia.*"
)


def refuse_gpu_driver_in_wsl(coming: Iterable[str]) -> None:
    drivers = sorted(name for name in coming if GPU_DRIVERS.fullmatch(name))
    if drivers and in_wsl():
        message = "WSL uses the driver of Windows; {} would hide it.".format(", ".join(drivers))
        raise AgentFault("Winhost.DriverInWsl", "InvalidOperation", message, "apt-get")


class Package(NamedTuple):
    version: str
    held: bool
    needs: tuple[str, ...]


def packages() -> dict[str, Package]:
    """Return the packages that dpkg reports as installed, by name."""

    def read() -> dict[str, Package]:
        fields = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Pre-Depends}, ${Depends}\n"
        found = {}
        for line in run_checked("dpkg-query", "--show", "--showformat=" + fields).splitlines():
            status_, name, version, needs = line.split("\t")
            if status_[1] == "i":
                names = tuple(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", needs))
                found[name] = Package(version, status_[0] == "h", names)
        return found

    return once("packages", read)


# Options of every change by apt. The transaction was shown before, and apt cannot ask anybody.
APT_GET = (
    "-q",
    "-y",
    "--no-install-recommends",
    "--allow-downgrades",
    "-oDpkg::Options::=--force-confdef",
    "-oDpkg::Options::=--force-confold",
)
LONG = 1800  # seconds: a slow mirror and a slow disk
LONGEST_WAIT = 900.0  # for other installations: a first boot may upgrade all packages
DPKG_LOCK = "/var/lib/dpkg/lock-frontend"


def await_packages(how: State) -> None:
    """Wait until cloud-init has ended and no other installation runs. Then finish an interrupted installation: with
    packages that are unpacked and not configured, apt would refuse every change.
    """
    wait_while(is_first_boot, "cloud-init", how)
    wait_while(is_installing, "another installation of packages", how)
    if any(Path("/var/lib/dpkg/updates").iterdir()):
        warn("An interrupted installation was finished first.")
        run_checked("dpkg", "--force-confdef", "--force-confold", "--configure", "--pending", within=seconds(how, LONG))
        ONCE.clear()


def wait_while(busy: Callable[[], bool], what: str, how: State) -> None:
    limit = min(float(how.get("within") or 600), LONGEST_WAIT)
    with waiting(f"waiting for {what} to end, for up to {limit:.0f} s"):
        if poll(lambda: what if busy() else "", limit, 0.5):
            raise AgentFault("Winhost.PackagesBusy", "ResourceBusy", f"{what} has not ended within {limit:.0f} s.")


def is_first_boot() -> bool:
    """Tell whether cloud-init was started with this boot and has no result yet."""
    return file_status("/run/cloud-init/enabled") is not None and file_status("/run/cloud-init/result.json") is None


def is_installing() -> bool:
    """Tell whether another process holds the lock of apt and dpkg."""
    if file_status(DPKG_LOCK) is None:
        return False
    with open_folder(DPKG_LOCK) as (folder, name):
        lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return True
    finally:
        os.close(lock)
    return False


def apt_get(how: State, *arguments: str) -> str:
    lock = f"-oDPkg::Lock::Timeout={seconds(how, LONG):.0f}"
    return run_checked("apt-get", *APT_GET, lock, *arguments, within=seconds(how, LONG) + 60)
