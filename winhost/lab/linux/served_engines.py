"""Engines and their gateway in a simulated Linux: a stand-in that answers where all that one needs is there."""

import json
import re
from collections.abc import Iterator, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.account_programs import GROUP, rows
from winhost.lab.linux.container_store import ContainerStore
from winhost.lab.linux.linux_errors import program_failed, refused
from winhost.lab.linux.linux_machine import Linux, State
from winhost.lab.linux.model_store import ModelStore
from winhost.lab.physics.windows_errors import NotYet

SERVING_FILE = "/etc/winhost/serving.json"
_GROUP = "winhost-engines"
_UNIT = r"winhost-engine-[a-z0-9][a-z0-9-]{0,63}\.service"
_NONE: State = {"text": None, "enabled": False, "active": False, "failed": False}
_START_SECONDS = 90.0


class ServedEngines:
    """units: by name, as they were written; replaced: those that the gateway starts and that did not answer since."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.units: dict[str, State] = {each.key["unit"]: dict(each.state) for each in linux.found("EngineUnit")}
        self.replaced: set[str] = set()

    def change(self, name: str, desired: Mapping[str, Json]) -> None:
        """Raises CmdletError."""
        before = self.units.get(name, _NONE)
        after = {**before, **desired}
        # One that does not start with the machine is the gateway's to start.
        tried = before["active"] or before["failed"]
        stays = after["enabled"] and after["text"] and (tried or not before["enabled"])
        after["active"] = desired.get("active", bool(stays))
        if after["text"] is None and (after["enabled"] or after["active"]):
            raise refused("BadRequest", "InvalidArgument", f"{name} cannot start without a text.")
        if after["text"] is None:
            self.units.pop(name, None)
            self.replaced.discard(name)
            return
        self.units[name] = {**after, "active": False, "failed": False}
        if after["text"] != before["text"] and not after["enabled"]:
            self.replaced.add(name)
        if after["active"]:
            self._linux.machine.clock.sleep(_START_SECONDS)
            if lacking := self._lacking(str(after["text"])):
                self.units[name]["failed"] = True
                raise program_failed("systemctl", f"Job for {name} failed: {lacking} is not there.")
            self.units[name]["active"] = True

    def _lacking(self, text: str) -> str | None:
        """What a real unit fails without."""
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
        if models is None or models[1] not in self._linux.part(ModelStore).folders:
            return "its model"
        return None

    def serves(self) -> bool:
        """Whether the gateway runs, and every engine of the file that says what is served, or would by its turn."""
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


def engine_units(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of one, or of all."""
    if not linux.distro.systemd:
        raise NotYet("LinuxSystem")
    if _GROUP not in [each[0] for each in rows(linux.disk, GROUP)]:
        raise NotYet("LinuxGroup")
    units = linux.part(ServedEngines).units
    for name in [key["unit"]] if key else sorted(units):
        if re.fullmatch(_UNIT, name) is None:
            raise refused("BadRequest", "InvalidArgument", f"{name!r} is not the unit of an engine.")
        yield Record(units.get(name, _NONE), {"unit": name})


def set_engine_unit(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    linux.part(ServedEngines).change(key["unit"], desired)


_GATEWAY_FILE = "/usr/local/lib/systemd/system/winhost-gateway.service"


def serving_ready(linux: Linux, key: Key | None) -> Iterator[Record]:
    """Of the machine."""
    if linux.file(SERVING_FILE)["text"] is None:
        raise NotYet("LinuxFile")
    unit = str(linux.file(_GATEWAY_FILE)["text"] or "")
    by_apt = "community" if "\nExecStart=/usr/bin/python3 " in unit else None  # of Ubuntu's universe
    engines = linux.part(ServedEngines)
    yield Record({"ready": engines.serves() and not engines.replaced, "library_updates": by_apt})
    engines.replaced.clear()  # by the next look the gateway has started them


def await_endpoint(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    """Raises CmdletError."""
    if not linux.part(ServedEngines).serves():
        message = "The endpoint does not serve: its models do not answer. Next: winhost serve status HOST"
        raise refused("NotServing", "ObjectNotFound", message)
