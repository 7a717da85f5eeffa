"""The state folder on this computer, with journals, keys, and the locks that let only one run work on a host.

Only its owner may open it: `resume` and `rollback` do what its journals say, with all rights.
"""

import getpass
import json
import os
import re
import shlex
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.model.errors import UsageError, WinhostError, did_you_mean, visible
from winhost.model.files import write_whole

if TYPE_CHECKING:
    from filelock import BaseFileLock


_ROOT = 0
_CHOOSE_ANOTHER = "Set WINHOST_STATE to a folder of your own."
LOCK_TIMEOUT_S = 1  # a process that only checks a lock holds it for less than this


def _busy_error(host: str, note: Path, *, command: bool = False) -> WinhostError:
    """Make the error for a host that another run has locked. command: another `winhost up` or `down`, which may still
    plan.
    """
    if command:
        what = f"{host} is being worked on by another winhost: {_describe_holder(note)}"
        hint = "Wait for it, or end it there with Ctrl-C: it leaves nothing half done"
    else:
        what = f"{host} is being changed by another run: {_describe_holder(note)}"
        hint = "Wait for it, or look: winhost runs"
    return WinhostError("Busy", what=what, hint=hint, host=host)


def _unusable_store_error(path: Path, why: str) -> UsageError:
    return UsageError(
        "NoStore",
        what=f"{visible(str(path))} cannot be made: {visible(why)}",
        hint="Set WINHOST_STATE to a folder of your own that can be written.",
    )


def state_folder() -> Path:
    """Return the user's state folder. WINHOST_STATE overrides it."""
    from platformdirs import user_state_path

    chosen = os.environ.get("WINHOST_STATE")
    return Path(chosen) if chosen else user_state_path("winhost", appauthor=False)


class Store:
    """The state folder: journals in `runs/`, locks in `locks/`, keys in `keys/`. Only the owner may open these."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()

    def new_run(self, host: str) -> str:
        """Return an unused name for a run, of host and time: `gpu-01.20261121-101502`."""
        base = f"{_safe(host)}.{datetime.now(UTC):%Y%m%d-%H%M%S}"
        taken = set(self.runs())
        return next(n for n in (base, *(f"{base}-{i}" for i in range(2, 1000))) if n not in taken)

    def runs(self) -> tuple[str, ...]:
        """List the names of all runs, oldest first; those of one second by host. Raises UsageError: NoStore."""
        if self.folder.is_file():
            raise _unusable_store_error(self.folder, "a file is there")
        paths = (self.folder / "runs").glob("*.jsonl")
        names = (path.stem for path in paths if path.is_file())
        return tuple(sorted(names, key=lambda name: name.rpartition(".")[::-1]))

    def runs_of(self, host: str) -> tuple[str, ...]:
        """List the names of a host's runs, oldest first."""
        return tuple(name for name in self.runs() if name.rpartition(".")[0] == _safe(host))

    @staticmethod
    def file_name(host: str) -> str:
        """Return the part before the last dot in the names of a host's runs."""
        return _safe(host)

    def path(self, run: str) -> Path:
        """Return the path of a run's journal."""
        return self._private_subfolder("runs") / f"{run}.jsonl"

    def remembered_windows_path(self, host: str) -> Path:
        """Return the file with the last facts of Windows, for the time when the Linux next to it runs."""
        return self.folder / "windows" / f"{_safe(host)}.json"

    def verified(self, host: str) -> Path:
        """Return the file with the versions with which the endpoint last answered."""
        return self.folder / "verified" / f"{_safe(host)}.json"

    def key(self, host: str, kind: str) -> Path:
        """Return the file of a key that winhost makes for a host."""
        return self.folder / "keys" / f"{_safe(host)}.{kind}"

    def keys(self) -> Path:
        """Return the folder of these keys, which is created if missing. Raises UsageError: NoStore, NotPrivate."""
        return self._private_subfolder("keys")

    def existing_journal(self, run: str) -> Path:
        """Return the path of an existing journal. Raises UsageError: UnknownRun."""
        if run not in self.runs():
            raise UsageError(
                "UnknownRun",
                what=f"there is no run '{visible(run)}' here{did_you_mean(run, self.runs())}",
                hint="winhost runs lists them",
            )
        return self.path(run)

    @contextmanager
    def lock(self, host: str, doing: str, *, command: bool = False) -> Iterator[None]:
        """Lock the host for this process. The lock of a dead process is free. command: take the separate lock for a
        whole `winhost up` or `down`, within which runs take the usual one.

        Raises UsageError (NoStore), and WinhostError (Busy), which names the holder.
        """
        from filelock import Timeout

        lock = self._file_lock(f"{_safe(host)}{'.up' if command else ''}")
        path = Path(lock.lock_file)
        note = path.with_suffix(".json")
        try:
            lock.acquire()
        except Timeout:
            raise _busy_error(host, note, command=command) from None
        except OSError as error:
            raise _unusable_store_error(path, error.strerror or str(error)) from error
        try:
            with suppress(OSError):  # if the disk is full, the lock holds without the note
                write_whole(
                    note,
                    [json.dumps({"who": f"{user_and_computer()}, process {os.getpid()}", "doing": doing})],
                    mode=0o600,
                )
            yield
        finally:
            note.unlink(missing_ok=True)
            lock.release()

    def refuse_locked(self, host: str) -> None:
        """Raise Busy as `lock` does, without taking the lock."""
        if self.is_locked(host):
            raise _busy_error(host, self.folder / "locks" / f"{_safe(host)}.json")

    def is_locked(self, host: str, *, command: bool = False) -> bool:
        """Tell whether a run works on the host now. command: whether `up` or `down` does, which may still plan."""
        from filelock import Timeout

        name = f"{_safe(host)}{'.up' if command else ''}"
        note = self.folder / "locks" / f"{name}.json"
        if not command and not note.exists():
            return False
        try:
            with self._file_lock(name):
                note.unlink(missing_ok=True)  # a dead process left it
                return False
        except Timeout:
            return True

    def _file_lock(self, name: str) -> "BaseFileLock":
        from filelock import FileLock

        path = self._private_subfolder("locks") / f"{name}.lock"
        if path.is_symlink():  # FileLock would empty the target of the link
            raise _unusable_store_error(path, "it is a symbolic link")
        return FileLock(path, timeout=LOCK_TIMEOUT_S, mode=0o600)

    def _private_subfolder(self, name: str) -> Path:
        """Return a private folder in the state folder, created if missing. Raises UsageError: NoStore, NotPrivate."""
        folder = self.folder / name
        try:
            private_folder(self.folder)
            return private_folder(folder)
        except OSError as error:
            raise _unusable_store_error(folder, error.strerror or str(error)) from error


