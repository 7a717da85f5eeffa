"""Users and groups of a simulated Linux, and the keys that let them in: what useradd and its like make of them.

Source: the manual pages of useradd, usermod, userdel, groupadd and sshd's authorized_keys.
"""

import base64
import datetime
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux, State

_NAME = r"[a-z_][a-z0-9_-]{0,31}"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_KINDS = r"(?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
_SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/bash", "/bin/false", "/usr/sbin/nologin")
_NO_USER: State = {"there": False, "system": False, "ours": False}
_OF_USER = ("uid", "home", "shell", "groups", "expires")
_LEAST, _SYSTEM = 1000, 999


@dataclass
class _User:
    uid: int
    group: str
    home: str
    shell: str
    groups: list[str]
    expires: str | None = None
    ours: bool = True
    joins: bool = False
    """Its first group was there before."""


@dataclass
class _Group:
    """others: its members that are so for a reason that is not imitated."""

    gid: int
    ours: bool = True
    others: list[str] = field(default_factory=list)


@dataclass
class _Line:
    options: str | None
    comment: str | None


@dataclass
class LinuxAccounts:
    """keys: of other users than root, whose are those that the way in has."""

    linux: Linux
    users: dict[str, _User] = field(default_factory=dict)
    groups: dict[str, _Group] = field(default_factory=dict)
    keys: dict[str, dict[str, _Line]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = {"root": _Group(0, False), "sudo": _Group(27, False), "nogroup": _Group(65534, False)}
        self.users = {"root": _User(0, "root", "/root", "/bin/bash", [], ours=False)}
        self._take_over_facts()

    def _take_over_facts(self) -> None:
        told = {each.key["user"]: each.state for each in self.linux.found("LinuxUser")}
        listed = {each.key["group"]: each.state for each in self.linux.found("LinuxGroup")}
        if told and listed:
            self.users = {name: _user_of(name, state) for name, state in told.items()}
            self.groups = {name: _Group(state["gid"], state["ours"]) for name, state in listed.items()}
        for name, state in listed.items():
            self.groups[name].others = sorted({*state["members"]} - {*self.members(name)})
        for each in self.linux.found("SshKey"):
            user, key = each.key["user"], each.key["key"]
            if key not in self.keys_of(user):
                self.change_key(user, key, _Line(each.state["options"], each.state["comment"]), last=True)

    # ---- users

    def user(self, name: str) -> State:
        found = self.users.get(name)
        if found is None:
            return {**_NO_USER, **dict.fromkeys(_OF_USER)}
        state = {"there": True, "system": found.uid < _LEAST, "ours": found.ours, "uid": found.uid}
        return {**state, **{each: getattr(found, each) for each in _OF_USER[1:]}}

    def make_user(self, name: str, desired: Mapping[str, Json]) -> None:
        number = self._free({each.uid for each in self.users.values()}, system=bool(desired.get("system")))
        joins = name in self.groups
        if not joins:
            self.groups[name] = _Group(self._free_group(bool(desired.get("system"))), ours=False)
        self.users[name] = _User(number, name, f"/home/{name}", "/bin/sh", [], joins=joins)
        self.change_user(name, desired)

    def change_user(self, name: str, desired: Mapping[str, Json]) -> None:
        for each in ("home", "shell", "groups"):
            if desired.get(each) is not None:
                setattr(self.users[name], each, desired[each])
        if "expires" in desired:
            self.users[name].expires = desired["expires"]

    def remove_user(self, name: str) -> None:
        gone = self.users.pop(name)
        self.keys.pop(name, None)
        if not gone.joins and not self.members(gone.group):
            del self.groups[gone.group]

    # ---- groups

    def group(self, name: str) -> State:
        found = self.groups.get(name)
        if found is None:
            return {"there": False, "system": False, "ours": False, "gid": None, "members": []}
        state = {"there": True, "system": found.gid < _LEAST, "ours": found.ours, "gid": found.gid}
        return {**state, "members": self.members(name)}

    def members(self, group: str) -> list[str]:
        here = {name for name, user in self.users.items() if group in (user.group, *user.groups)}
        return sorted(here | {*self.groups[group].others} & {*self.users})

    def make_group(self, name: str, *, system: bool) -> None:
        self.groups[name] = _Group(self._free_group(system))

    def _free_group(self, system: bool) -> int:
        return self._free({each.gid for each in self.groups.values()}, system=system)

    @staticmethod
    def _free(taken: set[int], *, system: bool) -> int:
        if system:
            return next(number for number in range(_SYSTEM, 0, -1) if number not in taken)
        return next(number for number in range(_LEAST, 60000) if number not in taken)

    # ---- keys

    def keys_of(self, user: str) -> dict[str, _Line]:
        if user != "root":
            return self.keys.get(user, {})
        parts = (line.split(" ", 2) for line in self.linux.distro.keys)
        return {" ".join(each[:2]): _Line(None, each[2] if each[2:] else None) for each in parts}

    def change_key(self, user: str, key: str, line: _Line | None, *, last: bool = False) -> None:
        keys = {name: each for name, each in self.keys_of(user).items() if name != key}
        if line is not None:
            keys = {**keys, key: line} if last else {key: line, **keys}
        if user != "root":
            self.keys[user] = keys
            return
        # What sshd lets in by a key with options is not imitated.
        self.linux.distro.keys = [" ".join(filter(None, (name, each.comment))) for name, each in keys.items()]


def _user_of(name: str, state: Mapping[str, Json]) -> _User:
    home, shell, groups = state["home"], state["shell"], [*state["groups"]]
    return _User(state["uid"], name, home, shell, groups, state["expires"], state["ours"])


def _name(name: str) -> str:
    return _matching(_NAME, name, "the name of an account")


def _matching(pattern: str, text: Json, says: str) -> str:
    if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
        raise _bad(f"{text!r} is not {says}.")
    return text


def _bad(message: str) -> Exception:
    return refused("BadRequest", "InvalidArgument", message)


def _wrong(message: str) -> Exception:
    return refused("WrongPlace", "InvalidOperation", message)


def _not_ours(what: str) -> Exception:
    return refused("NotOurs", "PermissionDenied", f"{what} was not made by winhost; it stays.")


def logs_us_on(linux: Linux, key: Key) -> bool:
    """winhost comes in as root."""
    return key["user"] == "root"


# ---- users


def linux_users(linux: Linux, key: Key | None) -> Iterator[Record]:
    accounts = linux.part(LinuxAccounts)
    for name in [_name(key["user"])] if key else sorted(accounts.users):
        yield Record(accounts.user(name), {"user": name})


def set_linux_user(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    accounts, name = linux.part(LinuxAccounts), key["user"]
    before = accounts.user(name)
    if desired.get("there") is False:
        if not before["ours"]:
            raise _not_ours(f"User {name}")
        accounts.remove_user(name)
        return
    if before["there"] and "system" in desired:
        raise _wrong(f"User {name} is there already.")
    _check_user(accounts, desired)
    if before["there"]:
        accounts.change_user(name, desired)
    elif desired.get("there"):
        accounts.make_user(name, desired)


def _check_user(accounts: LinuxAccounts, desired: Mapping[str, Json]) -> None:
    if desired.get("home") is not None:
        _matching(r"/[^:\0\n]*", desired["home"], "a folder")
    if desired.get("shell") is not None and _matching(r"/[^:\0\n]+", desired["shell"], "a program") not in _SHELLS:
        raise _bad(f"There is no program {desired['shell']}.")
    groups = desired.get("groups")
    if groups is not None:
        if not isinstance(groups, list) or sorted(set(map(str, groups))) != groups:
            raise _bad(f"{groups!r} is not a list of groups, each once and in order.")
        if not set(groups) <= set(accounts.groups):
            raise _wrong("There is no such group.")
    if desired.get("expires") is not None:
        try:
            datetime.date.fromisoformat(_matching(_DAY, desired["expires"], "a day"))
        except ValueError:
            raise _bad(f"{desired['expires']} is not a day.") from None


# ---- groups


def linux_groups(linux: Linux, key: Key | None) -> Iterator[Record]:
    accounts = linux.part(LinuxAccounts)
    for name in [_name(key["group"])] if key else sorted(accounts.groups):
        yield Record(accounts.group(name), {"group": name})


def set_linux_group(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    accounts, name = linux.part(LinuxAccounts), key["group"]
    before = accounts.group(name)
    if desired.get("there") is False:
        if not before["ours"]:
            raise _not_ours(f"Group {name}")
        if before["members"]:
            raise refused("InUse", "ResourceBusy", f"Group {name} has {before['members']}.", "groupdel")
        del accounts.groups[name]
    elif before["there"]:
        raise _wrong(f"Group {name} is there already.")
    elif desired.get("there"):
        accounts.make_group(name, system=bool(desired.get("system")))


# ---- keys


def ssh_keys(linux: Linux, key: Key | None) -> Iterator[Record]:
    accounts = linux.part(LinuxAccounts)
    if key:
        asked = [(_name(key["user"]), _public_key(key["key"]))]
    else:
        asked = [(user, each) for user in sorted(accounts.users) for each in sorted(accounts.keys_of(user))]
    for user, each in asked:
        line = accounts.keys_of(user).get(each) if user in accounts.users else None
        state = {"present": line is not None, "options": line and line.options, "comment": line and line.comment}
        yield Record(state, {"user": user, "key": each})


def _public_key(text: str) -> str:
    kind, _, data = _matching(rf"{_KINDS} [A-Za-z0-9+/]+={{0,2}}", text, "a public key").partition(" ")
    with suppress(ValueError):
        raw = base64.b64decode(data, validate=True)
        if raw[4 : 4 + len(kind)] == kind.encode() and raw[:4] == len(kind).to_bytes(4, "big"):
            return text
    raise _bad(f"{text!r:.60} is no public key.")


def set_ssh_key(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    accounts, user = linux.part(LinuxAccounts), key["user"]
    if user not in accounts.users:
        raise _wrong(f"There is no user {user}.")
    found = accounts.keys_of(user).get(key["key"])
    if not desired.get("present", found is not None):
        accounts.change_key(user, key["key"], None)
        return
    line = found or _Line(None, None)
    wanted = [desired.get(name, getattr(line, name)) for name in ("options", "comment")]
    if any(each is not None and (not isinstance(each, str) or not each.strip() or "\n" in each) for each in wanted):
        raise _bad("These options and this comment make no line of authorized_keys.")
    accounts.change_key(user, key["key"], _Line(*wanted))
