# Json {exclusive, calls: [{resource, verb: get | set | restart, key, desired, expect, how}]}   answer {answers: [...]}
"""Constant text. Values come in as lines of JSON and go out as lines of JSON; none ever becomes part of a script."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from collections.abc import Callable, Iterable, Iterator

    Key = dict[str, str]
    State = dict[str, Any]
    Found = Iterable[tuple[Key, State]]
    Get = Callable[[Key | None], Found]
    Set = Callable[[Key, State, State], None]
    Cuts = Callable[[Key], bool]

KEPT = "/var/lib/winhost"  # what we must remember on the machine itself
PROGRAMS = (
    "apt-cache",
    "apt-get",
    "apt-mark",
    "blkid",
    "docker",
    "dockerd",
    "dpkg",
    "dpkg-query",
    "dracut",
    "groupadd",
    "groupdel",
    "journalctl",
    "k3s",
    "lsblk",
    "mkfs.ext4",
    "mkfs.xfs",
    "modinfo",
    "netplan",
    "nft",
    "nvidia-ctk",
    "nvidia-smi",
    "podman",
    "python3",
    "ssh-keygen",
    "sshd",
    "systemctl",
    "systemd-analyze",
    "systemd-detect-virt",
    "systemd-run",
    "ufw",
    "umount",
    "update-initramfs",
    "useradd",
    "userdel",
    "usermod",
    "visudo",
    "wipefs",
    "wslinfo",
)
PLACES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/lib/wsl/lib")  # the last has the nvidia-smi of WSL
# Where no package puts anything, and more than root may write on some systems: only what is looked for there.
LOCAL = {"k3s": ("/usr/local/bin",)}
ENVIRONMENT = {
    "PATH": ":".join(PLACES),
    "HOME": "/root",
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBIAN_PRIORITY": "critical",
    "APT_LISTCHANGES_FRONTEND": "none",
    # It would restart services by itself, sshd among them.
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
}


# ---- what may go wrong, as data


class AgentFault(Exception):
    """An error with a code of ours."""

    def __init__(
        self, code: str, category: str, message: str, program: str = "", details: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code, self.category, self.program, self.details = code, category, program, details


class NotThereYet(Exception):
    """It cannot be looked at before this resource is there."""


CATEGORIES = {
    "EACCES": "PermissionDenied",
    "EPERM": "PermissionDenied",
    "EROFS": "PermissionDenied",
    "ENOENT": "ObjectNotFound",
    "ELOOP": "InvalidOperation",
    "ENOTDIR": "InvalidOperation",
    "ENOSPC": "ResourceUnavailable",
    "UnicodeDecodeError": "InvalidData",
}


def describe_error(error: BaseException) -> State:
    """An error as the wire carries it. Codes are ours, errno's or Python's; the message may be in any language."""
    if isinstance(error, AgentFault):
        code, category, program, details = error.code, error.category, error.program, error.details
    else:
        number = error.errno if isinstance(error, OSError) else None
        code = errno.errorcode.get(number or 0, type(error).__name__)
        category, program, details = CATEGORIES.get(code, "NotSpecified"), "", ()
    return {"category": category, "code": code, "hresults": list(details), "cmdlet": program, "message": str(error)}


def bad_request(message: str) -> AgentFault:
    return AgentFault("Winhost.BadRequest", "InvalidArgument", message)


def wrong_state(message: str) -> AgentFault:
    return AgentFault("Winhost.WrongState", "InvalidOperation", message)


WARNINGS: list[str] = []


def warn(text: str) -> None:
    """Goes with the answer of the running call."""
    WARNINGS.append(text)


WAITS: list[str] = []


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Meanwhile the signs of life say what is waited for."""
    WAITS.append(text)
    try:
        yield
    finally:
        WAITS.pop()


def doing(text: str) -> None:
    """Report the progress of what is waited for."""
    WAITS[-1] = text


def said_until(ask: Callable[[], str], within: float, pause: float = 2.0) -> str:
    """Ask again and again until nothing is left to say, or the time is over. Returns what was said last."""
    over = time.monotonic() + within
    while True:
        left = ask()
        if not left or time.monotonic() >= over:
            return left
        time.sleep(max(0.0, min(pause, over - time.monotonic())))


# ---- what resources are


class Entry(NamedTuple):
    key: dict[str, Callable[[str], Any]]  # the parts of a key, each with what refuses a wrong one
    get: Get
    set: Set | None
    sets: tuple[str, ...]
    cuts: Cuts


