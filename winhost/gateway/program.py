"""Starts the gateway: `python3 -m gateway.program SETTINGS`, or `… new-key NAME` for a new API key."""

import asyncio
import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

from .api_keys import ApiKeys, WrongKeys, new_key
from .connections import Accepted, ClientConnection, Clients
from .engine_side import Engines
from .fair_selector import FairSelector
from .front_door import FrontDoor
from .gateway_settings import GatewaySettings, Tls, parse_settings
from .keeper_client import KeeperClient
from .settings_values import WrongSettings
from .strict_http import Framing
from .trusted_proxies import TrustedProxies
from .turns import Turns

_LOG = logging.getLogger("gateway")
_AFTER_DRAIN_S = 1
_BACKLOG = 512  # connections that wait to be accepted
Factory = Callable[[], asyncio.BaseProtocol]


class CannotStart(Exception):
    """Says what is wrong and where."""


def main(words: list[str]) -> int:
    """Runs until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # A line says what it says: nobody needs to find out which task of which thread wrote it.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # as the Python documentation has it
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # its messages may hold what clients sent
    try:
        if len(words) in (2, 3) and words[0] == "new-key":
            sys.stdout.write("{}\n{}\n".format(*new_key(*words[1:])))
            return 0
        if len(words) != 1:
            raise CannotStart(
                "give the file of settings, or new-key NAME, or new-key NAME metrics, or new-key NAME yield"
            )
        settings, keys, context = _prepared(Path(words[0]))
        _run(settings, keys, context)
    except (CannotStart, WrongKeys) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _prepared(file: Path) -> tuple[GatewaySettings, ApiKeys, ssl.SSLContext | None]:
    try:
        settings = parse_settings(_text(file))
    except WrongSettings as error:
        raise CannotStart(f"{file}: {error}") from None
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder is None:
        raise CannotStart("CREDENTIALS_DIRECTORY is not set: systemd sets it to the folder with the file of API keys")
    try:
        keys = ApiKeys(_text(Path(folder, "keys")))
    except WrongKeys as error:
        raise CannotStart(f"API keys: {error}") from None
    if unknown := [name for name in settings.per_key.keys if name not in keys.names]:  # its key would have no limit
        raise CannotStart(f"{file}: per_key.keys: {unknown[0]} has no API key; there are {', '.join(keys.names)}")
    if unknown := sorted(keys.metrics_models - settings.models.keys()):
        raise CannotStart(f"API keys: metrics={unknown[0]} names no model; there are {', '.join(settings.models)}")
    return settings, keys, _context(settings.tls, Path(folder)) if settings.tls else None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise CannotStart(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise CannotStart(f"{file} is no text in UTF-8") from None


def _context(tls: Tls, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(folder / tls.certificate, folder / tls.key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise CannotStart(f"certificate {tls.certificate} with key {tls.key}: {error.strerror or error}") from None
    return context


def _run(settings: GatewaySettings, keys: ApiKeys, context: ssl.SSLContext | None) -> None:
    """As asyncio.run, which takes no event loop before Python 3.12. Raises CannotStart."""
    selector = FairSelector()
    loop = asyncio.SelectorEventLoop(selector)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(serve(settings, keys, context, selector))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def serve(
    settings: GatewaySettings, keys: ApiKeys, context: ssl.SSLContext | None, selector: FairSelector
) -> None:
    """Raises CannotStart."""
    limits = settings.limits
    engines = Engines(limits, selector.read_by)
    clients = Clients(limits.connections, limits.per_address, limits.head, limits.receive, selector.limit)
    keeper = KeeperClient(settings.turns.keeper, settings.turns) if settings.turns.keeper else None
    turns = Turns(settings, engines.control, keeper)
    door = FrontDoor(settings, keys, engines, clients, turns)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)

    def client() -> ClientConnection:
        return ClientConnection(door.answer, Framing(limits.body_bytes), clients)

    proxies = TrustedProxies(settings.trusted_proxies, settings.proxy_protocol)
    listening = await _listening(settings, lambda: Accepted(client, clients, context, proxies))
    turns.start()
    tell_systemd("READY=1")
    _LOG.info("listening on %s%s for %s", settings.listen, " with TLS" if context else "", ", ".join(settings.models))
    gc.collect()
    gc.freeze()  # what is loaded stays: looking through it again and again stops all streams each time
    await stop.wait()
    door.draining = True
    tell_systemd("STOPPING=1")
    listening.close()
    _LOG.info("stopping: %d requests are open, for up to %d s", door.open, limits.drain)
    await _until_done(door, limits.drain)
    door.cut()
    await _until_done(door, _AFTER_DRAIN_S)
    clients.close()
    turns.stop()
    await door.close()
    engines.close()


async def _listening(settings: GatewaySettings, factory: Factory) -> "_Listening":
    listen = settings.listen
    loop = asyncio.get_running_loop()
    try:
        if listen.socket is None:
            server = await loop.create_server(factory, listen.address, listen.port, start_serving=False)
        else:
            server = await loop.create_unix_server(factory, listen.socket, start_serving=False)
            Path(listen.socket).chmod(0o666)  # who may connect, its folder says; who may ask, the keys
        return _Listening(server, factory)
    except OSError as error:
        raise CannotStart(f"cannot listen on {listen}: {error.strerror or error}") from None


class _Listening:
    """Accepts one connection after another, each in a turn of the event loop of its own. asyncio's own server accepts
    hundreds in a turn, and has a task for each.
    """

    def __init__(self, server: asyncio.Server, factory: Factory) -> None:
        self._server, self._factory = server, factory
        self._loop = asyncio.get_running_loop()
        self._sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
        self._comes: dict[socket.socket, asyncio.Future[None]] = {}
        for each in self._sockets:
            each.setblocking(False)
            each.listen(_BACKLOG)
        self._work = [self._loop.create_task(self._accept_all(each)) for each in self._sockets]

    def _wake(self, listening: socket.socket) -> None:
        if not self._comes[listening].done():
            self._comes[listening].set_result(None)

    async def _accept_all(self, listening: socket.socket) -> None:
        while True:
            self._comes[listening] = self._loop.create_future()
            # It stays from one connection to the next: to put it there costs as much as to accept one.
            self._loop.add_reader(listening, self._wake, listening)
            try:
                while True:
                    await self._comes[listening]
                    await self._accept(listening)
                    self._comes[listening] = self._loop.create_future()
            except (OSError, MemoryError) as error:  # no more files, or no memory
                why = error.strerror if isinstance(error, OSError) else "out of memory"
                _LOG.error("cannot accept connections for a second: %s", why)
            self._loop.remove_reader(listening)
            await asyncio.sleep(1)

    async def _accept(self, listening: socket.socket) -> None:
        """Returns when its protocol has it. Raises OSError, MemoryError."""
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        await self._loop.connect_accepted_socket(self._factory, accepted)

    def close(self) -> None:
        for work, each in zip(self._work, self._sockets, strict=True):
            work.cancel()
            self._loop.remove_reader(each)
            each.close()
        self._server.close()


def tell_systemd(state: str) -> None:
    """Where systemd started it: whether it starts, or failed with the settings, `systemctl start` says."""
    to = os.environ.get("NOTIFY_SOCKET", "")
    if to:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(state.encode("ascii"), "\0" + to[1:] if to.startswith("@") else to)


async def _until_done(door: FrontDoor, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while door.open and loop.time() < until:
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
