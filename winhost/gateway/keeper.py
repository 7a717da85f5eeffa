"""Start and stop the units of engines for the gateway, and read the GPUs: `python3 -m gateway.keeper SETTINGS`.

The keeper runs as root so that the gateway need not. It does `start`, `stop`, `kill`, `suspend` and `resume` for units
that the gateway's settings name, and tells whether one runs (`look`), how much GPU `memory` is free and how the `gpus`
are. For units that start from an image of their process it passes `image`, `take` and `confirm` on (process_image.py).
A request is a line of JSON, and so is its answer.
"""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .gateway_settings import GatewaySettings
from .gpu_calls import GpuLibrary, NoDriver, is_suspended, resume, suspend
from .program import CannotStart, log_to_stderr, read_settings, tell_systemd
from .turn_settings import IMAGES

_LOG = logging.getLogger("keeper")
_LONGEST_LINE = 4096
_LONGEST_S = 900
_END_S = 100  # an engine has 90 s to end; systemd gives the keeper 120 s
_CGROUPS = Path("/sys/fs/cgroup")
_NOT_INSTALLED = 5  # systemctl's exit code


class CannotDo(Exception):
    """The keeper cannot do what was asked. The message says why."""


class NoUnit(CannotDo):
    """systemd knows no such unit. Its file may come later."""


class KeeperService:
    """Answer the gateway's requests. No unit is started or stopped that the settings do not name."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._units = {turns.unit for turns in settings.taking_turns.values() if turns.unit}
        self._imaged = {turns.unit for turns in settings.taking_turns.values() if turns.image}
        self._nvml: GpuLibrary | None = None
        self._one_at_a_time = asyncio.Lock()
        self._looking = False
        self._open: set[asyncio.Task[Any]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        task = asyncio.current_task()  # each connection has one
        assert task
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            line = await asyncio.wait_for(reader.readline(), 10)
            answer = await self.answer(json.loads(line.decode("utf-8")))
        except CannotDo as error:
            answer = {"error": str(error), **({"missing": True} if isinstance(error, NoUnit) else {})}
        except (ValueError, asyncio.TimeoutError, OSError):
            answer = {"error": "not understood"}
        try:
            writer.write(json.dumps(answer).encode("ascii") + b"\n")
            await asyncio.wait_for(writer.drain(), 10)
        except (OSError, asyncio.TimeoutError):
            pass  # the gateway is gone
        writer.close()

    async def ended(self) -> None:
        """Wait until all that was asked for is done. A task that is cancelled while it starts a program may never end,
        and an engine would stay half suspended.
        """
        if self._open:
            await asyncio.wait(self._open, timeout=_END_S)

    async def answer(self, request: Any) -> "dict[str, Any]":
        """Do what a request asks for. Raises CannotDo."""
        if not isinstance(request, dict):
            raise CannotDo("an object is expected")
        what, unit = request.get("do"), request.get("unit")
        if what == "memory":
            return {"free_mib": await self._in_a_thread(lambda: self._driver().free_mib())}
        if what == "gpus":
            return {"gpus": await self._gpus()}
        if not isinstance(unit, str) or unit not in self._units:
            raise CannotDo("the settings name no such unit")
        if what == "look":
            told = await _systemctl("show", "--property=ActiveState,Job", unit)
            found = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
            starts = found.get("Job", "") not in ("", "0")  # and may wait for another unit
            return {"runs": starts or found.get("ActiveState") not in ("inactive", "failed")}
        if what == "image":
            return await _ask_image(unit, "look")
        async with self._one_at_a_time:
            _LOG.info("%s %s", what, unit)
            await self._do(what, unit)
        return {"done": what}

    async def _do(self, what: Any, unit: str) -> None:
        if what == "start":
            with suppress(CannotDo):  # a unit that never ran is not loaded
                await _systemctl("reset-failed", unit)
            await _systemctl("start", "--no-block", unit)
        elif what in ("suspend", "resume"):
            how = suspend if what == "suspend" else resume
            group = (await _systemctl("show", "--property=ControlGroup", "--value", unit)).strip()
            for pid in await self._in_a_thread(lambda: self._to_move(group, how, all_of_them=unit in self._imaged)):
                await self._in_a_thread(partial(how, pid))
        elif what == "kill":  # `stop` would wait for a unit that hangs
            with suppress(CannotDo):  # it has ended already
                await _systemctl("kill", "--signal=SIGKILL", unit)
        elif what not in ("stop", "take", "confirm"):
            raise CannotDo("start, stop, kill, suspend, resume, image, take, confirm, look, memory or gpus is expected")
        if what in ("take", "confirm"):
            await _ask_image(unit, what)
        if what in ("take", "stop", "kill"):  # after `take`, the engine lives on in its image
            await _systemctl("stop", unit)

    async def _gpus(self) -> "list[dict[str, Any]]":
        """Read the GPUs, one call at a time, so that a driver that hangs blocks no thread that moves engines."""
        if self._looking:
            raise CannotDo("the driver has not answered the last one who asked")
        self._looking = True
        try:
            return await self._in_a_thread(lambda: self._driver().state())  # type: ignore[no-any-return]
        finally:
            self._looking = False

    def _driver(self) -> GpuLibrary:
        self._nvml = self._nvml or GpuLibrary()
        return self._nvml

    def _to_move(self, group: str, how: "Callable[[int], None]", *, all_of_them: bool) -> "list[int]":
        """The unit's process that has GPU memory. Processes of a container do not belong to the unit. all_of_them: also
        all others that have the driver open, as vLLM's server does to read its GPUs: an image of a process cannot
        contain an open file of the driver.
        """
        try:
            lists = list(Path(_CGROUPS, group.lstrip("/")).rglob("cgroup.procs")) if group else []
            pids = {int(line) for each in lists for line in each.read_text().split()}
        except OSError as error:
            raise CannotDo(f"processes of the unit cannot be read: {error.strerror}") from None
        computing = pids & self._driver().processes() or {pid for pid in pids if _is_core(pid)}
        if len(computing) != 1:
            raise CannotDo(f"the unit has {len(computing)} processes on GPUs of its own; one can be suspended")
        if not all_of_them:
            return [*computing]
        with_it = _has_driver_open if how is suspend else is_suspended
        return sorted({*computing, *filter(with_it, pids)})

    async def _in_a_thread(self, work: "Callable[[], Any]") -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except NoDriver as error:
            self._nvml = None
            raise CannotDo(str(error)) from None


def _has_driver_open(pid: int) -> bool:
    try:
        return any(str(each.readlink()).startswith("/dev/nvidia") for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _is_core(pid: int) -> bool:
    """Tell whether this is vLLM's engine core, which the driver does not list while it is suspended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::EngineCor")
    except OSError:
        return False


