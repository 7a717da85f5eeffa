"""WSMan's part of a host: finds the shell that a message is for, and has it do what is asked."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable

from pypsrp.shell import SignalCode

from winhost.core.dataclass import dataclass
from winhost.lab.wire import wsman
from winhost.lab.wire.served_host import ConnectionDropped, HttpRefusal, Moment, SimulatedHost, When, WireTroubles
from winhost.lab.wire.shells import URI as REMOTE_SHELL
from winhost.lab.wire.shells import PowerShellShell, RemoteShell, Shell
from winhost.lab.wire.wsman import Action, Element, Request, WSManFault

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    status: int
    soap: bytes


@dataclass(frozen=True)
class _Served:
    body: list[Element]
    done: bool = False  # the answer carries the end of a pipeline


class Service:
    """The shells of one host. `address` is the URL at which clients find it."""

    def __init__(self, host: SimulatedHost, faults: WireTroubles, address: str) -> None:
        self._host = host
        self._faults = faults
        self._address = address
        self._shells: dict[str, Shell] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def alive(self, boot: int) -> bool:
        """Is the machine up, and was it all the time since that boot?"""
        return not self._stopped and self._host.accepting() and self._host.boot == boot

    def stop(self) -> None:
        self._stopped = True
        with self._lock:
            for shell in self._shells.values():
                shell.close()

    def answer(self, user: str, message: bytes) -> Answer:
        """Raises ConnectionDropped or HttpRefusal where that is the answer."""
        message_id = ""
        try:
            request = wsman.read_request(message)
            message_id = request.message_id
            return Answer(200, self._serve_request(user, request))
        except (ConnectionDropped, HttpRefusal):
            raise
        except WSManFault as fault:
            return Answer(500, wsman.write_fault(fault, message_id))
        except Exception as error:  # the client gets an answer, the log has the rest
            log.exception("a message could not be served")
            return Answer(500, wsman.write_fault(wsman.internal(error), message_id))

    def _serve_request(self, user: str, request: Request) -> bytes:
        self._faults.strike(Moment(request.action, When.ARRIVED))
        served = self._serve(user, request)
        self._faults.strike(Moment(request.action, When.FINISHED if served.done else When.WORKED))
        return wsman.write_answer(request, served.body)

    def _serve(self, user: str, request: Request) -> _Served:
        if request.action is Action.CREATE:
            return self._create(user, request)
        serve: dict[Action, Callable[[Shell, Request], _Served]] = {
            Action.COMMAND: _command,
            Action.SEND: _send,
            Action.RECEIVE: _receive,
            Action.SIGNAL: _signal,
            Action.DELETE: self._delete,
        }
        return serve[request.action](self._find(user, request.shell_id), request)

    def _create(self, user: str, request: Request) -> _Served:
        shell_id = request.content("rsp:Shell").get("ShellId") or str(uuid.uuid4()).upper()
        shell = self._opened(user, request, shell_id)
        with self._lock:
            self._shells[shell_id] = shell
        return _Served(wsman.shell_created(request, shell_id, user, self._address))

    def _opened(self, user: str, request: Request, shell_id: str) -> Shell:
        boot = self._host.boot

        def alive() -> bool:
            return self.alive(boot)

        if request.resource_uri == REMOTE_SHELL:
            return RemoteShell(shell_id, user, lambda: self._host.open_runspace(user), alive)
        shell = PowerShellShell(shell_id, user, self._host.open_runspace(user), alive)
        shell.feed(wsman.read_base64(request.content("rsp:Shell/pwsh:creationXml")))
        return shell

    def _delete(self, shell: Shell, _request: Request) -> _Served:
        with self._lock:
            self._shells.pop(shell.shell_id, None)
        shell.close()
        return _Served([])

    def _find(self, user: str, shell_id: str) -> Shell:
        with self._lock:
            self._forget_the_dead()
            shell = self._shells.get(shell_id)
        if shell is None or shell.owner != user:
            raise wsman.shell_not_found(shell_id)
        return shell

    def _forget_the_dead(self) -> None:
        dead = [shell for shell in self._shells.values() if not shell.alive()]
        for shell in dead:
            shell.close()
            del self._shells[shell.shell_id]


def _command(shell: Shell, request: Request) -> _Served:
    return _Served(wsman.command_started(shell.command(request)))


def _send(shell: Shell, request: Request) -> _Served:
    shell.send(request)
    return _Served([wsman.element("rsp:SendResponse")])


def _receive(shell: Shell, request: Request) -> _Served:
    command_id = request.content("rsp:Receive/rsp:DesiredStream").get("CommandId", "")
    parcel = shell.receive(command_id, request)
    return _Served(wsman.output_received(command_id, parcel.chunks, parcel.done, parcel.exit_code), parcel.done)


def _signal(shell: Shell, request: Request) -> _Served:
    command_id = request.content("rsp:Signal").get("CommandId", "")
    if request.content("rsp:Signal/rsp:Code").text == SignalCode.TERMINATE:
        shell.terminate(command_id)
    else:
        shell.interrupt(command_id)
    return _Served([wsman.element("rsp:SignalResponse")])
