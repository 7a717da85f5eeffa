"""The context of a run, and its outcome."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from pathlib import Path

from winhost.connect.agent import Connector
from winhost.connect.patience import Patience
from winhost.core.answers import Key
from winhost.core.checks import Check
from winhost.core.dataclass import dataclass
from winhost.core.journal_lines import RawEvent
from winhost.engine.events import Waiting
from winhost.engine.host_session import HostSession
from winhost.engine.progress import ProgressEvent
from winhost.engine.run_state import RunState
from winhost.engine.store import Store
from winhost.model.errors import Exit
from winhost.model.fleet import Host


@dataclass(frozen=True)
class RunContext:
    """The context of a run. within: seconds that a guest has to shut down; is_stop_requested, stop_reason: whether the
    run stops after the step in flight, and why; journal_hook: see Journal; folder: of a new plan and its files (a
    resumed run has it in its journal); interruptible: a context around each wait for the host. Only there
    KeyboardInterrupt may interrupt the run: elsewhere a line could be on disk that this process does not know of.
    machine: the Windows host, for files that are not sent over the connection; final_checks: more checks after all
    goals hold.
    """

    connector: Connector
    store: Store
    patience: Patience = field(default_factory=Patience)
    within: float = 300
    report: Callable[[ProgressEvent], None] = lambda event: None
    is_stop_requested: Callable[[], bool] = lambda: False
    journal_hook: Callable[[str, RawEvent], None] = lambda when, entry: None
    folder: Path = Path()
    stop_reason: Callable[[], str] = lambda: "as you asked"
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
    machine: Host | None = None
    final_checks: Callable[[RunState, HostSession], tuple[Check, ...]] = lambda record, session: ()


@dataclass(frozen=True)
class Undecided:
    """A resource about which rollback could not decide because a fact is missing. until: the resource that has to exist
    first, if that is the reason.
    """

    title: str
    resource: str
    key: Key
    why: str
    until: str | None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. changed: the number of steps done by this call; kept: sentences about resources that
    rollback kept, and why; missing: resources about which it could not decide, so that the run stays open; waiting:
    those of `kept` that can be undone once newer changes are; next: the instruction for what remains.
    """

    run: str
    host: str
    outcome: str
    changed: int
    checks: tuple[Check, ...] = ()
    kept: tuple[str, ...] = ()
    missing: tuple[Undecided, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    next: str | None = None

    @property
    def holds(self) -> bool:
        """True if all goals hold and nothing remains to undo."""
        return not self.missing and not self.waiting and all(check.holds for check in self.checks)

    @property
    def exit_code(self) -> Exit:
        """DRIFT if the final check found a difference; FAILURE if a rollback could not decide about a resource, or
        keeps one for later.
        """
        if self.missing or self.outcome == "partly rolled back":
            return Exit.FAILURE
        return Exit.SUCCESS if self.holds else Exit.DRIFT
