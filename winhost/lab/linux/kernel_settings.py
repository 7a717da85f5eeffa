"""Settings and modules of the kernel of a simulated Linux, and the initramfs that has the files about modules.

Source: the manual pages of sysctl.d, modprobe.d, modules-load.d and update-initramfs.
"""

import re
from collections.abc import Iterable, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import Linux

SYSCTLS = ("kernel.numa_balancing", "net.core.somaxconn", "vm.max_map_count", "vm.swappiness")
MODULES = ("nouveau", "nvidia", "nvidia_drm", "nvidia_uvm")
CUTTING = ("net.ipv4.", "net.ipv6.", "net.netfilter.", "net.bridge.")
_WORDS = r"[!-~]+( [!-~]+)*"
_NAME = r"[a-z0-9_-]+(?:\.[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*)+"
_OPTION = r"[a-zA-Z0-9_]+=[!-~]+"
_INITRAMFS_SECONDS = 20.0


class KernelSettings:
    """live: settings that hold now; at_boot: what winhost's files set; loaded: modules that run."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.live = {"kernel.numa_balancing": "1", "net.core.somaxconn": "4096", "vm.max_map_count": "65530"}
        self.live["vm.swappiness"] = "60"
        self.at_boot: dict[str, str] = {}
        self.modules: dict[str, dict[str, Json]] = {}
        self._boot = linux.distro.starts
        self.loaded = (
            {str(each.state["driver"]) for each in linux.gpus() if each.state["driver"]} if linux.own else set()
        )

    def module(self, name: str) -> dict[str, Json]:
        found = self.modules.get(name, {"options": None, "blacklisted": False, "at_boot": False})
        self._look()
        loaded = name in self.loaded
        return {**found, "initramfs_due": False, "loaded": loaded, "restart_due": loaded and bool(found["blacklisted"])}

    def _look(self) -> None:
        """Since a start, nothing runs that is blacklisted."""
        if self._boot != self._linux.distro.starts:
            self._boot = self._linux.distro.starts
            self.loaded -= {name for name, each in self.modules.items() if each["blacklisted"]}

    def change_module(self, name: str, desired: Mapping[str, Json]) -> None:
        if set(desired) - {"at_boot", "restart_due"}:
            self._linux.machine.clock.sleep(_INITRAMFS_SECONDS)
        found = self.module(name)
        self.modules[name] = {each: desired.get(each, found[each]) for each in ("options", "blacklisted", "at_boot")}


def sysctls(linux: Linux, key: Key | None) -> Iterable[Record]:
    kernel = linux.part(KernelSettings)
    for name in [key["name"]] if key else SYSCTLS:
        _check(_NAME, name, "the name of a setting of the kernel")
        if name in kernel.live:
            yield Record({"live": kernel.live[name], "at_boot": kernel.at_boot.get(name)}, {"name": name})


def set_sysctl(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    kernel, name = linux.part(KernelSettings), key["name"]
    for each in desired.values():
        if each is not None:
            _check(_WORDS, each, "words with one space between them")
    if "live" in desired:
        kernel.live[name] = str(desired["live"])
    if desired.get("at_boot") is not None:
        kernel.at_boot[name] = str(desired["at_boot"])
    elif "at_boot" in desired:
        kernel.at_boot.pop(name, None)


def cuts_routes(linux: Linux, key: Key) -> bool:
    return key["name"].startswith(CUTTING)


def kernel_modules(linux: Linux, key: Key | None) -> Iterable[Record]:
    for name in [key["module"]] if key else MODULES:
        yield Record(
            linux.part(KernelSettings).module(_check(r"[a-z0-9_]+", name, "a module, with _ for -")), {"module": name}
        )


def set_kernel_module(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    if desired.get("initramfs_due") is True or desired.get("restart_due") is True:
        raise refused("WrongPlace", "InvalidOperation", "An initramfs is only ever brought up to date.")
    if desired.get("options") is not None:
        _check(f"{_OPTION}( {_OPTION})*", desired["options"], "options, as NAME=VALUE")
    linux.part(KernelSettings).change_module(key["module"], desired)


def _check(pattern: str, text: Json, says: str) -> str:
    if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
        raise refused("BadRequest", "InvalidArgument", f"{text!r} is not {says}.")
    return text
