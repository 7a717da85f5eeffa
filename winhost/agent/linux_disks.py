# Part of the agent: the disks of this machine and the devices on them, as lsblk reports them.
from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from winhost.agent.linux_agent import State, run_checked, wrong_state
from winhost.agent.linux_files import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

# The columns of lsblk since util-linux 2.30. Later versions also have MOUNTPOINTS.
COLUMNS = "NAME,KNAME,TYPE,SIZE,SERIAL,MODEL,PTTYPE,FSTYPE,MOUNTPOINT,RO"


def read_block_devices() -> list[State]:
    """Read the block devices. Those on a device are its `children`."""
    tree: list[State] = json.loads(run_checked("lsblk", "--json", "--bytes", "--output", COLUMNS, within=30))[
        "blockdevices"
    ]
    return tree


def walk_devices(device: State) -> Iterator[State]:
    yield device
    for child in device.get("children") or []:
        yield from walk_devices(child)


def strip_text(text: Any) -> str | None:
    return str(text).strip() or None if text is not None else None


def is_read_only(device: State) -> bool:
    return device.get("ro") in (True, "1")


@contextmanager
def open_device(name: str, alone: bool) -> Iterator[int]:
    """Open a block device for reading. alone: raises OSError (EBUSY) if the kernel uses it, such as for a file
    system.
    """
    with open_folder(f"/dev/{name}") as (folder, entry):
        number = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | (os.O_EXCL if alone else 0), dir_fd=folder)
    try:
        if not stat.S_ISBLK(os.fstat(number).st_mode):
            raise wrong_state(f"/dev/{name} is no block device.")
        yield number
    finally:
        os.close(number)