def user_and_computer() -> str:
    """Return the account and the computer, as in `ada on desk`."""
    return f"{getpass.getuser()} on {socket.gethostname()}"


def _describe_holder(note: Path) -> str:
    try:
        is_locked = json.loads(note.read_text(encoding="utf-8"))
        return visible(f"{is_locked['who']}, {is_locked['doing']}")
    except (OSError, ValueError, LookupError, TypeError):
        return "a process that has just begun or is ending"


def _safe(host: str) -> str:
    """Return a host's name as a file name. Each other character becomes its code, so that no two names are the same."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda match: f"%{ord(match[0]):x}", host)


# ---- private folders


def private_folder(folder: Path) -> Path:
    """Create a folder and its parents if they are missing. New folders are private, whatever the umask; on Windows they
    inherit the access list of the profile.

    Raises UsageError (NotPrivate), and OSError for a folder that cannot be created.
    """
    for each in reversed([folder, *folder.parents]):
        if not each.exists():
            with suppress(FileExistsError):  # another winhost has just created it
                each.mkdir(mode=0o700)
                each.chmod(0o700)  # a umask may take rights from the owner
    if not folder.is_dir():
        folder.mkdir()  # raises the reason
    if os.name == "posix":
        _require_private(folder)
    return folder


def not_private_error(folder: Path, why: str, hint: str) -> UsageError:
    return UsageError(
        "NotPrivate",
        what=f"{visible(str(folder))} {visible(why)}, so winhost keeps neither journals nor keys there",
        meaning="Journals say what hosts were like, and rollback does what they say. Keys are yours alone.",
        hint=visible(hint),
    )


def _require_private(folder: Path) -> None:
    resolved = folder.resolve()
    if not _is_own(resolved.stat()):
        raise not_private_error(folder, "belongs to another account", _CHOOSE_ANOTHER)
    mode = stat.S_IMODE(resolved.stat().st_mode)
    if mode & 0o077:
        raise not_private_error(
            folder, f"may be opened by others (mode {mode:o})", f"chmod 700 {shlex.quote(str(resolved))}"
        )
    for parent in resolved.parents:
        status = parent.stat()
        if not (_is_own(status) or status.st_uid == _ROOT):
            raise not_private_error(folder, f"is below {parent}, which belongs to another account", _CHOOSE_ANOTHER)
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise not_private_error(
                folder, f"is below {parent}, where anyone may put another in its place", _CHOOSE_ANOTHER
            )


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()
