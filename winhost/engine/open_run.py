"""The common part of applying and rolling back: a run's journal and state, the session with its host, and the errors
with which it stops before its end.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from winhost import __version__
from winhost.connect.ways_in import GuestSilent
from winhost.connect.wire_errors import WireError, error_of
from winhost.core.answers import Id, MissingFact, identity
from winhost.core.marks import MarkedRun, remove_run_marks
from winhost.core.order import NoInstance
from winhost.core.steps import Step
from winhost.engine import disk_images, uploads
from winhost.engine.failures import RunInterrupted, halted_error, missing_instance_error, wrong_host_error
from winhost.engine.host_session import HostSession
from winhost.engine.journal import SCHEMA, Journal
from winhost.engine.planning import CheckedPlan, request_of
from winhost.engine.progress import ProgressEvent
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import RunState, fold, id_of, replay
from winhost.engine.store import user_and_computer
from winhost.model.documents import plain
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.paths.playbook import PathRequest
from winhost.resources.base import Attachment
from winhost.resources.host import HostFacts
from winhost.resources.registry import SYSTEMS, describe_missing

_NOTHING_LOST = "The journal knows what was begun and the host what is true: nothing is lost."


class RunFiles:
    """The files next to a plan. folder: of the plan; request: returns the parsed request."""

    def __init__(self, context: RunContext, folder: Path, request: Callable[[], PathRequest]) -> None:
        self._context = context
        self._folder = folder
        self._request = request

    def find(self, desired: Attachment) -> Path:
        """Return the path of an attachment. Raises UploadInterrupted, and as `disk_images.make_disk` does."""
        return disk_images.file_finder(self._folder, self._request(), self._report_disk)(desired)

    def check(self, steps: Iterable[Step]) -> None:
        """Check that the files of these steps exist and can be sent in the requested way. Raises UsageError (NotBeside,
        NoSftp).
        """
        steps = tuple(steps)
        uploads.check(steps, self.find)
        machine = self._context.machine
        if self._upload == "sftp" and machine and machine.sftp is None and any(map(uploads.attachment_of, steps)):
            raise UsageError(
                "NoSftp",
                what=f"fleet.yaml does not say how the OpenSSH server of {machine.name} is entered",
                meaning="The plan was made with --upload sftp, and nothing was sent.",
                hint=f"hosts.{machine.name}.sftp: {{}} logs on as for transport; or plan with another --upload",
            )

    def offer(self) -> uploads.Offer | None:
        """Return the HTTP server from which the host downloads files, if the request asks for one."""
        machine = self._context.machine
        if machine is None or self._upload != "http":
            return None
        from winhost.connect.one_time import serve_file  # few runs need an HTTP server

        return partial(serve_file, host_address=machine.address)

    def share(self) -> uploads.Share | None:
        """Return the function that writes files to the host by SMB or SFTP, if the request asks for one."""
        machine = self._context.machine
        if machine is None:
            return None
        if self._upload == "smb":
            from winhost.connect.file_copy import send_by_smb

            return partial(send_by_smb, machine)
        if self._upload == "sftp":
            from winhost.connect.file_copy import send_by_sftp

            return partial(send_by_sftp, machine)
        return None

    @property
    def _upload(self) -> str:
        return disk_images.upload_transport(self._request())

    def _report_disk(self, doing: str, done: int, whole: int) -> None:
        """Report the progress of a disk that is made before it is sent. Raises UploadInterrupted if the user has asked
        to stop.
        """
        if self._context.is_stop_requested():
            raise uploads.UploadInterrupted
        self._context.report(disk_images.disk_progress(self._context.connector.host, doing, done, whole))


class OpenRun:
    """A run that was opened to work on it, or to preview it. record: its state by the journal; changed: the number of
    steps done by this process; session: with its host.

    The journal is created with the first change, so that a refused plan leaves no run behind.
    """

    def __init__(
        self, name: str, context: RunContext, checked: CheckedPlan | None = None, accepted: frozenset[str] = frozenset()
    ) -> None:
        self.name = name
        self.context = context
        self.changed = 0
        self.journal: Journal | None = None
        self._request = checked.request if checked else None
        if checked is None:
            self.journal = Journal(context.store.existing_journal(name), context.journal_hook)
            self.record = replay(name, self.journal.entries)
        else:
            plan, folder = checked.plan, str(context.folder.absolute())
            self.record = RunState(
                run=name, host=plan.host, plan=plan, accepted=accepted, stages=plan.stages[:1], folder=folder
            )
        self.initial_length = len(self.journal.entries) if self.journal else 0
        self.files = RunFiles(context, Path(self.record.folder), lambda: self.request)
        self.session = HostSession(
            context.connector,
            context.patience,
            context.report,
            context.within,
            uploads.Sources(self.files.find, self.files.offer, self.files.share),
            context.is_stop_requested,
            context.interruptible,
        )

    @property
    def request(self) -> PathRequest:
        """The parsed request. Raises UsageError: NotAPlan."""
        if self._request is None:
            self._request = request_of(self.record.plan)
        return self._request

    @request.setter
    def request(self, request: PathRequest) -> None:
        self._request = request

    def parse_request(self) -> None:
        """Parse the request, so that `read` also reads the resources that its playbook names. A rollback needs no
        request. Raises UsageError: NotAPlan.
        """
        self._request = self.request

    # ---- reading

    def read(self, *, settled: bool = False) -> Facts:
        """Read the host, including the instances that the plan names and those that the run changed."""
        goals = (goal for stage in self.record.stages for goal in stage.desired)
        named = {*self.record.touched, *(identity(goal.resource, goal.key) for goal in goals)}
        if self._request is not None:  # later stages are planned from it
            named |= self._request.playbook.named
        return self.session.facts(named, settled=settled)

    def read_planned_host(self) -> Facts:
        """Read the host and check that it is the machine of the plan. Raises UsageError: WrongHost."""
        facts = self.read(settled=self.journal is not None)
        machine = HostFacts(facts).machine_id
        if machine != self.record.plan.machine_id:
            raise wrong_host_error(self.record.host, self.record.plan.machine_id, machine)
        return facts

    # ---- journal, marks and progress

    @property
    def name_if_started(self) -> str | None:
        """The run's name; None while it has no journal."""
        return self.name if self.journal is not None else None

    @property
    def marked_run(self) -> MarkedRun:
        """The run in the form that marks on the host name it. Only for a run with a journal."""
        assert self.journal is not None
        return MarkedRun(self.name, id_of(self.journal.entries), user_and_computer())

    def interrupted(self, code: str, what: str, meaning: str | None = None, **more: Any) -> RunInterrupted:
        """Make the error with which this run stops before its end. what: the sentence after the host's name; more:
        arguments of `RunInterrupted`.
        """
        back = self.record.going_back
        host = self.record.host
        return RunInterrupted(
            code, f"{host}: {what}", meaning, host=host, run=self.name_if_started, going_back=back, **more
        )

    def forget_marks(self, facts: Facts | None = None, keep: Iterable[Id] = ()) -> None:
        """Remove the marks of the run from the host. facts: show which systems can be reached; keep: resources whose
        marks stay.
        """
        for system in self.marked_systems(facts):
            self.session.keep_marks(system, lambda lines: remove_run_marks(lines, self.marked_run.id, keep))

    def marked_systems(self, facts: Facts | None = None) -> list[str]:
        """Return the systems in which the run changed something, if the facts cover them."""
        readable = (
            None if facts is None else [name for name, found in facts.resources.items() if isinstance(found, tuple)]
        )
        return [
            system
            for system, known in SYSTEMS.items()
            if any(resource in known for resource, _ in self.record.touched)
            and (readable is None or any(resource in known for resource in readable))
        ]

    def write(self, event: str, **fields: Any) -> None:
        """Append an entry to the journal, which is created if there is none yet. Raises RunInterrupted: CannotWrite."""
        try:
            if self.journal is None:
                self.journal = self._new_journal()
            entry = self.journal.write(event, **fields)
        except OSError as error:
            what = f"the journal cannot be written: {visible(str(error))}"
            meaning = "No step is begun before the journal says so on disk; free some space in the state folder."
            raise self.interrupted("CannotWrite", what, meaning) from error
        self.record = fold(self.record, entry)

    def _new_journal(self) -> Journal:
        """Create the journal with the plan, and with the stages that needed no change."""
        path = self.context.store.path(self.name)
        journal = Journal(path, self.context.journal_hook)
        try:
            journal.write(
                "run",
                schema=SCHEMA,
                run=self.name,
                winhost=__version__,
                plan=plain(self.record.plan),
                accepted=sorted(self.record.accepted),
                folder=self.record.folder,
            )
            for stage in self.record.stages[1:]:
                journal.write("planned", stage=plain(stage))
            for number in sorted(self.record.finished_stages):
                journal.write("stage", number=number)
        except (OSError, KeyboardInterrupt):
            path.unlink(missing_ok=True)
            raise
        return journal

    def report(self, kind: str, text: str, step: Step | None = None, number: int = 0, total: int = 0) -> None:
        """Report progress to the user."""
        self.context.report(
            ProgressEvent(self.record.host, kind, text, step, number, total, run=self.name_if_started or "")
        )

    # ---- errors

    @contextmanager
    def connected(self, *, is_preview: bool = False) -> Iterator[None]:
        """A context that closes the connection at the end, and converts errors: the user and the journal learn why the
        run stopped, and how to resume it or roll it back. Errors of a run that has changed nothing are not converted.

        is_preview: do not write to the journal. Raises RunInterrupted.
        """
        try:
            yield
        except (WinhostError, MissingFact, NoInstance, KeyboardInterrupt, uploads.UploadInterrupted) as error:
            interruption = self._interruption(error)
            if not is_preview:
                self._write_stopped(interruption)
            if interruption is error:
                raise
            raise interruption from error
        finally:
            self.session.close()

    def _interruption(
        self, error: WinhostError | MissingFact | NoInstance | KeyboardInterrupt | uploads.UploadInterrupted
    ) -> WinhostError | KeyboardInterrupt:
        """Convert an error to one with the commands that resume the run and roll it back, if they apply."""
        host, back = self.record.host, self.record.going_back
        if isinstance(error, NoInstance):
            error = missing_instance_error(host, error, visible(host))
        if isinstance(error, MissingFact):
            error = error_of(error, host) or error
        if isinstance(error, uploads.UploadInterrupted):
            return self._stopped()
        if isinstance(error, MissingFact):
            meaning = "Nothing is changed without it: neither what to do nor how to undo it would be known."
            return self.interrupted("CannotTell", visible(describe_missing(error)), meaning)
        if isinstance(error, RunInterrupted) or self.journal is None:
            return error
        if isinstance(error, KeyboardInterrupt):
            meaning = "That step may still be going on there. Whoever goes on or back waits for it and reads again."
            return self.interrupted("CutShort", "stopped in the middle of a step, as you asked", meaning)
        if isinstance(error, WireError):
            has_advice = isinstance(error, GuestSilent) or error.code == "NotBack"  # these errors say what to check
            return RunInterrupted(
                "OutOfReach",
                what=error.what,
                meaning=error.meaning if has_advice else _NOTHING_LOST,
                host=host,
                run=self.name,
                going_back=back,
                exit_code=error.exit_code,
            )
        return error if self.record.unchanged else halted_error(host, self.name, error, back)

    def _write_stopped(self, interruption: WinhostError | KeyboardInterrupt) -> None:
        """Write the reason to the journal, for `winhost runs`. Nothing is written for a resumed run that had ended
        before and did nothing.
        """
        if self.journal is None or not isinstance(interruption, WinhostError):
            return
        if self.record.outcome is not None and len(self.journal.entries) == self.initial_length:
            return
        next_ = [command for _, command in interruption.next_steps] if isinstance(interruption, RunInterrupted) else []
        with suppress(RunInterrupted):  # the journal cannot be written; that may be why the run stopped
            self.write("stopped", why=interruption.what, next=next_)
            if self.record.unchanged and not self.record.going_back:
                with suppress(WinhostError, KeyboardInterrupt):  # marks of changes that were not made do no harm
                    self.forget_marks()
                self.write("outcome", outcome="nothing changed")

    def stop_if_requested(self) -> None:
        """Stop between two steps if the user has asked for that. Raises RunInterrupted: Stopped."""
        if self.context.is_stop_requested():
            raise self._stopped()

    def _stopped(self) -> RunInterrupted:
        """Make the error for a run that the user stopped, after a step or between two pieces of a file."""
        midway = self.record.midway
        changes = f"{self.changed} {'change' if self.changed == 1 else 'changes'}"
        meaning = f"Until it goes on or back: {'; '.join(midway)}." if midway else None
        return self.interrupted("Stopped", f"stopped after {changes}, {self.context.stop_reason()}", meaning)
