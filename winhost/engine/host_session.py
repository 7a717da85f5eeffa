"""A session with one host: opens the connection when needed, resolves lost answers by reading again, restarts
the host.
"""

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
from winhost.connect.logged import error_code, log_retry, logged, shorten
from winhost.connect.patience import Patience
from winhost.connect.tunnel import SshRoute
from winhost.connect.wire_errors import (
    AuthenticationFailed,
    Drifted,
    NotAvailable,
    ReconnectRequired,
    RemoteError,
    SessionDropped,
    TimedOut,
    Unreachable,
    not_found_error,
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
from winhost.resources.windows.disks import partial_file_path

log = logging.getLogger(__name__)

T = TypeVar("T")

_FETCH_SLICE_S = 20  # seconds that the host downloads before it reports progress
_MAX_ATTEMPTS = 5  # in a row without progress of a download that has started
_MIN_REPORTED_S = 60  # a shorter remaining time is not reported

_UNDO_S = 5  # seconds that a host may take to undo a change, in addition to the time that it waits


class HostSession:
    """A session with a host. It is opened when first needed, and again if it was lost.

    report: is called with progress events; within: seconds that a guest has to shut down; sources: of files, by default
    the current folder; stop: whether the user has asked to stop, which ends sending between two pieces; interruptible:
    a context around each wait for the host, in which Ctrl-C may interrupt a run.
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
        """True if the session waits for a running guest that does not answer yet."""

    def close(self) -> None:
        """Close the connection."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def facts(self, named: Named = (), *, settled: bool = False) -> Facts:
        """Read all resources, and the named instances. If the answer is lost, read again once."""
        self._report(ProgressEvent(self.host, "at", "reading"))

        def read(agent: Agent) -> Facts:
            facts = read_facts(agent, named, settled=settled)
            agent.on_facts_read(facts)
            return facts

        return self._read(read)

    def state(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """Read the state of an instance; None if it does not exist."""
        return self._read(lambda agent: agent.get(resource, key, settled=settled))

    def set(self, step: Step, accepted: frozenset[str], mark: str | None = None) -> SetAnswer:
        """Do a step. The files that it needs are sent first. If the answer is lost, read the state, and repeat the
        request only if the step was not done.

        mark: a line that the host stores before the change. Raises UploadInterrupted, UsageError (NotBeside,
        SecretUnreadable).
        """
        declared, expect = RESOURCE_TYPES[step.resource], step.before
        within = max(self._within, declared.timeout(change_of(step)))
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
            log.info("%s: set %s: its answer is lost, so reading the state", self.host, step.resource)
            self._report(ProgressEvent(self.host, "waiting", f"{lost.what}; reading the state", step))
            if isinstance(lost, ReconnectRequired):
                self._reconnect_after_lockout(step)
            return self._resolve_lost_answer(step, how)

    def marks(self, system: str) -> tuple[str, ...]:
        """Read the marks of runs on the host, or on its Linux; none if that system does not run."""
        with suppress(NotAvailable):
            return self._read(lambda agent: agent.marks(system))
        return ()

    def keep_marks(self, system: str, keep: Callable[[Sequence[str]], list[str]]) -> None:
        """Remove the marks that `keep` does not return. Retries if another controller adds marks meanwhile."""
        while (lines := keep(known := self.marks(system))) != [*known]:
            with suppress(Drifted):  # read them again
                return self._call(lambda agent: agent.keep_marks(system, lines, known))
        return None

    def set_with_secret(self, resource: str, key: Key, desired: Mapping[str, Json], secret: str) -> None:
        """Set properties of a resource that this run made, with a secret that was generated just now. Neither is in the
        plan or in the journal.
        """
        now = self.state(resource, key) or {}
        expect = {name: now.get(name) for name in desired}
        within = max(self._within, RESOURCE_TYPES[resource].timeout(Change(key, {}, desired)))
        how = {"accept": ["data"], "within": within, "secret": secret}
        self._call(lambda agent: agent.set(resource, key, desired, expect, how))

    def _send(self, step: Step, desired: Attachment) -> Mapping[str, Json]:
        """Send the step's file, then read the present values of the step's properties."""
        received = self._read(lambda agent: agent.received(step.resource, step.key, step.before))
        activity = f"send {shorten(desired.name)}, of which {received.size:,} bytes are there"
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
        """Let the host download the step's file, then read the present values of the step's properties. It downloads in
        slices, so that progress is shown and a killed run can continue. If the server does not support ranges, the step
        itself downloads the whole file.
        """
        received = self._read(lambda agent: agent.received(*_target(step), step.before))
        start = (time.monotonic(), received.size)
        reported = False
        slices = self._receiver(
            step, lambda agent, offset: self._slice(agent, step, offset, address, offset > start[1])
        )
        try:
            for offset, total in uploads.fetch(received, slices):
                if (offset != total and (offset or total)) or reported:  # a file of one slice is reported by its step
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
        """Fetch a slice. retry: a slice was fetched before, so an interrupted download is tried again."""
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
        """Send a file by HTTP or through a file share if the request asks for that and it works; else in pieces over
        the connection.
        """
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
        if offset == 0:  # the host creates the folder and records the upload
            self._call(lambda agent: agent.send(*_target(step), 0, b""))
        yield from share(partial_file_path(step.key), Path(source.path), offset)
        if self._read(lambda agent: agent.received(*_target(step), {})).size != source.size:
            raise NotWritten("what was written is not where the host looks for it")

    def _receiver(self, step: Step, transfer: Callable[[Agent, int], Received]) -> uploads.Receiver:
        """Make the receiver of a file. After a lost answer, it asks the host how much has arrived."""

        def put(offset: int) -> Received:
            try:
                return self._call(lambda agent: transfer(agent, offset))
            except (SessionDropped, TimedOut) as lost:
                log.info("%s: send %s: an answer is lost, so asking how much arrived", self.host, step.resource)
                self._report(ProgressEvent(self.host, "waiting", f"{lost.what}; asking how much arrived", step))
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
        """Read the id of the present boot."""
        return str(self._read(lambda agent: agent.boot())["boot_id"])

    def restart(self, old_boot: str, extra_wait: float = 0) -> str:
        """Restart the host unless another boot runs already, and wait until it is back. extra_wait: seconds in addition
        to the usual deadline. Returns the new boot id.

        Raises UploadInterrupted, and WireError (NotBack).
        """
        # A host that does not answer is shutting down already, or is contacted again by `reboot.wait_for_restart`.
        with suppress(Unreachable, SessionDropped, TimedOut, AuthenticationFailed):
            if self._read(lambda agent: agent.boot()).get("boot_id") == old_boot:
                self._call(reboot.request_restart)
        self.close()
        with self._interruptible():
            patience = replace(self._patience, deadline=self._patience.deadline + extra_wait)
            self._agent, boot = reboot.wait_for_restart(self._connector, old_boot, patience, self._report_each_once())
        return boot

    def _report_each_once(self) -> Callable[[str], None]:
        """Make a callback that reports each text once. It also raises UploadInterrupted if the user has asked
        to stop.
        """
        reported: set[str] = set()

        def report(text: str) -> None:
            self._stop_if_requested()
            if text not in reported:
                reported.add(text)
                self._report(ProgressEvent(self.host, "waiting", text))

        return report

    def wait_until_reachable(self) -> None:
        """Wait for a host that may still be restarting. Raises the last WireError, UploadInterrupted."""
        self._retry_until_reached(self._open)

    def _retry_until_reached(self, call: Callable[[], T]) -> T:
        """Repeat a call until the host can be reached. Raises UploadInterrupted if the user asks to stop, and the last
        WireError.
        """
        report = self._report_each_once()

        def report_retry(attempt: Any) -> None:
            log_retry(log, self.host, "not reached", attempt)
            report(f"{attempt.outcome.exception()}; trying again")

        with self._interruptible():
            return self._patience.retry(call, report_retry)

    def _stop_if_requested(self) -> None:
        if self._stop():
            raise uploads.UploadInterrupted

    def _reconnect_after_lockout(self, step: Step) -> None:
        """Log on again after the host has undone a change that locked this controller out. Only one logon is tried
        before that, because more could lock the account.
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
        # Wait for the machine that has the resource: the host may answer long before its Linux does.
        now = self._retry_until_reached(lambda: self.state(step.resource, step.key, settled=True))
        if now is None:
            raise not_found_error(self.host, RemoteFault("ObjectNotFound"), f"set {step.resource}")
        if all(now[name] == value for name, value in step.desired.items()):
            return SetAnswer({**now, **step.before}, now, restart=now.get("restart_due") is True)
        expect = {name: now[name] for name in step.before}
        return self._call(lambda agent: agent.set(step.resource, step.key, step.desired, expect, how))

    def tunnel(self, address: str, port: int) -> socket.socket:
        """Open a connection from the host's Linux to this address. Raises WinhostError."""
        return self._read(lambda agent: agent.tunnel(address, port))

    def ssh_route(self) -> SshRoute | None:
        """Return the SSH route to the host's Linux. Raises WinhostError."""
        return self._read(lambda agent: agent.route())

    def interruptible(self) -> AbstractContextManager[None]:
        """Return a context for waiting, in which Ctrl-C may interrupt a run."""
        return self._interruptible()

    def _read(self, read: Callable[[Agent], T]) -> T:
        try:
            return self._call(read)
        except SessionDropped as lost:
            log.info("%s: %s, so reading again in another session", self.host, error_code(lost))
            return self._call(read)

    def _call(self, action: Callable[[Agent], T]) -> T:
        try:
            with self._interruptible():
                agent = self._open()
                agent.on_wait = lambda text: self._report(ProgressEvent(self.host, "waiting", text))
                agent.patience = self._patience if self.waits_for_guests else None
                return action(agent)
        except (SessionDropped, TimedOut):
            self.close()  # the next call opens a new session
            raise

    def _open(self) -> Agent:
        if self._agent is None:
            self._agent = self._connector.open()
        return self._agent


def _target(step: Step) -> tuple[str, Key]:
    return step.resource, step.key
