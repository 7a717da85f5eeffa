# Json {exclusive, calls: [{resource, verb: get | set | restart, key, desired, expect, how}]}   answer {answers: [...]}
"""The agent is a constant text. Requests and answers are lines of JSON; no value ever becomes part of a script."""

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

STATE_FOLDER = "/var/lib/winhost"  # winhost's records on this machine
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
PROGRAM_FOLDERS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/lib/wsl/lib")  # the last has the nvidia-smi of WSL
# Packages install nothing there, and on some systems not only root can write there. So only these are searched there.
EXTRA_FOLDERS = {"k3s": ("/usr/local/bin",)}
ENVIRONMENT = {
    "PATH": ":".join(PROGRAM_FOLDERS),
    "HOME": "/root",
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBIAN_PRIORITY": "critical",
    "APT_LISTCHANGES_FRONTEND": "none",
    # needrestart would restart services by itself, also sshd.
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
}


# ---- errors


class AgentFault(Exception):
    """An error with a code of winhost."""

    def __init__(
        self, code: str, category: str, message: str, program: str = "", details: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code, self.category, self.program, self.details = code, category, program, details


class NotThereYet(Exception):
    """A resource cannot be read before another one exists. The message is the type of that one."""


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
    """Return an error as JSON. Its code is one of winhost, of errno or of Python; its message may be in any
    language.
    """
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
    """Add a warning to the answer of the running call."""
    WARNINGS.append(text)


WAITS: list[str] = []


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Report what the agent waits for, in the heartbeats of the running call."""
    WAITS.append(text)
    try:
        yield
    finally:
        WAITS.pop()


def report_progress(text: str) -> None:
    """Replace the text of `waiting`."""
    WAITS[-1] = text


def poll(check: Callable[[], str], within: float, pause: float = 2.0) -> str:
    """Call `check` until it returns an empty text, or the time is over. Return its last text: what is missing."""
    deadline = time.monotonic() + within
    while True:
        remaining = check()
        if not remaining or time.monotonic() >= deadline:
            return remaining
        time.sleep(max(0.0, min(pause, deadline - time.monotonic())))


# ---- resources


class Entry(NamedTuple):
    """A resource. sets: the properties that `set` can change; cuts: whether a change may end the connection."""

    key: dict[str, Callable[[str], Any]]  # the parts of a key, each with its check
    get: Get
    set: Set | None
    sets: tuple[str, ...]
    cuts: Cuts


RESOURCES: dict[str, Entry] = {}


def reads(resource: str, **key: Callable[[str], Any]) -> Callable[[Get], Get]:
    """Declare the function that reads the instances of a resource: the one with this key, or all that it can find.

    key: its parts, each with a check that refuses a wrong one before anything is read or changed.
    """

    def declare(get: Get) -> Get:
        RESOURCES[resource] = Entry(key, get, None, (), lambda key: False)
        return get

    return declare


def changes(resource: str, *properties: str, cuts: Cuts = lambda key: False) -> Callable[[Set], Set]:
    """Declare the function that changes these properties of an instance. It gets the key, the desired properties, and
    the options of the request (`how`).

    cuts: tells of a key whether a change may end the connection that requests it. Such a change is undone by the
    machine itself unless it is requested again through a new connection; `how` has `undoing` then.
    """

    def declare(change: Set) -> Set:
        RESOURCES[resource] = RESOURCES[resource]._replace(set=change, sets=properties, cuts=cuts)
        return change

    return declare


def find_resource(resource: str) -> Entry:
    if resource not in RESOURCES:
        raise AgentFault("Winhost.UnknownNoun", "InvalidArgument", f"There is no resource {resource}.")
    return RESOURCES[resource]


# ---- reading

ONCE: dict[str, Any] = {}
T = TypeVar("T")


def once(label: str, read: Callable[[], T]) -> T:
    """Return a value that is read once in a batch, and again after a change."""
    if label not in ONCE:
        ONCE[label] = read()
    found: T = ONCE[label]
    return found


def value(read: Callable[[], Any]) -> Any:
    """Return the value that `read` returns, or why it cannot be read."""
    try:
        return read()
    except NotThereYet as unavailable:
        return {"unavailable": str(unavailable)}
    except Exception as error:  # noqa: BLE001 - any error is the value of this property
        return {"unknown": describe_error(error)}


def check_text(pattern: str, text: Any, description: str) -> str:
    """Return the text if all of it matches; else raise AgentFault."""
    if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
        raise bad_request(f"{text!r} is not {description}.")
    return text


def text_check(pattern: str, description: str) -> Callable[[str], str]:
    """Return a check for a part of a key: all of the text has to match."""
    return lambda text: check_text(pattern, text, description)


ANY_TEXT = text_check("(?s).*", "text")


# ---- programs


class ProgramResult(NamedTuple):
    code: int
    output: str
    errors: str


def find_program(program: str) -> str | None:
    """Return the path of one of PROGRAMS; None if it is not installed."""
    if program not in PROGRAMS:
        raise bad_request(f"{program} is not among the programs that winhost runs.")
    paths = (f"{folder}/{program}" for folder in (*PROGRAM_FOLDERS, *EXTRA_FOLDERS.get(program, ())))
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def run(
    program: str,
    *arguments: str,
    within: float = 60,
    environment: dict[str, str] | None = None,
    stdin: int | None = None,
) -> ProgramResult:
    """Run one of PROGRAMS, without a shell. It is ended after `within` seconds.

    environment: added to ENVIRONMENT; stdin: the descriptor of an open file.
    """
    path = find_program(program)
    if path is None:
        raise AgentFault("Winhost.NoProgram", "ObjectNotFound", f"{program} is not installed.", program)
    process = subprocess.Popen(  # noqa: S603 - no shell; the program is one of PROGRAMS
        [path, *arguments],
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={**ENVIRONMENT, **(environment or {})},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        end(process)
        message = f"{program} did not end within {within:.0f} s."
        raise AgentFault("Winhost.ProgramTimedOut", "OperationTimeout", message, program) from None
    return ProgramResult(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children. SIGTERM comes first, because a half unpacked package is worse than ten
    seconds.
    """
    for how, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=seconds)
            return


def run_checked(
    program: str,
    *arguments: str,
    within: float = 60,
    environment: dict[str, str] | None = None,
    stdin: int | None = None,
) -> str:
    """Run a program that has to succeed, and return its output."""
    done = run(program, *arguments, within=within, environment=environment, stdin=stdin)
    if done.code != 0:
        message = (done.errors.strip() or done.output.strip())[-2000:]
        raise AgentFault("Winhost.ProgramFailed", "InvalidResult", message, program, (f"exit {done.code}",))
    return done.output


def seconds(how: State, minimum: float) -> float:
    """Return the seconds that a slow change may take."""
    return max(minimum, float(how.get("within") or 0))


def systemd_runs() -> bool:
    return Path("/run/systemd/system").is_dir()


def in_wsl() -> bool:
    return "microsoft" in os.uname().release.lower()
