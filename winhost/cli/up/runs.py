"""The runs of `winhost up`: ordinary runs, recognized by the folder of their plan, which is in winhost's own state."""

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
_PLANNING_FILE = "planning"  # contains the host's name; deleted when the run starts
UNDONE_OUTCOMES = ("rolled back", "nothing changed")


@dataclass(frozen=True)
class UpRun:
    """A run whose changes are not undone. by_up: `winhost up` started it."""

    state: RunState
    by_up: bool

    @property
    def folder(self) -> Path:
        return Path(self.state.folder)

    @property
    def is_over(self) -> bool:
        """Tell whether the journal says that the plan was applied."""
        return self.state.outcome == "applied"

    @property
    def workload(self) -> Workload | None:
        """The workload of a run of `up`; None for any other run. Raises UsageError if its file cannot be read."""
        return load_workload(self.folder / WORKLOAD) if self.by_up else None


def new_folder(store: Store, host: str) -> Path:
    """Create a folder for the files of the next run. Raises UsageError: NoStore, NotPrivate."""
    private_folder(store.folder)
    private_folder(store.folder / _FOLDER)
    stem = store.path(store.new_run(host)).stem
    folder = store.folder / _FOLDER / stem
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{stem}-{number}")
    private_folder(folder)
    write_whole(folder / _PLANNING_FILE, [host])
    private_folder(folder / PENDING)
    return folder


def mark_run_started(folder: Path) -> None:
    """Record that the run of this folder starts now."""
    (folder / _PLANNING_FILE).unlink(missing_ok=True)


def delete_folder(folder: Path) -> None:
    """Delete the files of a plan that was never applied."""
    shutil.rmtree(folder, ignore_errors=True)


def delete_unused_folders(store: Store, host: str) -> None:
    """Delete the folders of each `up` of this host that was killed before its run began. The caller holds the host's
    lock, so that no other `up` is planning.
    """
    used = set[Path]()
    for name in store.runs_of(host):
        with suppress(RunNeverBegan):
            used.add(Path(replay(name, read_journal(store.existing_journal(name))).folder))
    for folder in (store.folder / _FOLDER).glob(f"{store.file_name(host)}.*"):
        if folder.absolute() not in used:
            delete_folder(folder)


def delete_killed_plans(store: Store) -> None:
    """Delete the folder of every `up` that was killed while it planned."""
    for mark in (store.folder / _FOLDER).glob(f"*/{_PLANNING_FILE}"):
        with suppress(OSError, ValueError, WinhostError):
            if not store.is_locked(mark.read_text("utf-8"), command=True):
                delete_folder(mark.parent)


def standing_runs(store: Store, host: str) -> tuple[UpRun, ...]:
    """Return the runs of this host that changed something and are not undone, newest first.

    Raises UsageError (Damaged, OtherVersion) for a journal that cannot be read, because its changes may not be undone.
    """
    runs = []
    for name in reversed(store.runs_of(host)):
        try:
            state = replay(name, read_journal(store.existing_journal(name)))
        except RunNeverBegan:
            continue
        if state.outcome in UNDONE_OUTCOMES or (state.unchanged and state.outcome is None):
            continue
        runs.append(UpRun(state, is_up_run(state, store)))
    return tuple(runs)


def is_up_run(state: RunState, store: Store) -> bool:
    return bool(state.folder) and Path(state.folder).parent == (store.folder / _FOLDER).absolute()


@contextmanager
def suggest_up_commands(host: AnyHost) -> Iterator[None]:
    """Replace `winhost resume` and `winhost rollback` by `winhost up` and `winhost down` in errors of a run of `up`."""
    try:
        yield
    except RunInterrupted as error:
        if error.run is not None and error.hint is not None:
            is_here = is_local(host)
            up = command_line(("winhost", "up", *(() if is_here else ("--on", host.name))))
            down = command_line(("winhost", "down", *(() if is_here else (host.name,))))
            resume_command = (
                rf"winhost resume {re.escape(error.run)}(?=[^=\n]*$)"  # `resume` alone takes other settings
            )
            hint = re.sub(resume_command, up, error.hint, flags=re.MULTILINE)
            error.hint = hint.replace(f"winhost rollback {error.run}", down)
        raise


def hosts_of_up_runs(store: Store) -> tuple[str, ...]:
    """Return the hosts with a run of `up` that is not undone, oldest run first."""
    hosts: dict[str, None] = {}
    for name in store.runs():
        with suppress(WinhostError):  # a damaged journal of another host must not stop this command
            state = replay(name, read_journal(store.existing_journal(name)))
            if any(each.by_up for each in standing_runs(store, state.host)):
                hosts.setdefault(state.host)
    return tuple(hosts)
