"""Start and stop the units of engines for the gateway, and read the GPUs: `python3 -m gateway.keeper SETTINGS`.

The keeper runs as root so that the gateway need not. Its requests are `start`, `stop`, `kill`, `suspend`, `resume` and
`look` (does it run?) for units that the gateway's settings name, `memory` for the free memory of the GPUs, and `gpus`
for their state. For units that start from an image of their process, it forwards `image`, `take` and `confirm` to the
program of the unit (process_image.py). Requests and answers are lines of JSON.
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
from .gpu_calls import DriverError, GpuLibrary, is_suspended, resume, suspend
from .program import StartError, log_to_stderr, notify_systemd, read_settings
from .turn_settings import IMAGES

_LOG = logging.getLogger("keeper")
_MAX_LINE = 4096
_MAX_CALL_S = 900
_END_S = 100  # an engine has 90 s to end; systemd gives the keeper 120 s
_CGROUPS = Path("/sys/fs/cgroup")
_UNIT_NOT_FOUND = 5  # systemctl's exit code


class KeeperError(Exception):
    """The keeper cannot carry out a request. The message says why."""


class UnknownUnit(KeeperError):
    """systemd knows no such unit. Its file may be installed later."""


class KeeperService:
    """Answer the gateway's requests. Only units that the settings name are started and stopped."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._units = {turns.unit for turns in settings.turn_models.values() if turns.unit}
        self._image_units = {turns.unit for turns in settings.turn_models.values() if turns.image}
        self._nvml: GpuLibrary | None = None
        self._lock = asyncio.Lock()
        self._reading_gpus = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        task = asyncio.current_task()  # each connection has one
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            line = await asyncio.wait_for(reader.readline(), 10)
            answer = await self.answer(json.loads(line.decode("utf-8")))
        except KeeperError as error:
            answer = {"error": str(error), **({"missing": True} if isinstance(error, UnknownUnit) else {})}
        except (ValueError, asyncio.TimeoutError, OSError):
            answer = {"error": "the request is not valid"}
        try:
            writer.write(json.dumps(answer).encode("ascii") + b"\n")
            await asyncio.wait_for(writer.drain(), 10)
        except (OSError, asyncio.TimeoutError):
            pass  # the gateway has closed the connection
        writer.close()

    async def wait_until_done(self) -> None:
        """Wait until all requests are answered. A task that is cancelled while it starts a program may never end, and
        an engine would stay half suspended.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_S)

    async def answer(self, request: Any) -> "dict[str, Any]":
        """Carry out a request, and return its answer. Raises KeeperError."""
        if not isinstance(request, dict):
            raise KeeperError("an object is expected")
        action, unit = request.get("do"), request.get("unit")
        if action == "memory":
            return {"free_mib": await self._run_in_thread(lambda: self._driver().free_mib())}
        if action == "gpus":
            return {"gpus": await self._gpus()}
        if not isinstance(unit, str) or unit not in self._units:
            raise KeeperError("the settings name no such unit")
        if action == "look":
            output = await _systemctl("show", "--property=ActiveState,Job", unit)
            properties = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
            starts = properties.get("Job", "") not in ("", "0")  # a job may wait for another unit
            return {"runs": starts or properties.get("ActiveState") not in ("inactive", "failed")}
        if action == "image":
            return await _call_image_program(unit, "look")
        async with self._lock:
            _LOG.info("%s %s", action, unit)
            await self._carry_out(action, unit)
        return {"done": action}

    async def _carry_out(self, action: Any, unit: str) -> None:
        if action == "start":
            with suppress(KeeperError):  # a unit that never ran is not loaded
                await _systemctl("reset-failed", unit)
            await _systemctl("start", "--no-block", unit)
        elif action in ("suspend", "resume"):
            move = suspend if action == "suspend" else resume
            group = (await _systemctl("show", "--property=ControlGroup", "--value", unit)).strip()
            find = partial(self._find_processes, group, move, all_driver_users=unit in self._image_units)
            for pid in await self._run_in_thread(find):
                await self._run_in_thread(partial(move, pid))
        elif action == "kill":  # `stop` would wait for a unit that hangs
            with suppress(KeeperError):  # it has ended already
                await _systemctl("kill", "--signal=SIGKILL", unit)
        elif action not in ("stop", "take", "confirm"):
            raise KeeperError(
                "start, stop, kill, suspend, resume, image, take, confirm, look, memory or gpus is expected"
            )
        if action in ("take", "confirm"):
            await _call_image_program(unit, action)
        if action in ("take", "stop", "kill"):  # after `take`, the engine exists only in its image
            await _systemctl("stop", unit)

    async def _gpus(self) -> "list[dict[str, Any]]":
        """Read the GPUs, one call at a time, so that a driver that hangs does not block all threads."""
        if self._reading_gpus:
            raise KeeperError("the driver has not answered the last call")
        self._reading_gpus = True
        try:
            return await self._run_in_thread(lambda: self._driver().state())  # type: ignore[no-any-return]
        finally:
            self._reading_gpus = False

    def _driver(self) -> GpuLibrary:
        self._nvml = self._nvml or GpuLibrary()
        return self._nvml

    def _find_processes(self, group: str, move: "Callable[[int], None]", *, all_driver_users: bool) -> "list[int]":
        """Find the process of a unit that has GPU memory. Processes in a container do not belong to the unit.
        all_driver_users: also find its other processes that have the driver open, as vLLM's server does to read its
        GPUs: an image of a process cannot contain an open file of the driver.
        """
        try:
            lists = list(Path(_CGROUPS, group.lstrip("/")).rglob("cgroup.procs")) if group else []
            pids = {int(line) for each in lists for line in each.read_text().split()}
        except OSError as error:
            raise KeeperError(f"processes of the unit cannot be read: {error.strerror}") from None
        computing = pids & self._driver().processes() or {pid for pid in pids if _is_engine_core(pid)}
        if len(computing) != 1:
            raise KeeperError(f"the unit has {len(computing)} processes on GPUs of its own; one can be suspended")
        if not all_driver_users:
            return [*computing]
        is_included = _has_driver_open if move is suspend else is_suspended
        return sorted({*computing, *filter(is_included, pids)})

    async def _run_in_thread(self, function: "Callable[[], Any]") -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, function)
        except DriverError as error:
            self._nvml = None
            raise KeeperError(str(error)) from None


def _has_driver_open(pid: int) -> bool:
    try:
        return any(str(each.readlink()).startswith("/dev/nvidia") for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _is_engine_core(pid: int) -> bool:
    """Tell whether this is the process of vLLM's engine core, which the driver does not list while it is suspended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::EngineCor")
    except OSError:
        return False


