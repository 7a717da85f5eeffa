"""Start the gateway: `python3 -m gateway.program SETTINGS`, or `… new-key NAME` for a new API key."""

import asyncio
import gc
import json
import logging
import os
import select
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .api_keys import ApiKeys, KeyFiles, new_key
from .connections import ClientConnection, Clients, PendingConnection, accept_plain
from .engines import Engines
from .fair_selector import FairSelector
from .front_door import FrontDoor
from .gateway_settings import GatewaySettings, Tls, parse_settings
from .gpu_metrics import GpuMetrics
from .keeper_client import KeeperClient
from .key_lines import WrongKeys
from .key_use import KeyUse
from .settings_values import WrongSettings
from .strict_http import Framing
from .trusted_proxies import TrustedProxies
from .turns import Turns

_LOG = logging.getLogger("gateway")
_BREAK_OFF_S = 1  # for requests that were broken off
_BACKLOG = 512  # connections that wait to be accepted
_READ_KEYS_S, _READS_PER_WRITE = 0.5, 20  # between reads of the key files, and reads between writes of the use


class LogLine(logging.Formatter):
    """Format a record as key=value, as the front door writes requests. The journal adds the time."""

    def format(self, record: logging.LogRecord) -> str:
        return f"level={record.levelname.lower()} msg={json.dumps(record.getMessage())}"


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLine())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class StartError(Exception):
    """The program cannot start. The message says what is wrong, and where."""


def main(arguments: list[str]) -> int:
    """Run until SIGTERM or SIGINT."""
    log_to_stderr()
    # Log lines name no thread, process or source line, so `logging` need not look for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # as the documentation of Python recommends
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # its messages may hold what clients sent
    try:
        if arguments[:1] == ["new-key"] and len(arguments) > 1:
            sys.stdout.write("{}\n{}\n".format(*new_key(arguments[1], " ".join(arguments[2:]))))
            return 0
        if len(arguments) != 1:
            raise StartError("give the file of settings, or new-key NAME and rules, such as metrics or yield")
        _run(_prepare(Path(arguments[0])))
    except (StartError, WrongKeys) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


@dataclass(frozen=True)
class _Prepared:
    """The settings and keys that the gateway starts with."""

    settings: GatewaySettings
    files: KeyFiles
    keys: ApiKeys
    use: KeyUse
    context: ssl.SSLContext | None


def read_settings(file: Path) -> GatewaySettings:
    """Read and check the file of settings. Raises StartError."""
    try:
        return parse_settings(file.read_text("utf-8"))
    except OSError as error:
        raise StartError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"{file} is no text in UTF-8") from None
    except WrongSettings as error:
        raise StartError(f"{file}: {error}") from None


def _prepare(file: Path) -> _Prepared:
    settings = read_settings(file)
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder is None:
        raise StartError("CREDENTIALS_DIRECTORY is not set: systemd sets it to the folder with the file of API keys")
    files = KeyFiles(Path(folder, "keys"), Path(settings.key_changes) if settings.key_changes else None)
    state = os.environ.get("STATE_DIRECTORY")
    use = KeyUse(Path(state, "use.json") if state else None)
    keys = _load_keys(files, use.had_changes)
    if unknown := [name for name in settings.per_key.keys if name not in keys.names]:  # the limit would hold for nobody
        raise StartError(f"{file}: per_key.keys: {unknown[0]} has no API key; there are {', '.join(keys.names)}")
    if unknown := sorted(keys.metrics_models - settings.models.keys()):
        raise StartError(f"API keys: metrics={unknown[0]} names no model; there are {', '.join(settings.models)}")
    return _Prepared(settings, files, keys, use, _tls_context(settings.tls, Path(folder)) if settings.tls else None)


