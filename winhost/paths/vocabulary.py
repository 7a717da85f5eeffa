"""The references and settings that the playbook of each path may use."""

from collections.abc import Mapping
from dataclasses import field
from pkgutil import resolve_name

from pydantic import BaseModel, ConfigDict

from winhost.core.dataclass import dataclass
from winhost.paths.never_sleep import POWER_PLAN_PARTS


class NoSettings(BaseModel):
    """The settings of a path that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Vocabulary:
    """The names that the playbook of a path may use.

    - lists: for `for_each`, each with the parts of its items.
    - model: the settings model; names: for settings that accept names, the function that returns their values. Both are
      in `winhost.paths` and imported on demand.
    - options: the fields of a request that the path uses; variant: the setting whose values are the path's variants.
    - on_request: lists that are empty unless a setting requests them.
    - together: lists of which a playbook must use all or none, because each continues the work of another.
    - asked_for: by setting, the lists without which the setting has no effect.
    """

    decisions: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]]
    model: str = "vocabulary:NoSettings"
    names: Mapping[str, str] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    variant: str | None = None
    on_request: frozenset[str] = frozenset()
    together: tuple[str, ...] = ()
    asked_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def settings(self) -> type[BaseModel]:
        found: type[BaseModel] = resolve_name(f"winhost.paths.{self.model}")
        return found

    @property
    def named(self) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
        return {setting: resolve_name(f"winhost.paths.{where}")() for setting, where in self.names.items()}


_FUNCTION = ("location", "device", "name")
_STAGED = ("sha256", "name", "source", "title")
_NEW_VM = ("name", "image", "size", "cpus", "memory", "switch", "vlan", "mac", "secure_boot")
_SOURCE = ("name", "title", "uri", "suite", "components", "key", "key_sha256")
_PACKAGE = ("name", "version", "title")
_GUEST = ("seeds", "guests", "first_keys", "known_guests", "own_keys")  # or its CD with the first key never goes
_CONTAINERS = {
    "engines": ("packages", "title"),
    "units": ("name",),
    "docker_settings": ("pointer", "value", "title", "why"),
    "sources": _SOURCE,
    "packages_inside": _PACKAGE,
}


VOCABULARIES = {
    "dda": Vocabulary(
        (
            "vm.id",
            "vm.name",
            "mmio.low",
            "mmio.high",
            "mmio.why",
            "assignment.assigned",
            "assignment.dismounted",
            "power",
        ),
        {
            "gpus": _FUNCTION,
            "companions": _FUNCTION,
            "power_plans": POWER_PLAN_PARTS,
            "new_vms": _NEW_VM,
            "new_images": _STAGED,
            "nat_switches": ("name", "network"),
            "guest_forwards": ("port", "target", "connect", "allowed", "who", "what"),
            "seeds": ("name", "stage", "user", "address", "template"),
            "known_guests": ("name", "stage", "host_keys"),
            "guests": ("name",),
            "first_keys": ("name",),
            "own_keys": ("name", "key"),
            "drivers": ("packages", "why", "path", "text"),
            "shown_gpus": ("count", "loaded", "unplaced"),
            **_CONTAINERS,
            "specs": ("title",),
            "serving_guests": ("name",),
        },
        "dda_settings:DdaSettings",
        options=frozenset({"vm", "gpus", "low", "high", "power"}),
        on_request=frozenset(
            {
                *("new_vms", "new_images", "nat_switches", "guest_forwards"),
                *(*_GUEST, "drivers", "shown_gpus"),
                *(*_CONTAINERS, "specs", "serving_guests"),
            }
        ),
        together=_GUEST,
        asked_for={"new_vm": ("new_images", "new_vms"), "new_vm.guest": _GUEST},
    ),
    "dual-boot": Vocabulary(
        (),
        {
            "escrows": ("volume", "drive", "proof", "last_group"),
            "suspended": ("volume", "drive", "restarts"),
            "shrunk": ("partition", "size", "given"),
            "partitions": ("name", "disk", "model", "offset", "size", "label", "title"),
            "boot_partitions": ("partition",),
            "entries": ("name", "partition", "path"),
            "images": _STAGED,
            "installers": ("name", "partition", "image", "files", "user", "address"),
            "switches": ("system", "partition"),
            "drivers": ("packages", "why", "path", "text"),
            "shown_gpus": ("count", "loaded"),
            **_CONTAINERS,
            "specs": ("title",),
            "serving_systems": ("name",),
        },
        "dual_boot:DualBootSettings",
        on_request=frozenset(
            {"images", "installers", "switches", "drivers", "shown_gpus", *_CONTAINERS, "specs", "serving_systems"}
        ),
        asked_for={"system": ("images", "installers", "switches")},
    ),
    "linux": Vocabulary(
        (), {"drivers": ("packages", "why", "path", "text"), **_CONTAINERS, "specs": ("title",)}, "linux:LinuxSettings"
    ),
    "wsl2": Vocabulary(
        (
            "network",
            "account",
            "administrator",
            "distro",
            *(f"image.{part}" for part in _STAGED),
            "wsl.version",
            "memory.why",
            *(f"config.{part}" for part in ("text", "encoding", "digest")),
            *(f"conf.{part}" for part in ("text", "network", "resolver")),
        ),
        {
            "packages": _STAGED,
            "dismounted": _FUNCTION,
            "invisible": _FUNCTION,
            "switches": ("name", "adapter"),
            "ways_in": ("port", "listen", "keys", "allowed", "who"),
            "forwards": ("port", "connect", "allowed", "who"),
            "openings": ("creator", "ports", "allowed", "who"),
            "watchers": ("account", "settings", "key", "digest"),
            "sources": _SOURCE,
            "packages_inside": _PACKAGE,
            "files": ("path", "text", "title", "why"),
            "units": ("name",),
            "specs": ("title",),
            "power_plans": POWER_PLAN_PARTS,
        },
        "wsl2:Wsl2Settings",
        {"image": "wsl2:images"},
        variant="network",
        on_request=frozenset({"watchers"}),
        asked_for={"watchers": ("watchers",)},
    ),
}
