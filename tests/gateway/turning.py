"""Models that take turns, in one process: engines that speak vLLM's protocol, their units, and clients."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.vllm_protocol import ConnectionLost, Gpu, NobodyListens, ProtocolEngine
from winhost.gateway.engine_control import EngineControl, EngineFault, EngineUnreachable
from winhost.gateway.gateway_settings import GatewaySettings, PublishedModel, parse_settings
from winhost.gateway.keeper_client import Image, KeeperFault, KeeperNotReady
from winhost.gateway.turn_state import Member, Seat, TurnEnded
from winhost.gateway.turns import Busy, SeatedRequest, Turn, Turns

SILENCE_S = 30


class Units:
    """A stand-in for the keeper."""

    def __init__(self, engines: Sequence[ProtocolEngine]) -> None:
        self._engines = {f"winhost-engine-{engine.name}.service": engine for engine in engines}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self.asked: list[tuple[str, str]] = []
        self.broken = False
        self.there_at = 0.0  # of the event loop: nobody listens before
        self.images: dict[str, bool] = {}  # by unit with one: whether a start from it was confirmed
        self.restored: set[str] = set()
        self.image_fails = False

    def _engine(self, what: str, unit: str) -> ProtocolEngine:
        if asyncio.get_running_loop().time() < self.there_at:
            raise KeeperNotReady("nobody listens yet")
        if self.broken:
            raise KeeperFault("nobody listens")
        self.asked.append((what, unit))
        return self._engines[unit]

    async def start(self, unit: str) -> None:
        engine = self._engine("start", unit)
        self.restored.discard(unit)
        if unit in self.images and self.images.pop(unit):
            self.images[unit] = False
            self.restored.add(unit)
            await engine.restore()
            return
        if unit not in self._starting or self._starting[unit].done():
            self._starting[unit] = asyncio.ensure_future(engine.start())

    async def stop(self, unit: str) -> None:
        engine = self._engine("stop", unit)
        if starting := self._starting.pop(unit, None):
            starting.cancel()
        await engine.stop()

    async def kill(self, unit: str) -> None:
        await self._engine("kill", unit).stop()

    async def runs(self, unit: str) -> bool:
        starting = self._starting.get(unit)
        return self._engine("look", unit).up or (starting is not None and not starting.done())

    async def suspend(self, unit: str) -> None:
        engine = self._engine("suspend", unit)
        await asyncio.sleep(1.5)
        engine.gpu.used[engine.name] = 4

    async def resume(self, unit: str) -> None:
        engine = self._engine("resume", unit)
        await asyncio.sleep(1.5)
        engine.gpu.used[engine.name] = engine.asleep

    async def image(self, unit: str) -> Image:
        self._engine("image", unit)
        return Image(exists=unit in self.images, used=unit in self.restored)

    async def take_image(self, unit: str) -> None:
        engine = self._engine("take", unit)
        await asyncio.sleep(9.5)
        if self.image_fails:
            raise KeeperFault("the disk is full")
        self.images[unit] = True
        await engine.die()

    async def confirm_image(self, unit: str) -> None:
        self._engine("confirm", unit)
        self.images[unit] = True

    async def free_mib(self) -> dict[int, int]:
        if self.broken:
            raise KeeperFault("nobody listens")
        return {0: next(iter(self._engines.values())).gpu.free}


def control_of(engine: ProtocolEngine, model: PublishedModel) -> EngineControl:
    async def call(method: str, path: str, body: bytes | None, seconds: float) -> tuple[int, bytes]:
        try:
            status, answer = await asyncio.wait_for(engine.answer(method, path, body), seconds)
        except NobodyListens:
            raise EngineUnreachable(engine.name) from None
        except ConnectionLost:
            raise EngineFault(engine.name) from None
        return status, json.dumps(answer).encode() if answer is not None else b""

    return EngineControl(model, call)


@dataclass
class Turning:
    """Some models on one GPU. answers: of requests, by outcome."""

    engines: Mapping[str, ProtocolEngine]
    settings: GatewaySettings
    units: Units | None
    turns: Turns
    outcomes: list[tuple[str, str, float]] = field(default_factory=list)

    @property
    def gpu(self) -> Gpu:
        return next(iter(self.engines.values())).gpu

    def member(self, name: str) -> Member:
        return self.turns._members()[name]

    async def ask(self, name: str, prompt: str, seconds: float = 0.15, key: str = "alice") -> str:
        """Send a request as the front door does. Return the answer, or the name of an error."""
        began = asyncio.get_running_loop().time()
        outcome = await self._asked(name, prompt, seconds, key)
        self.outcomes.append((name, outcome, asyncio.get_running_loop().time() - began))
        return outcome

    async def _asked(self, name: str, prompt: str, seconds: float, key: str) -> str:
        try:
            with SeatedRequest(self.turns, key) as seat:
                return await self._answered(
                    seat, name, json.dumps({"prompt": prompt, "seconds": seconds}).encode(), seconds
                )
        except Busy:
            return "busy"

    async def _answered(self, seat: Seat, name: str, body: bytes, seconds: float) -> str:
        deadline = self.turns.deadline()
        while True:
            try:
                async with Turn(self.turns, seat, name, deadline):
                    answer = self.engines[name].answer("POST", "/v1/completions", body)
                    _, found = await asyncio.wait_for(answer, max(SILENCE_S, seconds + 1))
                    return str(found["choices"][0]["text"])
            except NobodyListens:
                self.turns.note_unreachable(name)
            except (TimeoutError, ConnectionLost):
                self.turns.note_failure(name)
                return "broke off"
            except TurnEnded:
                return "turn ended"


def turning(
    engines: Sequence[ProtocolEngine],
    keeper: bool = True,
    memory: bool = True,
    model: Mapping[str, Any] | None = None,
    yields: Mapping[str, Any] | None = None,
    resident: str = "",
    **limits: Any,
) -> Turning:
    """model: settings of each one's turns; resident: the engine that only starts anew where it fails; limits: of turns,
    and `hold`, `waiting` and `requests`; yields: settings.
    """
    own = {name: limits.pop(name) for name in ("hold", "waiting", "requests") if name in limits}
    turns: dict[str, Any] = {"gpus": [0], "version": "0.24.0", **(model or {})}
    if turns.get("between") == "stop":
        turns.pop("version")
    models = []
    for each in engines:
        stays = {"gpus": [0], "between": "stop", "resident": True}
        mine = {
            **(stays if each.name == resident else turns),
            **({"unit": f"winhost-engine-{each.name}.service"} if keeper else {}),
        }
        if memory:
            mine |= {"awake_mib": each.awake} | ({} if "between" in mine else {"asleep_mib": each.asleep})
        models.append({"name": each.name, "engine": {"socket": f"/run/{each.name}.sock"}, "turns": mine})
    if memory:
        limits["memory"] = {"0": engines[0].gpu.total}
    if keeper:
        limits["keeper"] = "/run/keeper.sock"
    whole = {"listen": {"socket": "/run/door.sock"}, "models": models, "limits": own, "turns": limits}
    settings = parse_settings(json.dumps(whole if yields is None else {**whole, "yields": yields}))
    by_name = {each.name: each for each in engines}
    units = Units(engines) if keeper else None
    return Turning(by_name, settings, units, Turns(settings, lambda each: control_of(by_name[each.name], each), units))
