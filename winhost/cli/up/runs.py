"""The runs of `winhost up`: ordinary runs, recognized by their plan, which lies in winhost's own state."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from winhost.cli.named_hosts import is_local
from winhost.cli.shells import command_line
from winhost.core.dataclass import dataclass
from winhost.engine.failures import RunInterrupted
from winhost.engine.journal import read_journal
from winhost.engine.run_state import RunNeverBegan, RunState, replay
from winhost.engine.store import Store, private_folder
from winhost.model.errors import WinhostError
from winhost.model.files import write_whole
from winhost.model.fleet import AnyHost
from winhost.model.workload import Workload
from winhost.model.workloadfile import load_workload

_FOLDER = "up"
PLAN, WORKLOAD, PENDING = "plan.json", "workload.yaml", "keys"
UNSEEN_KEY = "unseen-key"  # the reference to an API key that was made for this run and not shown yet
_PLANNING = "planning"  # holds the host's name until its run begins
OVER = ("rolled back", "nothing changed")


@dataclass(frozen=True)
class UpRun:
    """A run that still stands, and whether `up` made it."""

    state: RunState
    ours: bool

    @property
    def folder(self) -> Path:
        return Path(self.state.folder)

    @property
    def is_over(self) -> bool:
        """Tell whether it was applied, as far as its journal knows."""
        return self.state.outcome == "applied"

    @property
    def workload(self) -> Workload | None:
        """The workload of a run of `up`; None for any other run. Raises UsageError for a file that cannot be read."""
        return load_workload(self.folder / WORKLOAD) if self.ours else None


def new_folder(store: Store, host: str) -> Path:
    """Make a folder for the files of the next run. Raises UsageError: NoStore, NotPrivate."""
    private_folder(store.folder)
    private_folder(store.folder / _FOLDER)
    stem = store.path(store.new_run(host)).stem
    folder = store.folder / _FOLDER / stem
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{stem}-{number}")
    private_folder(folder)
    write_whole(folder / _PLANNING, [host])
    private_folder(folder / PENDING)
    return folder


def is_planned(folder: Path) -> None:
    """Note that the run of this folder begins now."""
    (folder / _PLANNING).unlink(missing_ok=True)


def forget(folder: Path) -> None:
    """Delete the files of a plan that was never applied."""
    shutil.rmtree(folder, ignore_errors=True)


def forget_unused(store: Store, host: str) -> None:
    """Delete files of an `up` of this host that was killed before its run began. No other `up` may be planning."""
    used = set[Path]()
    for name in store.runs_of(host):
        with suppress(RunNeverBegan):
            used.add(Path(replay(name, read_journal(store.existing_journal(name))).folder))
    for folder in (store.folder / _FOLDER).glob(f"{store.file_name(host)}.*"):
        if folder.absolute() not in used:
            forget(folder)


def forget_killed(store: Store) -> None:
    """Delete the files of every `up` that was killed while it planned."""
    for mark in (store.folder / _FOLDER).glob(f"*/{_PLANNING}"):
        with suppress(OSError, ValueError, WinhostError):
            if not store.is_locked(mark.read_text("utf-8"), command=True):
                forget(mark.parent)


def standing_runs(store: Store, host: str) -> tuple[UpRun, ...]:
    """Return the runs of this host that are neither undone nor without a change, newest first.

    Raises UsageError (Damaged, OtherVersion): what such a run changed may stand.
    """
    found = []
    for name in reversed(store.runs_of(host)):
        try:
            state = replay(name, read_journal(store.existing_journal(name)))
        except RunNeverBegan:
            continue
        if state.outcome in OVER or (state.unchanged and state.outcome is None):
            continue
        found.append(UpRun(state, is_ours(state, store)))
    return tuple(found)


def is_ours(state: RunState, store: Store) -> bool:
    return bool(state.folder) and Path(state.folder).parent == (store.folder / _FOLDER).absolute()


@contextmanager
def typed_again(host: AnyHost) -> Iterator[None]:
    """Name `winhost up` and `winhost down` as the next commands in errors of a run of `up`."""
    try:
        yield
    except RunInterrupted as error:
        if error.run is not None and error.hint is not None:
            here = is_local(host)
            up = command_line(("winhost", "up", *(() if here else ("--on", host.name))))
            down = command_line(("winhost", "down", *(() if here else (host.name,))))
            same = rf"winhost resume {re.escape(error.run)}(?=[^=\n]*$)"  # `resume` alone takes other settings
            hint = re.sub(same, up, error.hint, flags=re.MULTILINE)
            error.hint = hint.replace(f"winhost rollback {error.run}", down)
        raise


def hosts_of_ours(store: Store) -> tuple[str, ...]:
    """Return the hosts on which a run of `up` stands, oldest first."""
    hosts: dict[str, None] = {}
    for name in store.runs():
        with suppress(WinhostError):  # of another host than the one that is meant
            state = replay(name, read_journal(store.existing_journal(name)))
            if any(each.ours for each in standing_runs(store, state.host)):
                hosts.setdefault(state.host)
    return tuple(hosts)
