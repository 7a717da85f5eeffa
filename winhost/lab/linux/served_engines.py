"""Engines and their gateway in a simulated Linux: a stand-in that answers where all that one needs is there."""

import json
import re
from collections.abc import Mapping
from typing import Any

from winhost.core.answers import Json
from winhost.lab.linux.container_store import ContainerStore
from winhost.lab.linux.linux_errors import program_failed
from winhost.lab.linux.linux_machine import Linux, State

SERVING_FILE = "/etc/winhost/serving.json"
_UNITS = "/usr/local/lib/systemd/system"
_UNIT = r"winhost-engine-[a-z0-9][a-z0-9-]{0,63}\.service"
_NONE: State = {"text": None, "enabled": False, "active": False, "failed": False}
_START_SECONDS = 90.0


class ServedEngines:
    """Those whose units are on the disk. started: texts with which the gateway has started those that it starts."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        for each in linux.found("EngineUnit"):
            if each.state["text"] is not None:
                self.put(each.key["unit"], **each.state)
        self.started = self._by_gateway()

    @property
    def units(self) -> Mapping[str, State]:
        """The units by name, in the shape of their resource."""
        names = (name for name in self._linux.disk.names(_UNITS) if re.fullmatch(_UNIT, name))
        return {name: self._state(name) for name in names}

    def _state(self, name: str) -> State:
        unit = self._linux.systemd.find(name)
        text = self._linux.disk.text(f"{_UNITS}/{name}")
        return {"text": text, "enabled": unit.enabled == "enabled", "active": unit.active, "failed": unit.failed}

    def put(self, name: str, **state: Any) -> None:
        """Change a unit; values that are not named stay."""
        if "text" in state:
            self._linux.disk.write(f"{_UNITS}/{name}", state["text"])
        unit = self._linux.systemd.find(name)
        if "enabled" in state:
            unit.enabled = "enabled" if state["enabled"] else "disabled"
        unit.active, unit.failed = state.get("active", unit.active), state.get("failed", unit.failed)

    def _by_gateway(self) -> dict[str, str]:
        """Texts of those that do not start with the machine: they are the gateway's to start."""
        return {name: str(unit["text"]) for name, unit in self.units.items() if not unit["enabled"]}

    def replaced(self) -> bool:
        """Tell whether the gateway has a new engine to start; by the next look it has started it."""
        before, self.started = self.started, self._by_gateway()
        return any(before.get(name) != text for name, text in self.started.items())

    def start(self, name: str) -> None:
        """It takes its time, and fails where something is not there. Raises CmdletError."""
        self._linux.sleep(_START_SECONDS)
        if lacking := self._lacking(str(self.units[name]["text"])):
            self.put(name, active=False, failed=True)
            raise program_failed("systemctl", f"Job for {name} failed: {lacking} is not there.")

    def _lacking(self, text: str) -> str | None:
        """Return the first path that a real unit would fail without."""
        for path in map(str, re.findall(r"/opt/winhost/engine-[^\s:]+\.(?:yaml|py)", text)):
            if self._linux.file(path)["text"] is None:
                return path
        for compose in re.findall(r"--file (/opt/winhost/engine-\S+/compose\.yaml)", text)[:1]:
            return self._lacking_container(str(self._linux.file(compose)["text"]))
        return None

    def _lacking_container(self, compose: str) -> str | None:
        image, models = re.search(r"image: (\S+)", compose), re.search(r"(/srv/winhost/models/[a-z0-9-]+):", compose)
        if image is None or not self._linux.part(ContainerStore).has(image[1]):
            return "its image"
        if models is None or not self._linux.disk.names(models[1]):
            return "its model"
        return None

    def ready(self) -> bool:
        """The gateway's answer about readiness."""
        return self.serves() and not self.replaced()

    def serves(self) -> bool:
        """Tell whether the gateway runs, and every engine of the serving file runs or would start at its turn."""
        told = json.loads(str(self._linux.file(SERVING_FILE)["text"]))
        return self._runs("winhost-gateway.service") and all(map(self._would_serve, told["engines"]))

    def _runs(self, unit: str) -> bool:
        return self._linux.systemd.state(unit)["active"] is True

    def _would_serve(self, engine: Mapping[str, Json]) -> bool:
        name = str(engine["unit"])
        unit = self.units.get(name, _NONE)
        if not engine["turns"]:
            return unit["active"] is True
        started = unit["text"] is not None and self._runs("winhost-keeper.service")
        return started and self._lacking(str(unit["text"])) is None
