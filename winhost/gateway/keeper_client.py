"""Send requests to the keeper, which starts and stops units and reads the GPUs."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from .turn_settings import TurnLimits

_SHORT_S = 15
_READ_GPUS_S = 3  # a scrape of the metrics waits for it


class KeeperFault(Exception):
    """The keeper cannot be reached, or cannot carry out a request. The message says why."""


class KeeperNotReady(KeeperFault):
    """The keeper does not listen, or the unit has no file. Both may follow soon after the gateway has started, and
    neither shows a failure of the engine.
    """


@dataclass(frozen=True)
class Image:
    """The image of an engine's process on disk. exists: it is there; used: the engine was started from it."""

    exists: bool = False
    used: bool = False


class KeeperClient:
    """A client of the keeper. Each call opens a connection, and raises KeeperFault."""

    def __init__(self, socket: str, limits: TurnLimits) -> None:
        self._socket, self._limits = socket, limits

    async def start(self, unit: str) -> None:
        """Start the unit, without waiting until it is up."""
        await self._call({"do": "start", "unit": unit}, _SHORT_S)

    async def stop(self, unit: str) -> None:
        """Stop the unit, and wait until it has ended."""
        await self._call({"do": "stop", "unit": unit}, self._limits.swap)

    async def kill(self, unit: str) -> None:
        """Kill the unit's processes, and wait until it has ended."""
        await self._call({"do": "kill", "unit": unit}, self._limits.swap)

    async def runs(self, unit: str) -> bool:
        """Tell whether the unit runs or is about to."""
        return (await self._call({"do": "look", "unit": unit}, _SHORT_S)).get("runs") is True

    async def suspend(self, unit: str) -> None:
        await self._call({"do": "suspend", "unit": unit}, self._limits.swap)

    async def resume(self, unit: str) -> None:
        await self._call({"do": "resume", "unit": unit}, self._limits.swap)

    async def image(self, unit: str) -> Image:
        answer = await self._call({"do": "image", "unit": unit}, _SHORT_S)
        return Image(exists=answer.get("image") is True, used=answer.get("began") == "restored")

    async def take_image(self, unit: str) -> None:
        """Write the process of the unit's engine to disk, which ends it."""
        await self._call({"do": "take", "unit": unit}, self._limits.start)

    async def confirm_image(self, unit: str) -> None:
        """Confirm that the engine answers as expected after its start from the image."""
        await self._call({"do": "confirm", "unit": unit}, _SHORT_S)

    async def free_mib(self) -> "dict[int, int]":
        """Read the free memory of each GPU, by the driver's index."""
        answer = (await self._call({"do": "memory"}, _SHORT_S)).get("free_mib")
        if not isinstance(answer, dict) or any(type(mib) is not int for mib in answer.values()):
            raise KeeperFault("its answer has no valid free memory")
        return {int(gpu): mib for gpu, mib in answer.items()}

    async def gpus(self) -> "list[dict[str, Any]]":
        """Read the state of each GPU, as GpuLibrary.state does."""
        gpus = (await self._call({"do": "gpus"}, _READ_GPUS_S)).get("gpus")
        if not isinstance(gpus, list) or not all(isinstance(each, dict) for each in gpus):
            raise KeeperFault("its answer has no valid state of the GPUs")
        return gpus

    async def _call(self, request: "dict[str, str]", seconds: float) -> "dict[str, Any]":
        try:
            answer = await asyncio.wait_for(self._exchange(request), seconds)
        except asyncio.TimeoutError:
            raise KeeperFault(f"no answer to {request['do']} in {seconds:.0f} s") from None
        except OSError as error:
            raise KeeperNotReady(f"{self._socket}: {type(error).__name__}") from None
        except ValueError as error:
            raise KeeperFault(f"{self._socket}: {type(error).__name__}") from None
        if isinstance(answer, dict) and answer.get("missing") is True:
            raise KeeperNotReady(str(answer.get("error")))
        if not isinstance(answer, dict) or "error" in answer:
            raise KeeperFault(str(answer.get("error") if isinstance(answer, dict) else "no object"))
        return answer

    async def _exchange(self, request: "dict[str, str]") -> Any:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(json.dumps(request).encode("ascii") + b"\n")
            await writer.drain()
            line = await reader.readline()
            if not line:
                raise ConnectionResetError  # the keeper was restarted meanwhile
            return json.loads(line)
        finally:
            writer.close()
