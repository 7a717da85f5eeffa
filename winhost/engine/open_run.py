"""The common part of going forward and back: a run's journal and state, the session with its host, and the errors with
which it stops before its end.
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
from winhost.core.marks import MarkedRun, without
from winhost.core.order import NoInstance
from winhost.core.steps import Step
from winhost.engine import disk_images, uploads
from winhost.engine.failures import EndOfRun, gone, halted, wrong_host
from winhost.engine.host_session import HostSession
from winhost.engine.journal import SCHEMA, Journal
from winhost.engine.planning import CheckedPlan, request_of
from winhost.engine.progress import ProgressEvent
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import RunState, fold, id_of, replay
from winhost.engine.store import me
from winhost.model.documents import plain
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.paths.playbook import PathRequest
from winhost.resources.base import Attachment
from winhost.resources.host import HostFacts
from winhost.resources.registry import SYSTEMS, describe_missing

_NOTHING_LOST = "The journal knows what was begun and the host what is true: nothing is lost."


class RunFiles:
    """The files beside a plan. folder: where they lie; request: what is asked for, parsed when it is needed."""

    def __init__(self, context: RunContext, folder: Path, request: Callable[[], PathRequest]) -> None:
        self._context = context
        self._folder = folder
        self._request = request

    def find(self, desired: Attachment) -> Path:
        """The path of an attachment. Raises UploadInterrupted, and what `disk_images.made_disk` raises."""
        return disk_images.found(self._folder, self._request(), self._tell_of_disk)(desired)

    def check(self, steps: Iterable[Step]) -> None:
        """Check that the files of these steps exist, and can be sent as the request says. Raises UsageError (NotBeside,
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
        """The server for a request in which the host downloads files from this computer."""
        machine = self._context.machine
        if machine is None or self._upload != "http":
            return None
        from winhost.connect.one_time import offered  # a server of HTTP, which few runs need

        return partial(offered, toward=machine.address)

    def share(self) -> uploads.Share | None:
        """The share for a request in which files are written to the host by SMB or SFTP."""
        machine = self._context.machine
        if machine is None:
            return None
        if self._upload == "smb":
            from winhost.connect.file_copy import sent_by_smb

            return partial(sent_by_smb, machine)
        if self._upload == "sftp":
            from winhost.connect.file_copy import sent_by_sftp

            return partial(sent_by_sftp, machine)
        return None

    @property
    def _upload(self) -> str:
        return disk_images.upload_of(self._request())

    def _tell_of_disk(self, doing: str, done: int, whole: int) -> None:
        """Report the progress of a disk that is made here before it is sent. Raises UploadInterrupted where somebody
        asked to stop.
        """
        if self._context.stop():
            raise uploads.UploadInterrupted
        self._context.tell(disk_images.told(self._context.connector.host, doing, done, whole))


class OpenRun:
    """name: of the run; record: what its journal adds up to; changed: steps done by now; session: with its host.

    The journal is begun with the first change and not before: a plan that is refused leaves no run behind.
    """

    def __init__(
        self,
        name: str,
        context: RunContext,
        checked: CheckedPlan | None = None,
        accepted: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.context = context
        self.changed = 0
        self.journal: Journal | None = None
        self._request = checked.request if checked else None
        if checked is None:
            self.journal = Journal(context.store.existing(name), context.around)
            self.record = replay(name, self.journal.entries)
        else:
            plan, folder = checked.plan, str(context.folder.absolute())
            self.record = RunState(
                run=name, host=plan.host, plan=plan, accepted=accepted, stages=plan.stages[:1], folder=folder
            )
        self.began_at = len(self.journal.entries) if self.journal else 0
        self.files = RunFiles(context, Path(self.record.folder), lambda: self.request)
        self.session = HostSession(
            context.connector,
            context.patience,
            context.tell,
            context.within,
            uploads.Sources(self.files.find, self.files.offer, self.files.share),
            context.stop,
            context.cuttable,
        )

    @property
    def request(self) -> PathRequest:
        """The parsed request, which is parsed once, when it is first needed. Raises UsageError: NotAPlan."""
        if self._request is None:
            self._request = request_of(self.record.plan)
        return self._request

    @request.setter
    def request(self, request: PathRequest) -> None:
        self._request = request

    def parse(self) -> None:
        """Parse the request before the host is read to go forward, because `read` reads what its playbook names; going
        back needs none. Raises UsageError: NotAPlan.
        """
        self._request = self.request

    # ---- reading

    def read(self, *, settled: bool = False) -> Facts:
        """The host as it is, with what the plan names and the run touched."""
        goals = (goal for stage in self.record.stages for goal in stage.desired)
        named = {*self.record.touched, *(identity(goal.resource, goal.key) for goal in goals)}
        if self._request is not None:  # later stages are planned from it; going back needs no playbook
            named |= self._request.playbook.named
        return self.session.facts(named, settled=settled)

    def seen(self) -> Facts:
        """The host as it is, and the very machine of the plan. Raises UsageError: WrongHost."""
        facts = self.read(settled=self.journal is not None)
        machine = HostFacts(facts).machine_id
        if machine != self.record.plan.machine_id:
            raise wrong_host(self.record.host, self.record.plan.machine_id, machine)
        return facts

    # ---- telling

    @property
    def begun(self) -> str | None:
        """The run's name, once there is such a run."""
        return self.name if self.journal is not None else None

    @property
    def marked(self) -> MarkedRun:
        """The run as marks on the host name it. Only for a run that has a journal."""
        assert self.journal is not None
        return MarkedRun(self.name, id_of(self.journal.entries), me())

    def end_of_run(self, code: str, what: str, meaning: str | None = None, **more: Any) -> EndOfRun:
        """Make the error with which this run stops before its end. what: behind the name of the host; more: as
        `EndOfRun` takes it.
        """
        back = self.record.going_back
        host = self.record.host
        return EndOfRun(code, f"{host}: {what}", meaning, host=host, run=self.begun, going_back=back, **more)

    def forget_marks(self, facts: Facts | None = None, but: Iterable[Id] = ()) -> None:
        """Take its marks off the host, but those of these resources. facts: of the systems that can be reached."""
        for system in self.marked_systems(facts):
            self.session.keep_marks(system, lambda lines: without(lines, self.marked.id, but))

    def marked_systems(self, facts: Facts | None = None) -> list[str]:
        """The systems in which the run changed something, among those that the facts cover."""
        read = None if facts is None else [name for name, found in facts.resources.items() if isinstance(found, tuple)]
        return [
            system
            for system, known in SYSTEMS.items()
            if any(resource in known for resource, _ in self.record.touched)
            and (read is None or any(resource in known for resource in read))
        ]

    def write(self, event: str, **fields: Any) -> None:
        """An entry in the journal, which is begun when there is none yet. Raises EndOfRun: CannotWrite."""
        try:
            if self.journal is None:
                self.journal = self._new_journal()
            entry = self.journal.write(event, **fields)
        except OSError as error:
            what = f"the journal cannot be written: {visible(str(error))}"
            meaning = "No step is begun before the journal says so on disk; free some space in the state folder."
            raise self.end_of_run("CannotWrite", what, meaning) from error
        self.record = fold(self.record, entry)

    def _new_journal(self) -> Journal:
        """Begin the journal with the plan, and with what needed nothing before the first change."""
        path = self.context.store.path(self.name)
        journal = Journal(path, self.context.around)
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

    def tell(self, kind: str, text: str, step: Step | None = None, number: int = 0, total: int = 0) -> None:
        """Report progress to whoever watches."""
        self.context.tell(ProgressEvent(self.record.host, kind, text, step, number, total, run=self.begun or ""))

    # ---- ending before the end

    @contextmanager
    def reaching(self, *, looking: bool = False) -> Iterator[None]:
        """Close the wire in the end; a run that ends before its end says why, in its journal too, and how to go on.

        looking: the run is only looked at, which is no part of it and leaves no line.
        Raises EndOfRun, and what stands in the way of a run that has changed nothing as it is.
        """
        try:
            yield
        except (WinhostError, MissingFact, NoInstance, KeyboardInterrupt, uploads.UploadInterrupted) as error:
            ending = self._ending(error)
            if not looking:
                self._write_stopped(ending)
            if ending is error:
                raise
            raise ending from error
        finally:
            self.session.close()

    def _ending(
        self, error: WinhostError | MissingFact | NoInstance | KeyboardInterrupt | uploads.UploadInterrupted
    ) -> WinhostError | KeyboardInterrupt:
        """The error with the ways on and back, where there are any."""
        host, back = self.record.host, self.record.going_back
        if isinstance(error, NoInstance):
            error = gone(host, error, visible(host))
        if isinstance(error, MissingFact):
            error = error_of(error, host) or error
        if isinstance(error, uploads.UploadInterrupted):
            return self._stopped()
        if isinstance(error, MissingFact):
            meaning = "Nothing is changed without it: neither what to do nor how to undo it would be known."
            return self.end_of_run("CannotTell", visible(describe_missing(error)), meaning)
        if isinstance(error, EndOfRun) or self.journal is None:
            return error
        if isinstance(error, KeyboardInterrupt):
            meaning = "That step may still be going on there. Whoever goes on or back waits for it and reads again."
            return self.end_of_run("CutShort", "stopped in the middle of a step, as you asked", meaning)
        if isinstance(error, WireError):
            advice = isinstance(error, GuestSilent) or error.code == "NotBack"  # what to look at where nobody answers
            return EndOfRun(
                "OutOfReach",
                what=error.what,
                meaning=error.meaning if advice else _NOTHING_LOST,
                host=host,
                run=self.name,
                going_back=back,
                exit_code=error.exit_code,
            )
        return error if self.record.unchanged else halted(host, self.name, error, back)

    def _write_stopped(self, ending: WinhostError | KeyboardInterrupt) -> None:
        """Record the reason for `winhost runs`: where a terminal was, there may be none by now. Not for a mere
        preview.
        """
        if self.journal is None or not isinstance(ending, WinhostError):
            return
        if self.record.outcome is not None and len(self.journal.entries) == self.began_at:
            return
        next_ = [command for _, command in ending.next_steps] if isinstance(ending, EndOfRun) else []
        with suppress(EndOfRun):  # then it is the journal that stopped it
            self.write("stopped", why=ending.what, next=next_)
            if self.record.unchanged and not self.record.going_back:
                with suppress(WinhostError, KeyboardInterrupt):  # a mark of what was not done says nothing
                    self.forget_marks()
                self.write("outcome", outcome="nothing changed")

    def stop_if_asked(self) -> None:
        """Stop between two steps if somebody asked. Raises EndOfRun: Stopped."""
        if self.context.stop():
            raise self._stopped()

    def _stopped(self) -> EndOfRun:
        """Make the error for a run that was stopped from outside, after a step or between two pieces of a file that it
        sends.
        """
        midway = self.record.midway
        changes = f"{self.changed} {'change' if self.changed == 1 else 'changes'}"
        meaning = f"Until it goes on or back: {'; '.join(midway)}." if midway else None
        return self.end_of_run("Stopped", f"stopped after {changes}, {self.context.why()}", meaning)
