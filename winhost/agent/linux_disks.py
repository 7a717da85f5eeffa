# Part of the agent, disks of this machine and all that is on them, as lsblk has them.
from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from winhost.agent.linux_agent import State, must, wrong_state
from winhost.agent.linux_files import folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# What lsblk has had since util-linux 2.30: later ones call the same MOUNTPOINTS.
COLUMNS = "NAME,KNAME,TYPE,SIZE,SERIAL,MODEL,PTTYPE,FSTYPE,MOUNTPOINT,RO"


def block_devices() -> list[State]:
    """The block devices, each with those on it among its `children`."""
    tree: list[State] = json.loads(must("lsblk", "--json", "--bytes", "--output", COLUMNS, within=30))["blockdevices"]
    return tree


def everything(device: State) -> Iterator[State]:
    yield device
    for child in device.get("children") or []:
        yield from everything(child)


def stripped(text: Any) -> str | None:
    return str(text).strip() or None if text is not None else None


def read_only(device: State) -> bool:
    return device.get("ro") in (True, "1")


@contextmanager
def opened_device(name: str, alone: bool) -> Iterator[int]:
    """A block device, to read. alone: OSError (EBUSY) where the kernel uses it for a file system, an array or such."""
    with folder_of(f"/dev/{name}") as (folder, here):
        number = os.open(here, os.O_RDONLY | os.O_NOFOLLOW | (os.O_EXCL if alone else 0), dir_fd=folder)
    try:
        if not stat.S_ISBLK(os.fstat(number).st_mode):
            raise wrong_state(f"/dev/{name} is no block device.")
        yield number
    finally:
        os.close(number)
