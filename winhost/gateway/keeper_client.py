"""Ask the keeper, which may start and stop units and sees the GPUs."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from .turn_settings import TurnLimits

_SHORT_S = 15
_LOOK_S = 3  # a scrape waits for it


class KeeperFault(Exception):
    """The keeper could not be asked, or could not do what was asked. The message says why."""


class NotThereYet(KeeperFault):
    """Nobody listens at the keeper's socket, or the unit has no file: both may still be on their way when the gateway
    starts, and neither says anything about the engine.
    """


@dataclass(frozen=True)
class Image:
    """The image of an engine's process on disk. there: it exists; used: the engine was started from it."""

    there: bool = False
    used: bool = False


class KeeperClient:
    """Each call has a connection of its own. All of them raise KeeperFault."""

    def __init__(self, socket: str, limits: TurnLimits) -> None:
        self._socket, self._limits = socket, limits

    async def start(self, unit: str) -> None:
        """Start the unit, without waiting until it is up."""
        await self._ask({"do": "start", "unit": unit}, _SHORT_S)

    async def stop(self, unit: str) -> None:
        """Stop the unit, and wait until it has ended."""
        await self._ask({"do": "stop", "unit": unit}, self._limits.swap)

    async def kill(self, unit: str) -> None:
        """Kill the unit's processes, and wait until it has ended."""
        await self._ask({"do": "kill", "unit": unit}, self._limits.swap)

    async def runs(self, unit: str) -> bool:
        """Tell whether the unit runs or is about to."""
        return (await self._ask({"do": "look", "unit": unit}, _SHORT_S)).get("runs") is True

    async def suspend(self, unit: str) -> None:
        await self._ask({"do": "suspend", "unit": unit}, self._limits.swap)

    async def resume(self, unit: str) -> None:
        await self._ask({"do": "resume", "unit": unit}, self._limits.swap)

    async def image(self, unit: str) -> Image:
        answer = await self._ask({"do": "image", "unit": unit}, _SHORT_S)
        return Image(there=answer.get("image") is True, used=answer.get("began") == "restored")

    async def take_image(self, unit: str) -> None:
        """Take an image of the unit's engine, which ends it."""
        await self._ask({"do": "take", "unit": unit}, self._limits.start)

    async def confirm_image(self, unit: str) -> None:
        """Tell the keeper that the engine that was started from the image answers as it should."""
        await self._ask({"do": "confirm", "unit": unit}, _SHORT_S)

    async def free_mib(self) -> "dict[int, int]":
        """Free memory of each GPU, by the driver's index."""
        answer = (await self._ask({"do": "memory"}, _SHORT_S)).get("free_mib")
        if not isinstance(answer, dict) or any(type(mib) is not int for mib in answer.values()):
            raise KeeperFault("it does not say how much memory is free")
        return {int(gpu): mib for gpu, mib in answer.items()}

    async def gpus(self) -> "list[dict[str, Any]]":
        """The state of each GPU, as in GpuLibrary.state."""
        found = (await self._ask({"do": "gpus"}, _LOOK_S)).get("gpus")
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise KeeperFault("it does not say how the GPUs are")
        return found

    async def _ask(self, request: "dict[str, str]", seconds: float) -> "dict[str, Any]":
        try:
            answer = await asyncio.wait_for(self._asked(request), seconds)
        except asyncio.TimeoutError:
            raise KeeperFault(f"no answer to {request['do']} in {seconds:.0f} s") from None
        except OSError as error:
            raise NotThereYet(f"{self._socket}: {type(error).__name__}") from None
        except ValueError as error:
            raise KeeperFault(f"{self._socket}: {type(error).__name__}") from None
        if isinstance(answer, dict) and answer.get("missing") is True:
            raise NotThereYet(str(answer.get("error")))
        if not isinstance(answer, dict) or "error" in answer:
            raise KeeperFault(str(answer.get("error") if isinstance(answer, dict) else "no object"))
        return answer

    async def _asked(self, request: "dict[str, str]") -> Any:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(json.dumps(request).encode("ascii") + b"\n")
            await writer.drain()
            line = await reader.readline()
            if not line:
                raise ConnectionResetError  # it was restarted meanwhile
            return json.loads(line)
        finally:
            writer.close()
