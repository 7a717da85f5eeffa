"""The SSH host key of a simulated Linux, and the pair that it makes to replace it."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.ssh_keys import public_line
from winhost.resources.windows.vm_seed import HOST_KEY


def ssh_host_key(linux: Linux, key: Key | None) -> Iterable[Record]:
    distro = linux.distro
    following = None if distro.next_seed is None else public_line(distro.next_seed)
    yield Record({"key": distro.host_key, "next": following, "prepared": following is not None})


def set_ssh_host_key(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    distro = linux.distro
    if not isinstance(desired.get("prepared", True), bool):
        raise refused("BadRequest", "InvalidArgument", "prepared is true or false.")
    if "key" in desired:
        if not isinstance(desired["key"], str) or re.fullmatch(HOST_KEY, desired["key"]) is None:
            raise refused("BadRequest", "InvalidArgument", "That is no ed25519 key, without a name.")
        if distro.next_seed is None or public_line(distro.next_seed) != desired["key"]:
            raise refused("WrongPlace", "InvalidOperation", "That key was not prepared on this machine.")
        distro.own_seed, distro.next_seed = distro.next_seed, None
    elif desired["prepared"]:
        distro.next_seed = sha256(b"the next of " + distro.seed).digest()
    else:
        distro.next_seed = None
