# key {user: text}   state {there: bool, system: bool, ours: bool, uid: number | null, home: text | null,
# shell: text | null, groups: [text] | null, expires: text | null}
from __future__ import annotations

import datetime

from winhost.agent.linux_head import *

ABSENT_USER = {"there": False, "system": False, "ours": False}
USER_PROPERTIES = ("uid", "home", "shell", "groups", "expires")
SKELETON = "/etc/skel"
SESSION_END_SECONDS = 15  # seconds
DAY_ONE = datetime.date(1970, 1, 1)


@reads("LinuxUser", user=account_name)
def linux_users(key: Key | None) -> Found:
    for name in [key["user"]] if key else sorted(accounts()):
        yield {"user": name}, linux_user(name)


def linux_user(name: str) -> State:
    found = accounts().get(name)
    if found is None:
        return {**ABSENT_USER, **dict.fromkeys(USER_PROPERTIES)}
    made = find_record("made", f"user {name}")
    return {
        "there": True,
        "system": found.uid < SYSTEM_IDS,
        "ours": made is not None and made["uid"] in (None, found.uid),
        "uid": found.uid,
        "home": found.home,
        "shell": found.shell,
        "groups": sorted(group.name for group in groups().values() if name in group.members),
        "expires": value(lambda: expiry(name)),
    }


def expiry(name: str) -> str | None:
    days = once("shadow", lambda: {each[0]: each[7] for each in read_fields("/etc/shadow")})
    return (DAY_ONE + datetime.timedelta(days=int(days[name]))).isoformat() if days.get(name) else None


@changes(
    "LinuxUser", "there", "system", "home", "shell", "groups", "expires", cuts=lambda key: is_logon_account(key["user"])
)
def change_linux_user(key: Key, desired: State, how: State) -> None:
    name = key["user"]
    before = linux_user(name)
    if desired.get("there") is False:
        remove_user(name, before)
        return
    if before["there"] and "system" in desired:
        raise wrong_state(f"User {name} is there already, with the number {before['uid']}, which stays.")
    options = user_options({each: desired[each] for each in desired if desired[each] is not None or each == "expires"})
    if before["there"]:
        run_checked("usermod", *options, "--", name)
    elif desired.get("there"):
        make_user(name, bool(desired.get("system")), options)


def user_options(desired: State) -> list[str]:
    """The options that useradd and usermod share."""
    options = []
    if "home" in desired:
        options += ["--home", check_text(r"/[^:\0\n]*", desired["home"], "a folder")]
    if "shell" in desired:
        shell = check_text(r"/[^:\0\n]+", desired["shell"], "a program")
        if not os.access(shell, os.X_OK):
            raise bad_request(f"There is no program {shell}.")
        options += ["--shell", shell]
    if "groups" in desired:
        options += ["--groups", ",".join(check_groups(desired["groups"]))]
    if "expires" in desired:
        options += ["--expiredate", format_day(desired["expires"])]
    return options


def check_groups(names: Any) -> list[str]:
    if not isinstance(names, list) or sorted(set(map(str, names))) != names:
        raise bad_request(f"{names!r} is not a list of groups, each once and in order.")
    lacking = [name for name in names if name not in groups()]
    if lacking:
        raise wrong_state("There is no group {}.".format(", ".join(lacking)))
    return names


def format_day(text: str | None) -> str:
    """Return the day for usermod; an empty text if the account never expires."""
    if text is None:
        return ""
    try:
        return datetime.date.fromisoformat(check_text(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text, "a day")).isoformat()
    except ValueError:
        raise bad_request(f"{text} is not a day.") from None


def make_user(name: str, system: bool, options: list[str]) -> None:
    if is_directory_account(name):
        raise wrong_state(f"User {name} comes from a directory that this machine asks; it is changed there.")
    kind = ["--system", "--no-create-home"] if system else ["--create-home"]
    own = ["--gid", name] if name in groups() else ["--user-group"]
    joined = name in groups()
    # Recorded before the change, so that the user is known to be ours even if the machine goes down meanwhile.
    write_record("made", f"user {name}", {"name": name, "uid": None, "joined": joined, "home": None})
    try:
        run_checked("useradd", *kind, *own, *options, "--", name)
    except BaseException:
        remove_record("made", f"user {name}")
        raise
    ONCE.clear()
    made = accounts()[name]
    write_record(
        "made", f"user {name}", {"name": name, "uid": made.uid, "joined": joined, "home": None if system else made.home}
    )


def remove_user(name: str, before: State) -> None:
    made = find_record("made", f"user {name}")
    if not before["ours"] or made is None:
        raise not_owned_error(f"User {name}")
    if is_logon_account(name):
        raise wrong_state(f"winhost is logged on as {name}.")
    # A session that was closed takes some seconds to end.
    left = poll(lambda: ", ".join(processes_of(before["uid"])[:10]), SESSION_END_SECONDS, 0.2)
    if left:
        raise AgentFault("Winhost.InUse", "ResourceBusy", f"Processes of this user still run: {left}.", "userdel")
    if made["joined"]:
        run_checked(
            "usermod", "--gid", "nogroup", "--", name
        )  # otherwise userdel would remove its group, which is not ours
    run_checked("userdel", "--", name)
    if made["home"]:
        remove_home(made["home"])
    remove_record("made", f"user {name}")


def processes_of(uid: int) -> list[str]:
    """List a user's processes that have this machine's own root, as userdel does. In a container, the same number is
    another user.
    """
    root, found = Path("/").stat(), []
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            mine = process.name.isdigit() and process.stat().st_uid == uid
            if mine and os.path.samestat((process / "root").stat(), root):
                found.append(process.name)
    return found


def remove_home(home: str) -> None:
    """Remove the home folder if it contains only unchanged files of /etc/skel."""
    paths = sorted(Path(home).rglob("*"))
    if not all(is_skeleton_file(path, home) for path in paths):
        warn(f"{home} has files that somebody put there; it stays.")
        return
    for path in paths:
        remove(str(path))
    Path(home).rmdir()


def is_skeleton_file(path: Path, home: str) -> bool:
    other = SKELETON + str(path)[len(home) :]
    plain = path.is_file() and not path.is_symlink()
    return plain and file_status(other) is not None and read_file(str(path)) == read_file(other)
