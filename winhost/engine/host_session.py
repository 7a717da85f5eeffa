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
from winhost.resources.windows.disks import partial_file_path

log = logging.getLogger(__name__)

T = TypeVar("T")

_FETCHING = 20  # seconds of a fetch, until it is told how far it is
_ATTEMPTS = 5  # in a row that bring nothing of a download that has begun
_WORTH_TELLING = 60  # seconds that are left

_UNDOING = 5  # seconds that a host may take to undo a change, beside the time that it waits


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
        tell: Callable[[ProgressEvent], None],
        within: float = 300,
        sources: uploads.Sources | None = None,
        stop: Callable[[], bool] = lambda: False,
        cuttable: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.host = connector.host
        self._sources = sources or uploads.Sources(uploads.beside(Path()))
        self._stop = stop
        self._cuttable = cuttable
        self._connector = connector
        self._patience = patience
        self._tell = tell
        self._within = within
        self._agent: Agent | None = None
        self.awaits_guests = False
        """True if the session waits for a guest that runs and does not answer."""

    def close(self) -> None:
        """Give the runspace back."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    def facts(self, named: Named = (), *, settled: bool = False) -> Facts:
        """Read everything, and what is named; a read whose answer was lost is simply read again, once."""
        self._tell(ProgressEvent(self.host, "at", "reading"))

        def read(agent: Agent) -> Facts:
            facts = read_facts(agent, named, settled=settled)
            agent.keep(facts)
            return facts

        return self._reading(read)

    def state(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        """One state, or None where there is no such instance."""
        return self._reading(lambda agent: agent.get(resource, key, settled=settled))

    def set(self, step: Step, accepted: frozenset[str], mark: str | None = None) -> SetAnswer:
        """Do a step. A lost answer is settled by reading what is so, and only then is the rest asked for again.

        What the step takes from beside the plan is sent first. mark: kept on the host from before the change. Raises
        UploadInterrupted, UsageError (NotBeside, SecretUnreadable).
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
        elif address := uploads.download_of(step):
            expect = self._download(step, address)
        try:
            return self._calling(lambda agent: agent.set(step.resource, step.key, step.desired, expect, how))
        except (SessionDropped, TimedOut) as lost:
            log.info("%s: set %s: its answer is lost, so reading what is so", self.host, step.resource)
            self._tell(ProgressEvent(self.host, "waiting", f"{lost.what}; reading what is so", step))
            if isinstance(lost, ReachAnew):
                self._get_in_again(step)
            return self._settle(step, how)

    def marks(self, system: str) -> tuple[str, ...]:
        """The marks of runs on the host, or on its Linux; none where that system does not run."""
        with suppress(NotAvailable):
            return self._reading(lambda agent: agent.marks(system))
        return ()

    def keep_marks(self, system: str, keep: Callable[[Sequence[str]], list[str]]) -> None:
        """Keep only the marks that `keep` returns, also if another controller adds some meanwhile."""
        while (lines := keep(known := self.marks(system))) != [*known]:
            with suppress(Drifted):  # then they are read again
                return self._calling(lambda agent: agent.keep_marks(system, lines, known))
        return None

    def hand_over(self, resource: str, key: Key, desired: Mapping[str, Json], secret: str) -> None:
        """Give something that this run made what is made at the moment of use, and stands in no plan and no journal."""
        now = self.state(resource, key) or {}
        expect = {name: now.get(name) for name in desired}
        within = max(self._within, RESOURCE_TYPES[resource].timeout(Change(key, {}, desired)))
        how = {"accept": ["data"], "within": within, "secret": secret}
        self._calling(lambda agent: agent.set(resource, key, desired, expect, how))

    def _send(self, step: Step, desired: Attachment) -> Mapping[str, Json]:
        """Send the step's file, and return the step's properties once all of it is there."""
        received = self._reading(lambda agent: agent.received(step.resource, step.key, step.before))
        doing = f"send {brief(desired.name)}, of which {received.size:,} bytes are there"
        with uploads.opened(desired, self._sources.find) as source, logged(log, self.host, doing) as more:
            more.append(f"{source.size:,} bytes")
            began = (time.monotonic(), received.size)
            for at in self._sending(step, source, received):
                self._tell_moved(step, "sent", at, source.size, began)
                self._put_off_if_asked()
        return self._before_now(step)

    def _download(self, step: Step, address: str) -> Mapping[str, Json]:
        """Let the host download what it can, and return the step's properties. It downloads in slices, so that progress
        is shown, and a killed run continues there; where the server cannot, the step itself fetches all of it.
        """
        received = self._reading(lambda agent: agent.received(*_of(step), step.before))
        began = (time.monotonic(), received.size)
        told = False
        slices = self._receiver(step, lambda agent, at: self._slice(agent, step, at, address, at > began[1]))
        try:
            for at, whole in uploads.fetch(received, slices):
                if (at != whole and (at or whole)) or told:  # what came in one slice is told by its step
                    self._tell_moved(step, "fetched", at, whole, began)
                    told = True
                self._put_off_if_asked()
        except RemoteError as error:
            if error.fault.code != NO_RANGE:
                raise
            note = f"{step.title}: its server cannot go on in the middle; all of it is fetched again, unwatched"
            self._tell(ProgressEvent(self.host, "note", note, step))
        return self._before_now(step)

    def _slice(self, agent: Agent, step: Step, at: int, address: str, patient: bool) -> Received:
        """Fetch a slice. patient: more of it has come before, so what breaks off is tried again."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return agent.pull(*_of(step), at, address, _FETCHING)
            except RemoteError as error:
                if error.fault.code != NOT_FETCHED or not patient:
                    raise
                self._tell(ProgressEvent(self.host, "waiting", f"{error}; trying again", step))
            self._put_off_if_asked()
            time.sleep(min(self._patience.longest, self._patience.first * 2**attempt))
        return agent.pull(*_of(step), at, address, _FETCHING)

    def _before_now(self, step: Step) -> Mapping[str, Json]:
        now = self.state(step.resource, step.key) or {}
        return {name: now.get(name) for name in step.before}

    def _sending(self, step: Step, source: uploads.OpenAttachment, received: Received) -> Iterator[int]:
        """Send by fetching or by writing on the host where that was asked for and works; else in pieces by wire."""
        offer, share = self._sources.offer(), self._sources.share()
        try:
            if offer is not None:
                with offer(Path(source.path)) as address:
                    fetch = self._receiver(step, lambda agent, at: agent.pull(*_of(step), at, address, _FETCHING))
                    yield from uploads.send(source, received, fetch)
            elif share is not None:
                yield from self._written(step, source, received, share)
            if offer or share:
                return
        except (RemoteError, OSError, NotWritten) as error:
            if isinstance(error, RemoteError) and error.fault.code != NOT_FETCHED:
                raise
            how = "it cannot be fetched from this computer" if offer else "it cannot be written to the host"
            why = f"{how} ({error}); sending it over the connection instead"
            self._tell(ProgressEvent(self.host, "note", f"{step.title}: {why}", step))
            received = self._reading(lambda agent: agent.received(*_of(step), {}))
        pieces = self._receiver(step, lambda agent, at: agent.send(*_of(step), at, source.piece(at)))
        yield from uploads.send(source, received, pieces)

    def _written(
        self, step: Step, source: uploads.OpenAttachment, received: Received, share: uploads.Share
    ) -> Iterator[int]:
        at = source.goes_on_at(received)
        if at == 0:  # the host makes the folder and notes what comes
            self._calling(lambda agent: agent.send(*_of(step), 0, b""))
        yield from share(partial_file_path(step.key), Path(source.path), at)
        if self._reading(lambda agent: agent.received(*_of(step), {})).size != source.size:
            raise NotWritten("what was written is not where the host looks for it")

    def _receiver(self, step: Step, take: Callable[[Agent, int], Received]) -> uploads.Receiver:
        """Make the receiver of a file. A lost answer does not tell whether the piece came: the host does, once it is in
        reach again.
        """

        def put(at: int) -> Received:
            try:
                return self._calling(lambda agent: take(agent, at))
            except (SessionDropped, TimedOut) as lost:
                log.info("%s: send %s: an answer is lost, so asking what has come", self.host, step.resource)
                self._tell(ProgressEvent(self.host, "waiting", f"{lost.what}; asking how much has come", step))
                raise

        def ask() -> Received:
            return self._waiting(lambda: self._calling(lambda agent: agent.received(*_of(step), {})))

        return uploads.Receiver(put, ask)

    def _tell_moved(self, step: Step, verb: str, at: int, whole: int | None, began: tuple[float, int]) -> None:
        if whole is None:
            return self._tell(ProgressEvent(self.host, "sending", f"{step.title}: {verb} {at / 1e6:.1f} MB", step))
        text = f"{step.title}: {verb} {at / 1e6:.1f} of {whole / 1e6:.1f} MB"
        seconds, done = time.monotonic() - began[0], at - began[1]
        if done > 0 and seconds > 0:
            text += f", {done / seconds / 1e6:.1f} MB/s"
            if (left := (whole - at) * seconds / done) >= _WORTH_TELLING:
                text += f", about {left / 60:.0f} min left"
        return self._tell(ProgressEvent(self.host, "sending", text, step, percent=100 * at // max(whole, 1)))

    def boot_id(self) -> str:
        """The id of the present boot."""
        return str(self._reading(lambda agent: agent.boot())["boot_id"])

    def restart(self, old_boot: str, longer: float = 0) -> str:
        """Restart unless another boot is running already, and wait, for so many seconds longer than for a start.
        Returns the new boot id.

        Raises UploadInterrupted, and WireError (NotBack).
        """
        # A host that cannot be asked is going down already, or is asked again by whoever waits for it.
        with suppress(Unreachable, SessionDropped, TimedOut, AuthenticationFailed):
            if self._reading(lambda agent: agent.boot()).get("boot_id") == old_boot:
                self._calling(reboot.ask)
        self.close()
        with self._cuttable():
            patience = replace(self._patience, deadline=self._patience.deadline + longer)
            self._agent, boot = reboot.wait(self._connector, old_boot, patience, self._telling_once())
        return boot

    def _telling_once(self) -> Callable[[str], None]:
        """A callback that reports each thing that is waited for once. A request to stop is heard at that moment."""
        reported: set[str] = set()

        def tell(text: str) -> None:
            self._put_off_if_asked()
            if text not in reported:
                reported.add(text)
                self._tell(ProgressEvent(self.host, "waiting", text))

        return tell

    def reach(self) -> None:
        """Wait for a host that may still be restarting. Raises the last WireError."""
        self._waiting(self._open)

    def _waiting(self, ask: Callable[[], T]) -> T:
        """Ask until the host can be reached, or until somebody asks to stop.

        Raises UploadInterrupted, the last WireError.
        """
        tell = self._telling_once()

        def told(attempt: Any) -> None:
            log_retry(log, self.host, "not reached", attempt)
            tell(f"{attempt.outcome.exception()}; trying again")

        with self._cuttable():
            return self._patience.ask(ask, told)

    def _put_off_if_asked(self) -> None:
        if self._stop():
            raise uploads.UploadInterrupted

    def _get_in_again(self, step: Step) -> None:
        """Log on again once the host has undone the change that locked us out. One more logon is tried, not many: they
        might lock the account.
        """
        try:
            self._waiting(self._open)
        except AuthenticationFailed as refused:
            self._tell(ProgressEvent(self.host, "waiting", f"{refused.what}; waiting for the host to undo it", step))
            over = time.monotonic() + self._within + _UNDOING
            while time.monotonic() < over:
                self._put_off_if_asked()
                with self._cuttable():
                    time.sleep(min(1, self._within))

    def _settle(self, step: Step, how: Mapping[str, Json]) -> SetAnswer:
        # By the way to the very machine that has it: the host may answer long before the Linux on it does.
        now = self._waiting(lambda: self.state(step.resource, step.key, settled=True))
        if now is None:
            raise not_found(self.host, RemoteFault("ObjectNotFound"), f"set {step.resource}")
        if all(now[name] == value for name, value in step.desired.items()):
            return SetAnswer({**now, **step.before}, now, restart=now.get("restart_due") is True)
        expect = {name: now[name] for name in step.before}
        return self._calling(lambda agent: agent.set(step.resource, step.key, step.desired, expect, how))

    def tunnel(self, address: str, port: int) -> socket.socket:
        """A connection from the host's Linux to this address. Raises WinhostError."""
        return self._reading(lambda agent: agent.tunnel(address, port))

    def way(self) -> SshWay | None:
        """The SSH route to the host's Linux. Raises WinhostError."""
        return self._reading(lambda agent: agent.way())

    def cuttable(self) -> AbstractContextManager[None]:
        """Around waiting for what the host serves, where a run may be cut short."""
        return self._cuttable()

    def _reading(self, read: Callable[[Agent], T]) -> T:
        try:
            return self._calling(read)
        except SessionDropped as lost:
            log.info("%s: %s, so reading again in another session", self.host, failure(lost))
            return self._calling(read)

    def _calling(self, action: Callable[[Agent], T]) -> T:
        try:
            with self._cuttable():
                agent = self._open()
                agent.hear = lambda text: self._tell(ProgressEvent(self.host, "waiting", text))
                agent.patience = self._patience if self.awaits_guests else None
                return action(agent)
        except (SessionDropped, TimedOut):
            self.close()  # whatever is asked next is asked in a new session
            raise

    def _open(self) -> Agent:
        if self._agent is None:
            self._agent = self._connector.open()
        return self._agent


def _of(step: Step) -> tuple[str, Key]:
    return step.resource, step.key