async def _ask_image(unit: str, what: str) -> "dict[str, Any]":
    """Ask the program of a unit that starts its engine from an image. Raises CannotDo."""
    control = Path(IMAGES, unit[len("winhost-engine-") : -len(".service")], "control")
    try:
        reader, writer = await asyncio.open_unix_connection(str(control))
        try:
            writer.write(json.dumps({"do": what}).encode("ascii") + b"\n")
            answer = json.loads(await asyncio.wait_for(reader.readline(), _LONGEST_S))
        finally:
            writer.close()
    except asyncio.TimeoutError:
        raise CannotDo(f"{control} does not answer") from None
    except (OSError, ValueError) as error:
        raise CannotDo(f"{control}: {type(error).__name__}") from None
    if not isinstance(answer, dict) or "error" in answer:
        raise CannotDo(str(answer.get("error") if isinstance(answer, dict) else "no object"))
    return answer


async def _systemctl(*words: str) -> str:
    """Run systemctl and return its output. Raises CannotDo."""
    pipe = asyncio.subprocess.PIPE
    # With this socket, systemctl would report to systemd as if it were the keeper.
    environment = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"}
    process = await asyncio.create_subprocess_exec(
        "systemctl", "--no-ask-password", *words, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        said, error = await asyncio.wait_for(process.communicate(), _LONGEST_S)
    except asyncio.TimeoutError:
        process.kill()
        raise CannotDo(f"systemctl {words[0]} takes longer than {_LONGEST_S} s") from None
    if process.returncode:
        kind = NoUnit if process.returncode == _NOT_INSTALLED else CannotDo
        raise kind(f"systemctl {words[0]}: {error.decode('utf-8', 'replace').strip()[:300]}")
    return said.decode("utf-8", "replace")


async def keep(settings: GatewaySettings) -> None:
    """Answer the gateway until SIGTERM or SIGINT. Raises CannotStart."""
    if settings.turns.keeper is None:
        raise CannotStart("the settings name no socket for it (turns.keeper)")
    socket = Path(settings.turns.keeper)
    socket.unlink(missing_ok=True)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    service = KeeperService(settings)
    try:
        server = await asyncio.start_unix_server(service.handle, str(socket), limit=_LONGEST_LINE)
        socket.chmod(0o660)  # the gateway's group enters the folder
    except OSError as error:
        raise CannotStart(f"cannot listen on {socket}: {error.strerror or error}") from None
    tell_systemd("READY=1")
    _LOG.info("listening on %s", socket)
    await stop.wait()
    server.close()
    await service.ended()


def main(words: "list[str]") -> int:
    """Run until SIGTERM or SIGINT."""
    log_to_stderr()
    try:
        if len(words) != 1:
            raise CannotStart("give the file of settings")
        asyncio.run(keep(read_settings(Path(words[0]))))
    except (CannotStart, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
