"""useradd and its like, on the files of a simulated Linux. Source: their manual pages."""

from collections.abc import Callable, Mapping, Sequence

from winhost.lab.linux.disk import Disk

PASSWD, GROUP, SHADOW = "/etc/passwd", "/etc/group", "/etc/shadow"
_FIRST, _FIRST_OF_SYSTEM, _LAST = 1000, 999, 60000
Rows = list[list[str]]


def rows(disk: Disk, path: str) -> Rows:
    return [line.split(":") for line in (disk.text(path) or "").splitlines()]


def write_rows(disk: Disk, path: str, lines: Rows) -> None:
    disk.write(path, "".join(":".join(each) + "\n" for each in lines), 0o640 if path == SHADOW else 0o644)


def days_of(text: str) -> str:
    """A date, in days since 1970; nothing of nothing."""
    import datetime

    return str((datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days) if text else ""


def _options(words: Sequence[str]) -> tuple[dict[str, str], str]:
    """Those with a value, or without, and the name after them."""
    found: dict[str, str] = {}
    given = list(words)
    while (word := given.pop(0)) != "--":
        alone = word in ("--system", "--no-create-home", "--create-home", "--user-group")
        found[word.removeprefix("--")] = "" if alone else given.pop(0)
    return found, given[0]


def _free(taken: Rows, *, system: bool) -> str:
    numbers = {int(each[2]) for each in taken}
    span = range(_FIRST_OF_SYSTEM, 0, -1) if system else range(_FIRST, _LAST)
    return str(next(number for number in span if number not in numbers))


def _useradd(disk: Disk, words: Sequence[str]) -> str:
    options, name = _options(words)
    users, groups, system = rows(disk, PASSWD), rows(disk, GROUP), "system" in options
    if "user-group" in options:
        groups.append([name, "x", _free(groups, system=system), ""])
        write_rows(disk, GROUP, groups)
    gid = next(each[2] for each in groups if each[0] == options.get("gid", name))
    home = options.get("home", f"/home/{name}")
    users.append([name, "x", _free(users, system=system), gid, "", home, options.get("shell", "/bin/sh")])
    write_rows(disk, PASSWD, users)
    days = days_of(options.get("expiredate", ""))
    write_rows(disk, SHADOW, [*rows(disk, SHADOW), [name, "!", "20000", "0", "99999", "7", "", days, ""]])
    _join(disk, name, options.get("groups"))
    if "create-home" in options:
        disk.make_folder(home)
    return ""


def _join(disk: Disk, name: str, wanted: str | None) -> None:
    """These groups and no others; None: as it is."""
    if wanted is None:
        return
    groups = rows(disk, GROUP)
    for each in groups:
        others = [member for member in each[3].split(",") if member and member != name]
        each[3] = ",".join([*others, *([name] if each[0] in wanted.split(",") else [])])
    write_rows(disk, GROUP, groups)


def _usermod(disk: Disk, words: Sequence[str]) -> str:
    options, name = _options(words)
    users, dates = rows(disk, PASSWD), rows(disk, SHADOW)
    user = next(each for each in users if each[0] == name)
    if "gid" in options:
        user[3] = next(each[2] for each in rows(disk, GROUP) if each[0] == options["gid"])
    user[5], user[6] = options.get("home", user[5]), options.get("shell", user[6])
    for each in dates:
        if each[0] == name and "expiredate" in options:
            each[7] = days_of(options["expiredate"])
    write_rows(disk, PASSWD, users)
    write_rows(disk, SHADOW, dates)
    _join(disk, name, options.get("groups"))
    return ""


def _userdel(disk: Disk, words: Sequence[str]) -> str:
    """And its own group, which nobody else is in."""
    name = words[-1]
    users = [each for each in rows(disk, PASSWD) if each[0] != name]
    _join(disk, name, "")
    groups = rows(disk, GROUP)
    stays = lambda group: group[0] != name or group[3] or any(each[3] == group[2] for each in users)  # noqa: E731
    write_rows(disk, PASSWD, users)
    write_rows(disk, GROUP, list(filter(stays, groups)))
    write_rows(disk, SHADOW, [each for each in rows(disk, SHADOW) if each[0] != name])
    return ""


def _groupadd(disk: Disk, words: Sequence[str]) -> str:
    options, name = _options(words)
    groups = rows(disk, GROUP)
    write_rows(disk, GROUP, [*groups, [name, "x", _free(groups, system="system" in options), ""]])
    return ""


def _groupdel(disk: Disk, words: Sequence[str]) -> str:
    write_rows(disk, GROUP, [each for each in rows(disk, GROUP) if each[0] != words[-1]])
    return ""


ACCOUNT_PROGRAMS: Mapping[str, Callable[[Disk, Sequence[str]], str]] = {
    "groupadd": _groupadd,
    "groupdel": _groupdel,
    "useradd": _useradd,
    "userdel": _userdel,
    "usermod": _usermod,
}
