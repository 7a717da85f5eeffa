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
    """The context of a run. within: seconds that a guest has to shut down; stop: whether to, after the step in flight,
    and why; around: the journal's hook; folder: of the plan, for the files beside it; a run that is resumed has it
    in its journal; interruptible: around all waiting for the host, where alone KeyboardInterrupt may cut the run short:
    elsewhere a line could be on disk that this process does not know of; machine: how Windows is reached, for files
    that do not come over the wire; final: what else is tried once all is as planned, and must hold.
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
    """A resource that rollback could neither restore nor keep, because a fact is missing: why, and until: the resource
    that has to be there first, where that is what lacks.
    """

    title: str
    resource: str
    key: Key
    why: str
    until: str | None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. changed: steps done by this call; kept: what rollback left as it is, and why; missing: what
    it could not judge, so that the run stays open; waiting: what of `kept` goes back once what came later is taken
    back; next: the command for that, and what must be so before it.
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
        """Everything that was wanted is so."""
        return not self.missing and not self.waiting and all(check.holds for check in self.checks)

    @property
    def exit_code(self) -> Exit:
        """Drift where the final verify found a difference, failure where going back could not judge all or keeps some
        for later.
        """
        if self.missing or self.outcome == "partly rolled back":
            return Exit.FAILURE
        return Exit.SUCCESS if self.holds else Exit.DRIFT