async def _call_image_program(unit: str, action: str) -> "dict[str, Any]":
    """Send a request to the program of a unit that starts its engine from an image. Raises KeeperError."""
    control = Path(IMAGES, unit[len("winhost-engine-") : -len(".service")], "control")
    try:
        reader, writer = await asyncio.open_unix_connection(str(control))
        try:
            writer.write(json.dumps({"do": action}).encode("ascii") + b"\n")
            answer = json.loads(await asyncio.wait_for(reader.readline(), _MAX_CALL_S))
        finally:
            writer.close()
    except asyncio.TimeoutError:
        raise KeeperError(f"{control} does not answer") from None
    except (OSError, ValueError) as error:
        raise KeeperError(f"{control}: {type(error).__name__}") from None
    if not isinstance(answer, dict) or "error" in answer:
        raise KeeperError(str(answer.get("error") if isinstance(answer, dict) else "no object"))
    return answer


async def _systemctl(*arguments: str) -> str:
    """Run systemctl and return its output. Raises KeeperError."""
    pipe = asyncio.subprocess.PIPE
    # With NOTIFY_SOCKET, systemctl would notify systemd as if it were the keeper.
    environment = {name: text for name, text in os.environ.items() if name != "NOTIFY_SOCKET"}
    process = await asyncio.create_subprocess_exec(
        "systemctl", "--no-ask-password", *arguments, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        output, error = await asyncio.wait_for(process.communicate(), _MAX_CALL_S)
    except asyncio.TimeoutError:
        process.kill()
        raise KeeperError(f"systemctl {arguments[0]} takes longer than {_MAX_CALL_S} s") from None
    if process.returncode:
        kind = UnknownUnit if process.returncode == _UNIT_NOT_FOUND else KeeperError
        raise kind(f"systemctl {arguments[0]}: {error.decode('utf-8', 'replace').strip()[:300]}")
    return output.decode("utf-8", "replace")


async def serve(settings: GatewaySettings) -> None:
    """Answer the gateway until SIGTERM or SIGINT. Raises StartError."""
    if settings.turns.keeper is None:
        raise StartError("the settings name no socket for it (turns.keeper)")
    socket = Path(settings.turns.keeper)
    socket.unlink(missing_ok=True)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    service = KeeperService(settings)
    try:
        server = await asyncio.start_unix_server(service.handle, str(socket), limit=_MAX_LINE)
        socket.chmod(0o660)  # the gateway's group enters the folder
    except OSError as error:
        raise StartError(f"cannot listen on {socket}: {error.strerror or error}") from None
    notify_systemd("READY=1")
    _LOG.info("listening on %s", socket)
    await stop.wait()
    server.close()
    await service.wait_until_done()


def main(arguments: "list[str]") -> int:
    """Run until SIGTERM or SIGINT."""
    log_to_stderr()
    try:
        if len(arguments) != 1:
            raise StartError("give the file of settings")
        asyncio.run(serve(read_settings(Path(arguments[0]))))
    except (StartError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
