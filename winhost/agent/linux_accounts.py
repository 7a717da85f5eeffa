# Part of the agent, accounts of this machine: its own files, never a directory that it asks.
from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress
from typing import NamedTuple

from winhost.agent.linux_agent import NotThereYet, matching, once
from winhost.agent.linux_files import content

ENGINES_GROUP = "winhost-engines"
SYSTEM_IDS = 1000  # below are those of the system: SYS_UID_MAX and SYS_GID_MAX of /etc/login.defs


class LocalUser(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str
    shell: str


class LocalGroup(NamedTuple):
    name: str
    gid: int
    members: tuple[str, ...]


def needs_engines() -> None:
    """Raise NotThereYet until the group exists that engines and gateway run as."""
    if ENGINES_GROUP not in {group.gr_name for group in grp.getgrall()}:
        raise NotThereYet("LinuxGroup")


def lines_of(path: str) -> list[list[str]]:
    lines = content(path).decode("utf-8", "replace").splitlines()
    return [line.split(":") for line in lines if ":" in line and line[0] not in "+-#"]


def accounts() -> dict[str, LocalUser]:
    def read() -> dict[str, LocalUser]:
        lines = lines_of("/etc/passwd")
        return {each[0]: LocalUser(each[0], int(each[2]), int(each[3]), each[5], each[6]) for each in lines}

    return once("accounts", read)


def groups() -> dict[str, LocalGroup]:
    def read() -> dict[str, LocalGroup]:
        lines = lines_of("/etc/group")
        return {each[0]: LocalGroup(each[0], int(each[2]), tuple(filter(None, each[3].split(",")))) for each in lines}

    return once("groups", read)


def account_name(name: str) -> str:
    """Check the name of a user or a group, as Debian allows it."""
    return matching(r"[a-z_][a-z0-9_-]{0,31}", name, "the name of an account")


def of_directory(name: str) -> bool:
    """It is known here, and not by this machine's own files."""
    with suppress(KeyError):
        return bool(pwd.getpwnam(name)) and name not in accounts()
    return False


def logs_us_on(user: str) -> bool:
    """winhost comes in as this user: root, or who became root by sudo."""
    return user in ("root", os.environ.get("SUDO_USER", "root"))
