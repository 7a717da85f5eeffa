"""One host in reach: opens the wire when it is needed, settles a lost answer by reading again, restarts."""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from winhost.connect import reboot
from winhost.connect.agent import NO_RANGE, NOT_FETCHED, Agent, Connector, Received
from winhost.connect.file_copy import NotWritten
from winhost.connect.logged import brief, failure, log_retry, logged
from winhost.connect.patience import Patience
from winhost.connect.tunnel import SshWay
from winhost.connect.wire_errors import (
    AuthenticationFailed,
    Drifted,
    NotAvailable,
    ReachAnew,
    RemoteError,
    SessionDropped,
    TimedOut,
    Unreachable,
    not_found,
)
from winhost.core.answers import Json, Key, RemoteFault
from winhost.core.order import change_of
from winhost.core.steps import Change, SetAnswer, Step
from winhost.engine import uploads
from winhost.engine.detect import Named, read_facts
from winhost.engine.progress import ProgressEvent
from winhost.model.facts import Facts
from winhost.model.secrets import SecretRef
from winhost.resources.base import Attachment
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.windows.disks import received_at

log = logging.getLogger(__name__)

T = TypeVar("T")

_FETCH_SLICE_S = 20  # seconds of a fetch, until it is told how far it is
_MAX_ATTEMPTS = 5  # in a row that bring nothing of a download that has begun
_MIN_REPORTED_S = 60  # seconds that are left

_UNDO_S = 5  # seconds that a host may take to undo a change, beside the time that it waits


