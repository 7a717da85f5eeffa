"""Asks the storage model of Ubuntu's installer, from its own source, what it makes of a `config`. Run as a program.

Only names of theirs are used here, nothing of their text. Standard input: probe, config, version; arguments: folders
of subiquity and curtin. Standard output: what the installer would hand to curtin, or why it stops.
"""

import json
import sys
import types
import typing
from importlib import import_module
from typing import Any


class StandIn(types.ModuleType):
    """A module of the installer's system that the model imports and does not need."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name)


class Told:
    """Of a block device: its size and udev's properties, as the model asks for them."""

    def __init__(self, probe: dict[str, Any]) -> None:
        ((self.name, self.raw),) = probe.items()
        self.size = self.free = int(self.raw["attrs"]["size"])
        self.type, self.devpath = self.raw["DEVTYPE"], self.raw.get("DEVPATH")
        self.model, self.vendor, self.serial = (self.raw.get(f"ID_{key}") for key in ("MODEL", "VENDOR", "SERIAL"))
        self.rotational, self.fs_type, self.path_id = "0", None, None

    def _get_hwvals(self, keys: list[str], missing_value: str = "unknown") -> str:
        return str(next((self.raw[key] for key in keys if self.raw.get(key)), missing_value))


def main(subiquity: str, curtin: str) -> None:
    sys.path[:0] = [subiquity, curtin]
    if not hasattr(typing, "override"):  # of Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    for name in ("systemd", "systemd.journal", "apt_pkg", "apt", "aptsources", "apport", "probert", "pyudev"):
        sys.modules[name] = StandIn(name)
    storage = StandIn("probert.storage")
    storage.StorageInfo = Told  # type: ignore[attr-defined]
    sys.modules["probert.storage"] = storage
    filesystem = import_module("subiquity.models.filesystem")

    asked = json.load(sys.stdin)
    try:
        model = filesystem.FilesystemModel(filesystem.Bootloader.UEFI, root="/")
    except TypeError:  # before 24.10
        model = filesystem.FilesystemModel(filesystem.Bootloader.UEFI)
    model.storage_version, model.target = asked["version"], "/target"
    model.load_probe_data(asked["probe"])
    try:
        model.apply_autoinstall_config(asked["config"])
        stops = "no root" if not model.is_root_mounted() else ""
        if not stops and model.needs_bootloader_partition():
            stops = "no loader"
        answer = {"stops": stops, "rendered": model.render()}
    except Exception as error:  # noqa: BLE001 - whatever it says, it stops there
        answer = {"stops": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout, default=str)


if __name__ == "__main__":
    main(*sys.argv[1:])