RESOURCES: dict[str, Entry] = {}


def reads(resource: str, **key: Callable[[str], Any]) -> Callable[[Get], Get]:
    """Declares what finds the instances of a resource: of one key, or of all that it knows without being asked.

    key: its parts, each with what refuses a wrong one before anything is read or changed.
    """

    def declare(get: Get) -> Get:
        RESOURCES[resource] = Entry(key, get, None, (), lambda key: False)
        return get

    return declare


def changes(resource: str, *properties: str, cuts: Cuts = lambda key: False) -> Callable[[Set], Set]:
    """Declares what changes these properties of an instance; it gets the key, the request, and how to go about it.

    cuts: of which instances a change may cut off whoever makes it. Such a change is undone by the machine itself
    unless it is asked for again through a new connection; `how` has `undoing` then.
    """

    def declare(change: Set) -> Set:
        RESOURCES[resource] = RESOURCES[resource]._replace(set=change, sets=properties, cuts=cuts)
        return change

    return declare


def entry(resource: str) -> Entry:
    if resource not in RESOURCES:
        raise AgentFault("Winhost.UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")
    return RESOURCES[resource]


# ---- what resources read with

ONCE: dict[str, Any] = {}
T = TypeVar("T")


def once(label: str, read: Callable[[], T]) -> T:
    """Read for this batch, and until the next change."""
    if label not in ONCE:
        ONCE[label] = read()
    found: T = ONCE[label]
    return found


def value(read: Callable[[], Any]) -> Any:
    """The value that is read, or the reason why it cannot be."""
    try:
        return read()
    except NotThereYet as unavailable:
        return {"unavailable": str(unavailable)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this property's
        return {"unknown": describe_error(error)}


def matching(pattern: str, text: Any, says: str) -> str:
    """The text, if it matches as a whole."""
    if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
        raise bad_request(f"{text!r} is not {says}.")
    return text


def is_text(pattern: str, says: str) -> Callable[[str], str]:
    """Make the check of a part of a key: the whole text matches."""
    return lambda text: matching(pattern, text, says)


ANY_TEXT = is_text("(?s).*", "text")


# ---- programs


class Done(NamedTuple):
    code: int
    output: str
    errors: str


def place_of(program: str) -> str | None:
    """The path of one of our programs, or None."""
    if program not in PROGRAMS:
        raise bad_request(f"{program} is not among the programs that winhost runs.")
    paths = (f"{folder}/{program}" for folder in (*PLACES, *LOCAL.get(program, ())))
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def run(
    program: str, *arguments: str, within: float = 60, more: dict[str, str] | None = None, given: int | None = None
) -> Done:
    """One of our programs, without a shell. It ends within so many seconds, or is ended.

    more: of its environment; given: an open file, to read from its stdin.
    """
    path = place_of(program)
    if path is None:
        raise AgentFault("Winhost.NoProgram", "ObjectNotFound", f"{program} is not there.", program)
    process = subprocess.Popen(  # noqa: S603 - no shell; the program is one of ours
        [path, *arguments],
        stdin=subprocess.DEVNULL if given is None else given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**ENVIRONMENT, **(more or {})},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        end(process)
        message = f"{program} did not end within {within:.0f} s."
        raise AgentFault("Winhost.ProgramTimedOut", "OperationTimeout", message, program) from None
    return Done(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def end(process: subprocess.Popen[bytes]) -> None:
    """It and its children: first asked, because a package half unpacked is worse than ten seconds."""
    for how, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=seconds)
            return


def must(
    program: str, *arguments: str, within: float = 60, more: dict[str, str] | None = None, given: int | None = None
) -> str:
    """Run a program that has to succeed, and return its output."""
    done = run(program, *arguments, within=within, more=more, given=given)
    if done.code != 0:
        message = (done.errors.strip() or done.output.strip())[-2000:]
        raise AgentFault("Winhost.ProgramFailed", "InvalidResult", message, program, (f"exit {done.code}",))
    return done.output


def seconds(how: State, least: float) -> float:
    """The seconds that a slow change may take."""
    return max(least, float(how.get("within") or 0))


def systemd_runs() -> bool:
    return Path("/run/systemd/system").is_dir()


def in_wsl() -> bool:
    return "microsoft" in os.uname().release.lower()