class HostSession:
    """A session with a host, opened when it is first needed and again where it was lost.

    tell: is told of waiting and sending; within: seconds that a guest has to shut down; sources: by default the current
    folder; stop: whether somebody asked to stop, which ends sending between two pieces; cuttable: surrounds all waiting
    for the host, where a run may be cut short.
    """

    def __init__(
        self,
        connector: Connector,
        patience: Patience,
        report: Callable[[ProgressEvent], None],
        within: float = 300,
        sources: uploads.Sources | None = None,
        stop: Callable[[], bool] = lambda: False,
        interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.host = connector.host
        self._sources = sources or uploads.Sources(uploads.find_in_folder(Path()))
        self._stop = stop
        self._interruptible = interruptible
        self._connector = connector
        self._patience = patience
        self._report = report
        self._within = within
        self._agent: Agent | None = None
        self.waits_for_guests = False
        """True if the session waits for a guest that runs and does not answer."""

    def close(self) -> None:
        """Give the runspace back."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def facts(self, named: Named = (), *, settled: bool = False) -> Facts:
        """Read everything, and what is named; a read whose answer was lost is simply read again, once."""
        self._report(ProgressEvent(self.host, "at", "reading"))

        def read(agent: Agent) -> Facts:
            facts = read_facts(agent, named, settled=settled)
            agent.keep(facts)
            return facts

        return self._read(read)

    def state(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """One state, or None where there is no such instance."""
        return self._read(lambda agent: agent.get(resource, key, settled=settled))

    def set(self, step: Step, accepted: frozenset[str], mark: str | None = None) -> SetAnswer:
        """Do a step. A lost answer is settled by reading what is so, and only then is the rest asked for again.

        What the step takes from beside the plan is sent first. mark: kept on the host from before the change. Raises
        UploadInterrupted, UsageError (NotBeside, SecretUnreadable).
        """
        declared, expect = RESOURCE_TYPES[step.resource], step.before
        within = max(self._within, declared.lasts(change_of(step)))
        how: dict[str, Json] = {"accept": sorted(accepted & {*step.risks, *step.may_need}), "within": within}
        if mark:
            how["mark"] = mark
        if reference := step.desired.get(declared.credential):
            how["secret"] = SecretRef.parse(reference).resolve().reveal()
        if desired := uploads.attachment_of(step):
            expect = self._send(step, desired)
        elif address := uploads.download_address(step):
            expect = self._download(step, address)
        try:
            return self._call(lambda agent: agent.set(step.resource, step.key, step.desired, expect, how))
        except (SessionDropped, TimedOut) as lost:
            log.info("%s: set %s: its answer is lost, so reading what is so", self.host, step.resource)
            self._report(ProgressEvent(self.host, "waiting", f"{lost.what}; reading what is so", step))
            if isinstance(lost, ReachAnew):
                self._reconnect_after_lockout(step)
            return self._resolve_lost_answer(step, how)

    def marks(self, system: str) -> tuple[str, ...]:
        """The marks of runs on the host, or on its Linux; none where that system does not run."""
        with suppress(NotAvailable):
            return self._read(lambda agent: agent.marks(system))
        return ()

    def keep_marks(self, system: str, keep: Callable[[Sequence[str]], list[str]]) -> None:
        """Keep only the marks that `keep` returns, also if another controller adds some meanwhile."""
        while (lines := keep(known := self.marks(system))) != [*known]:
            with suppress(Drifted):  # then they are read again
                return self._call(lambda agent: agent.keep_marks(system, lines, known))
        return None

    def set_with_secret(self, resource: str, key: Key, desired: Mapping[str, Json], secret: str) -> None:
        """Give something that this run made what is made at the moment of use, and stands in no plan and no journal."""
        now = self.state(resource, key) or {}
        expect = {name: now.get(name) for name in desired}
        within = max(self._within, RESOURCE_TYPES[resource].lasts(Change(key, {}, desired)))
        how = {"accept": ["data"], "within": within, "secret": secret}
        self._call(lambda agent: agent.set(resource, key, desired, expect, how))

    def _send(self, step: Step, desired: Attachment) -> Mapping[str, Json]:
        """Send the step's file, and return the step's properties once all of it is there."""
        received = self._read(lambda agent: agent.received(step.resource, step.key, step.before))
        activity = f"send {brief(desired.name)}, of which {received.size:,} bytes are there"
        with (
            uploads.open_attachment(desired, self._sources.find) as source,
            logged(log, self.host, activity) as details,
        ):
            details.append(f"{source.size:,} bytes")
            start = (time.monotonic(), received.size)
            for offset in self._send_pieces(step, source, received):
                self._report_transfer(step, "sent", offset, source.size, start)
                self._stop_if_requested()
        return self._present_values(step)

    def _download(self, step: Step, address: str) -> Mapping[str, Json]:
        """Let the host download what it can, and return the step's properties. It downloads in slices, so that progress
        is shown, and a killed run continues there; where the server cannot, the step itself fetches all of it.
        """
        received = self._read(lambda agent: agent.received(*_target(step), step.before))
        start = (time.monotonic(), received.size)
        reported = False
        slices = self._receiver(
            step, lambda agent, offset: self._slice(agent, step, offset, address, offset > start[1])
        )
        try:
            for offset, total in uploads.fetch(received, slices):
                if (offset != total and (offset or total)) or reported:  # what came in one slice is told by its step
                    self._report_transfer(step, "fetched", offset, total, start)
                    reported = True
                self._stop_if_requested()
        except RemoteError as error:
            if error.fault.code != NO_RANGE:
                raise
            note = f"{step.title}: its server cannot go on in the middle; all of it is fetched again, unwatched"
            self._report(ProgressEvent(self.host, "note", note, step))
        return self._present_values(step)

    def _slice(self, agent: Agent, step: Step, offset: int, address: str, retry: bool) -> Received:
        """Fetch a slice. patient: more of it has come before, so what breaks off is tried again."""
        for attempt in range(1, _MAX_ATTEMPTS):
            try:
                return agent.pull(*_target(step), offset, address, _FETCH_SLICE_S)
            except RemoteError as error:
                if error.fault.code != NOT_FETCHED or not retry:
                    raise
                self._report(ProgressEvent(self.host, "waiting", f"{error}; trying again", step))
            self._stop_if_requested()
            time.sleep(min(self._patience.longest, self._patience.first * 2**attempt))
        return agent.pull(*_target(step), offset, address, _FETCH_SLICE_S)

    def _present_values(self, step: Step) -> Mapping[str, Json]:
        now = self.state(step.resource, step.key) or {}
        return {name: now.get(name) for name in step.before}

    def _send_pieces(self, step: Step, source: uploads.OpenAttachment, received: Received) -> Iterator[int]:
        """Send by fetching or by writing on the host where that was asked for and works; else in pieces by wire."""
        offer, share = self._sources.offer(), self._sources.share()
        try:
            if offer is not None:
                with offer(Path(source.path)) as address:
                    fetch = self._receiver(
                        step, lambda agent, offset: agent.pull(*_target(step), offset, address, _FETCH_SLICE_S)
                    )
                    yield from uploads.send(source, received, fetch)
            elif share is not None:
                yield from self._write_to_share(step, source, received, share)
            if offer or share:
                return
        except (RemoteError, OSError, NotWritten) as error:
            if isinstance(error, RemoteError) and error.fault.code != NOT_FETCHED:
                raise
            how = "it cannot be fetched from this computer" if offer else "it cannot be written to the host"
            why = f"{how} ({error}); sending it over the connection instead"
            self._report(ProgressEvent(self.host, "note", f"{step.title}: {why}", step))
            received = self._read(lambda agent: agent.received(*_target(step), {}))
        pieces = self._receiver(step, lambda agent, offset: agent.send(*_target(step), offset, source.piece(offset)))
        yield from uploads.send(source, received, pieces)

    def _write_to_share(
        self, step: Step, source: uploads.OpenAttachment, received: Received, share: uploads.Share
    ) -> Iterator[int]:
        offset = source.resume_offset(received)
        if offset == 0:  # the host makes the folder and notes what comes
            self._call(lambda agent: agent.send(*_target(step), 0, b""))
        yield from share(received_at(step.key), Path(source.path), offset)
        if self._read(lambda agent: agent.received(*_target(step), {})).size != source.size:
            raise NotWritten("what was written is not where the host looks for it")

    def _receiver(self, step: Step, transfer: Callable[[Agent, int], Received]) -> uploads.Receiver:
        """Make the receiver of a file. A lost answer does not tell whether the piece came: the host does, once it is in
        reach again.
        """

        def put(offset: int) -> Received:
            try:
                return self._call(lambda agent: transfer(agent, offset))
            except (SessionDropped, TimedOut) as lost:
                log.info("%s: send %s: an answer is lost, so asking what has come", self.host, step.resource)
                self._report(ProgressEvent(self.host, "waiting", f"{lost.what}; asking how much has come", step))
                raise

        def ask() -> Received:
            return self._retry_until_reached(lambda: self._call(lambda agent: agent.received(*_target(step), {})))

        return uploads.Receiver(put, ask)

    def _report_transfer(self, step: Step, verb: str, offset: int, total: int | None, start: tuple[float, int]) -> None:
        if total is None:
            return self._report(
                ProgressEvent(self.host, "sending", f"{step.title}: {verb} {offset / 1e6:.1f} MB", step)
            )
        text = f"{step.title}: {verb} {offset / 1e6:.1f} of {total / 1e6:.1f} MB"
        seconds, moved = time.monotonic() - start[0], offset - start[1]
        if moved > 0 and seconds > 0:
            text += f", {moved / seconds / 1e6:.1f} MB/s"
            if (remaining_s := (total - offset) * seconds / moved) >= _MIN_REPORTED_S:
                text += f", about {remaining_s / 60:.0f} min left"
        return self._report(ProgressEvent(self.host, "sending", text, step, percent=100 * offset // max(total, 1)))

    def boot_id(self) -> str:
        """The id of the present boot."""
        return str(self._read(lambda agent: agent.boot())["boot_id"])

    def restart(self, old_boot: str, extra_wait: float = 0) -> str:
        """Restart unless another boot is running already, and wait, for so many seconds longer than for a start.
        Returns the new boot id.

        Raises UploadInterrupted, and WireError (NotBack).
        """
        # A host that cannot be asked is going down already, or is asked again by whoever waits for it.
        with suppress(Unreachable, SessionDropped, TimedOut, AuthenticationFailed):
            if self._read(lambda agent: agent.boot()).get("boot_id") == old_boot:
                self._call(reboot.ask)
        self.close()
        with self._interruptible():
            patience = replace(self._patience, deadline=self._patience.deadline + extra_wait)
            self._agent, boot = reboot.wait(self._connector, old_boot, patience, self._report_each_once())
        return boot

    def _report_each_once(self) -> Callable[[str], None]:
        """A callback that reports each thing that is waited for once. A request to stop is heard at that moment."""
        reported: set[str] = set()

        def report(text: str) -> None:
            self._stop_if_requested()
            if text not in reported:
                reported.add(text)
                self._report(ProgressEvent(self.host, "waiting", text))

        return report

    def wait_until_reachable(self) -> None:
        """Wait for a host that may still be restarting. Raises the last WireError."""
        self._retry_until_reached(self._open)

    def _retry_until_reached(self, call: Callable[[], T]) -> T:
        """Ask until the host can be reached, or until somebody asks to stop.

        Raises UploadInterrupted, the last WireError.
        """
        report = self._report_each_once()

        def report_retry(attempt: Any) -> None:
            log_retry(log, self.host, "not reached", attempt)
            report(f"{attempt.outcome.exception()}; trying again")

        with self._interruptible():
            return self._patience.ask(call, report_retry)

    def _stop_if_requested(self) -> None:
        if self._stop():
            raise uploads.UploadInterrupted

    def _reconnect_after_lockout(self, step: Step) -> None:
        """Log on again once the host has undone the change that locked us out. One more logon is tried, not many: they
        might lock the account.
        """
        try:
            self._retry_until_reached(self._open)
        except AuthenticationFailed as refused:
            self._report(ProgressEvent(self.host, "waiting", f"{refused.what}; waiting for the host to undo it", step))
            deadline = time.monotonic() + self._within + _UNDO_S
            while time.monotonic() < deadline:
                self._stop_if_requested()
                with self._interruptible():
                    time.sleep(min(1, self._within))

    def _resolve_lost_answer(self, step: Step, how: Mapping[str, Json]) -> SetAnswer:
        # By the way to the very machine that has it: the host may answer long before the Linux on it does.
        now = self._retry_until_reached(lambda: self.state(step.resource, step.key, settled=True))
        if now is None:
            raise not_found(self.host, RemoteFault("ObjectNotFound"), f"set {step.resource}")
        if all(now[name] == value for name, value in step.desired.items()):
            return SetAnswer({**now, **step.before}, now, restart=now.get("restart_due") is True)
        expect = {name: now[name] for name in step.before}
        return self._call(lambda agent: agent.set(step.resource, step.key, step.desired, expect, how))

    def tunnel(self, address: str, port: int) -> socket.socket:
        """A connection from the host's Linux to this address. Raises WinhostError."""
        return self._read(lambda agent: agent.tunnel(address, port))

    def ssh_route(self) -> SshWay | None:
        """The SSH route to the host's Linux. Raises WinhostError."""
        return self._read(lambda agent: agent.way())

    def interruptible(self) -> AbstractContextManager[None]:
        """Around waiting for what the host serves, where a run may be cut short."""
        return self._interruptible()

    def _read(self, read: Callable[[Agent], T]) -> T:
        try:
            return self._call(read)
        except SessionDropped as lost:
            log.info("%s: %s, so reading again in another session", self.host, failure(lost))
            return self._call(read)

    def _call(self, action: Callable[[Agent], T]) -> T:
        try:
            with self._interruptible():
                agent = self._open()
                agent.hear = lambda text: self._report(ProgressEvent(self.host, "waiting", text))
                agent.patience = self._patience if self.waits_for_guests else None
                return action(agent)
        except (SessionDropped, TimedOut):
            self.close()  # whatever is asked next is asked in a new session
            raise

    def _open(self) -> Agent:
        if self._agent is None:
            self._agent = self._connector.open()
        return self._agent


def _target(step: Step) -> tuple[str, Key]:
    return step.resource, step.key