def _load_keys(files: KeyFiles, had_changes: bool) -> ApiKeys:
    try:
        return files.load(had_changes)
    except WrongKeys as error:
        raise StartError(f"API keys: {error}") from None
    except OSError as error:
        raise StartError(f"cannot read {error.filename}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError("API keys: a file of them is no text in UTF-8") from None


def _tls_context(tls: Tls, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(folder / tls.certificate, folder / tls.key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"certificate {tls.certificate} with key {tls.key}: {error.strerror or error}") from None
    return context


def _run(prepared: _Prepared) -> None:
    """Run the gateway in an event loop with a FairSelector. Before Python 3.12, asyncio.run accepts no such loop.
    Raises StartError.
    """
    selector = FairSelector()
    loop = asyncio.SelectorEventLoop(selector)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(prepared, selector))
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _serve(prepared: _Prepared, selector: FairSelector) -> None:
    """Answer requests until SIGTERM or SIGINT, and then end those that are open. Raises StartError."""
    settings, context = prepared.settings, prepared.context
    limits = settings.limits
    engines = Engines(limits, selector.read_by)
    clients = Clients(limits.connections, limits.per_address, limits.head, limits.receive, selector.limit)
    keeper = KeeperClient(settings.turns.keeper, settings.turns) if settings.turns.keeper else None
    turns = Turns(settings, engines.control, keeper)
    gpus = GpuMetrics(keeper.gpus if keeper else None)
    door = FrontDoor(settings, prepared.keys, engines, clients, turns, prepared.use, gpus)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)

    def create_client() -> ClientConnection:
        return ClientConnection(door.answer, Framing(limits.body_bytes), clients)

    proxies = TrustedProxies(settings.trusted_proxies, settings.proxy_protocol)
    accepting: set[asyncio.Task[Any]] = set()

    def accept(accepted: socket.socket, peer: object) -> None:
        if context is None and not proxies.protocol:
            accept_plain(accepted, peer, create_client, clients, proxies, selector)
            return
        connecting = loop.connect_accepted_socket(
            lambda: PendingConnection(create_client, clients, context, proxies), accepted
        )
        task = loop.create_task(connecting)
        accepting.add(task)
        task.add_done_callback(accepting.discard)

    listening = Listening(await create_server(settings), selector, accept)
    turns.start()
    prepared.use.write(prepared.files)  # with the keys in force, and since when they are counted
    key_task = loop.create_task(_follow_keys(prepared, door))
    notify_systemd("READY=1")
    _LOG.info("listening on %s%s for %s", settings.listen, " with TLS" if context else "", ", ".join(settings.models))
    gc.collect()
    gc.freeze()  # loaded modules stay until the end, and each collection of them would stop all streams
    await stop.wait()
    door.draining = True
    notify_systemd("STOPPING=1")
    listening.close()
    _LOG.info("stopping: %d requests are open, for up to %d s", door.open, limits.drain)
    await _wait_for_requests(door, limits.drain)
    door.break_off_all()
    await _wait_for_requests(door, _BREAK_OFF_S)
    key_task.cancel()
    prepared.use.write(prepared.files)
    clients.close()
    turns.stop()
    await door.close()
    engines.close()


async def _follow_keys(prepared: _Prepared, door: FrontDoor) -> None:
    """Read the key files again when they change, and write the use of keys."""
    while True:
        for _ in range(_READS_PER_WRITE):
            await asyncio.sleep(_READ_KEYS_S)
            problem = prepared.files.problem
            if keys := prepared.files.reload_if_changed():
                door.change_keys(keys)
            door.keys_unread = bool(prepared.files.problem)
            if keys or prepared.files.problem != problem:
                prepared.use.write(prepared.files)
        prepared.use.write(prepared.files)


async def create_server(settings: GatewaySettings) -> asyncio.Server:
    """Create a server with listening sockets that does not accept connections itself. Raises StartError."""
    listen, loop = settings.listen, asyncio.get_running_loop()
    try:
        if listen.socket is None:
            return await loop.create_server(asyncio.Protocol, listen.address, listen.port, start_serving=False)
        server = await loop.create_unix_server(asyncio.Protocol, listen.socket, start_serving=False)
        Path(listen.socket).chmod(0o666)  # the mode of the folder decides who can connect
    except OSError as error:
        raise StartError(f"cannot listen on {listen}: {error.strerror or error}") from None
    return server


class Listening:
    """Accept one connection in each turn of the event loop. asyncio's own server accepts hundreds in a turn, and
    creates a task for each.
    """

    def __init__(
        self, server: asyncio.Server, selector: FairSelector, on_connection: Callable[[socket.socket, object], None]
    ) -> None:
        """on_connection: called with each accepted socket and its peer name."""
        self._server, self._selector, self._on_connection = server, selector, on_connection
        self._sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        for each in self._sockets:
            each.setblocking(False)
            each.listen(_BACKLOG)
            self._listen_to(each)

    def _listen_to(self, listening: socket.socket) -> None:
        self._selector.watch(listening.fileno(), lambda _: self._accept(listening))
        self._selector.set_events(listening.fileno(), select.EPOLLIN)

    def _accept(self, listening: socket.socket) -> None:
        try:
            self._on_connection(*listening.accept())
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except (OSError, MemoryError) as error:  # no more files, or no memory
            reason = error.strerror if isinstance(error, OSError) else "out of memory"
            _LOG.error("cannot accept connections for a second: %s", reason)
            self._ignore(listening)
            self._timers[listening] = asyncio.get_running_loop().call_later(1, self._listen_to, listening)

    def _ignore(self, listening: socket.socket) -> None:
        with suppress(KeyError):  # the socket is ignored already
            self._selector.set_events(listening.fileno(), 0)
        self._selector.unwatch(listening.fileno())

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for each in self._sockets:
            self._ignore(each)
            each.close()
        self._server.close()


def notify_systemd(state: str) -> None:
    """Notify systemd of the state of this program, if systemd started it. `systemctl start` waits for READY=1."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(state.encode("ascii"), "\0" + address[1:] if address.startswith("@") else address)


async def _wait_for_requests(door: FrontDoor, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while door.open and loop.time() < deadline:
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
