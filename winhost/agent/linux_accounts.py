# Part of the agent: the local accounts of this machine, from its own files. No directory service is asked.
from __future__ import annotations

import grp
import os
import pwd
from contextlib import suppress
from typing import NamedTuple

from winhost.agent.linux_agent import NotThereYet, check_text, once
from winhost.agent.linux_files import read_file

ENGINES_GROUP = "winhost-engines"
SYSTEM_IDS = 1000  # lower ids are those of system accounts: SYS_UID_MAX and SYS_GID_MAX of /etc/login.defs


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


def require_engines_group() -> None:
    """Raise NotThereYet unless the group exists as which engines and gateway run."""
    if ENGINES_GROUP not in {group.gr_name for group in grp.getgrall()}:
        raise NotThereYet("LinuxGroup")


def read_fields(path: str) -> list[list[str]]:
    lines = read_file(path).decode("utf-8", "replace").splitlines()
    return [line.split(":") for line in lines if ":" in line and line[0] not in "+-#"]


def accounts() -> dict[str, LocalUser]:
    def read() -> dict[str, LocalUser]:
        lines = read_fields("/etc/passwd")
        return {each[0]: LocalUser(each[0], int(each[2]), int(each[3]), each[5], each[6]) for each in lines}

    return once("accounts", read)


def groups() -> dict[str, LocalGroup]:
    def read() -> dict[str, LocalGroup]:
        lines = read_fields("/etc/group")
        return {each[0]: LocalGroup(each[0], int(each[2]), tuple(filter(None, each[3].split(",")))) for each in lines}

    return once("groups", read)


def account_name(name: str) -> str:
    """Check the name of a user or a group, as Debian allows it."""
    return check_text(r"[a-z_][a-z0-9_-]{0,31}", name, "the name of an account")


def is_directory_account(name: str) -> bool:
    """Tell whether an account comes from a directory service, and not from this machine's own files."""
    with suppress(KeyError):
        return bool(pwd.getpwnam(name)) and name not in accounts()
    return False


def is_logon_account(user: str) -> bool:
    """Tell whether winhost logs on as this user: root, or the user that became root with sudo."""
    return user in ("root", os.environ.get("SUDO_USER", "root"))
