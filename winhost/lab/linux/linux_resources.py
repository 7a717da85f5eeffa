"""Resources of a simulated Linux for which no script runs: their records answer."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.container_store import container_images, set_container_image
from winhost.lab.linux.data_disks import data_disks, linux_disks, mounts, set_data_disk, set_mount
from winhost.lab.linux.docker_daemon import docker_settings, set_docker_setting
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import PACKAGE_SETS, PACKAGES, Linux, State
from winhost.lab.linux.model_store import model_files, set_model_files
from winhost.lab.linux.package_manager import SOURCES, asked_of
from winhost.lab.linux.port_rules import firewall_ports, set_firewall_port
from winhost.lab.linux.python_venvs import python_venvs, set_python_venv
from winhost.lab.linux.served_engines import await_endpoint, engine_units, serving_ready, set_engine_unit
from winhost.lab.linux.simulated_cluster import (
    await_node,
    cluster_nodes,
    cluster_objects,
    release_files,
    set_cluster_objects,
    set_release_file,
)
from winhost.lab.physics.windows_errors import CmdletError, NotYet

Get = Callable[[Linux, Key | None], Iterable[Record]]
Set = Callable[[Linux, Key, Mapping[str, Json]], None]

_ASKED = r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](?::[a-z0-9]+)?(?:=[A-Za-z0-9][A-Za-z0-9.+:~-]*)?"
_TO_DO = ("to_add", "to_change", "to_change_foreign", "to_remove")
_ARMOURED = r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n[\n -~]*-----END PGP PUBLIC KEY BLOCK-----\n?"


@dataclass(frozen=True)
class LinuxResource:
    """set: None of what can only be read."""

    key: tuple[str, ...]
    get: Get
    set: Set | None = None
    cuts: Callable[[Linux, Key], bool] = lambda linux, key: False


def bad_request(message: str) -> CmdletError:
    """What is asked cannot be meant."""
    return refused("BadRequest", "InvalidArgument", message)


def wrong_place(message: str) -> CmdletError:
    """Not from how it stands now."""
    return refused("WrongPlace", "InvalidOperation", message)


def _matching(pattern: str, text: Json, says: str) -> str:
    if not isinstance(text, str) or re.fullmatch(pattern, text) is None:
        raise bad_request(f"{text!r} is not {says}.")
    return text


# ---- packages


def _sources(linux: Linux, key: Key | None) -> Iterable[Record]:
    for name in [key["name"]] if key else SOURCES:
        says = "the name of a source of winhost's (winhost-...)"
        yield Record(linux.apt.source(_matching(r"winhost-[a-z0-9][a-z0-9-]*", name, says)), {"name": name})


def _set_source(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    after = {**linux.apt.source(key["name"]), **desired}
    if after["present"]:
        _check_source(after)
    linux.apt.write_source(key["name"], after)


def _check_source(after: State) -> None:
    _matching(r"[A-Za-z0-9/][A-Za-z0-9/._-]*", after["suite"], "a suite")
    for each in after["components"]:
        _matching(r"[A-Za-z0-9][A-Za-z0-9/._-]*", each, "a component")
    _matching(r"(https?://|file:/)[!-~]+", after["uri"], "the address of a repository")
    digest = hashlib.sha256(_matching(_ARMOURED, after["key"], "an armoured public key").encode()).hexdigest()
    if after["key_sha256"] != digest:
        raise bad_request(f"The key's SHA-256 is {digest}, not {after['key_sha256']}.")


def _packages(linux: Linux, key: Key | None) -> Iterable[Record]:
    for name in [key["package"]] if key else PACKAGES:
        _matching(r"[a-z0-9][a-z0-9+.-]+", name, "the name of a package")
        yield Record(linux.apt.package(name), {"package": name})


def _set_package(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    name = key["package"]
    if desired.get("held") is False:
        linux.apt.hold(name, held=False)
    if "version" in desired and desired["version"] is None:
        linux.apt.purge(name)
    elif "version" in desired:
        linux.apt.install(
            name, _matching(r"[A-Za-z0-9](?:[A-Za-z0-9.+:~-]*[A-Za-z0-9])?", desired["version"], "a version")
        )
    if desired.get("held") is True:
        linux.apt.hold(name, held=True)


def _package_sets(linux: Linux, key: Key | None) -> Iterable[Record]:
    own = linux.gpu_driver.sets if linux.own else ()
    for wanted in [key["packages"]] if key else (*PACKAGE_SETS, *own):
        asked = _asked(wanted)
        try:
            state = linux.apt.package_set(asked)
        except NotYet as waits:
            waiting = {name: {"unavailable": waits.resource} for name in _TO_DO}
            state = {"installed": False, "held": False, **waiting, "needed_by": [], "restart_due": False}
        yield Record(state, {"packages": wanted})


def _asked(wanted: str) -> dict[str, str]:
    words, asked = wanted.split(" "), asked_of(wanted)
    if not all(re.fullmatch(_ASKED, word) for word in words) or words != sorted(set(words)) or len(asked) < len(words):
        raise bad_request(f"{wanted!r} is not a sorted list of packages.")
    return asked


def _set_packages(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    asked = _asked(key["packages"])
    if any(desired.get(name) for name in (*_TO_DO, "restart_due")):
        raise bad_request("What apt has to do can only be wanted to be nothing.")
    if desired.get("installed") is False:
        linux.apt.take_set_back(asked)
        return
    if desired.get("held") is False:
        for name in asked:
            linux.apt.hold(name, held=False)
    if desired.get("installed") is True or any(name in desired for name in _TO_DO):
        linux.apt.install_set(asked, linux.accepted)
    if desired.get("held") is True:
        for name in asked:
            linux.apt.hold(name, held=True)


# ---- what the driver shows


def _shown_gpus(linux: Linux, key: Key | None) -> Iterable[Record]:
    shown = [gpu for gpu in linux.gpus() if gpu.state["uuid"] is not None] if linux.own else []
    needed = next((each.state for each in linux.machine.instances("MmioNeed")), {})
    unplaced = sum(bar["start"] == 0 for gpu in linux.gpus() for bar in gpu.state["bars"])
    now = {"count": len(shown), "loaded": linux.own and bool(linux.driver), "unplaced": unplaced}
    yield Record({**now, "needed_high": needed.get("high"), "needed_low": needed.get("low")})


def _await_gpus(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    if desired.get("loaded", True) is not True or desired.get("unplaced", 0) != 0:
        message = "A driver is waited for until it runs, and BARs until each has its address."
        raise refused("BadRequest", "InvalidArgument", message)
    (now,) = _shown_gpus(linux, None)
    if lacks := {each: now.state[each] for each in desired if now.state[each] != desired[each]}:
        raise refused("GpusMissing", "ObjectNotFound", f"Not as desired: {lacks}.")


# ---- CDI


def _cdi(linux: Linux, key: Key | None) -> Iterable[Record]:
    if not linux.apt.generates:
        raise NotYet("DebianPackage")
    if linux.own and not linux.driver and linux.found("LinuxGpu"):
        raise NotYet("LinuxGpuDriver")
    yield Record(linux.cdi())


def _set_cdi(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    if desired.get("present") is False:
        linux.spec = None
    elif desired.get("fresh") is False:
        raise bad_request("A spec is made fresh or taken away, never stale.")
    else:
        linux.generate()


RECORDS: Mapping[str, LinuxResource] = {
    "LinuxSystem": LinuxResource((), lambda linux, key: linux.system()),
    "LinuxBoot": LinuxResource((), lambda linux, key: linux.boot()),
    "LinuxGpuDriver": LinuxResource((), lambda linux, key: linux.driver_state()),
    "LinuxGpu": LinuxResource(("address",), lambda linux, key: linux.gpus()),
    "ContainerEngine": LinuxResource(("engine",), lambda linux, key: linux.engines()),
    "LinuxDisk": LinuxResource(("disk",), linux_disks),
    "ListeningPort": LinuxResource(("address", "port"), lambda linux, key: linux.found("ListeningPort")),
    "ShownGpus": LinuxResource((), _shown_gpus, _await_gpus),
    "AptSource": LinuxResource(("name",), _sources, _set_source),
    "DebianPackage": LinuxResource(("package",), _packages, _set_package),
    "AptPackages": LinuxResource(("packages",), _package_sets, _set_packages),
    "ContainerImage": LinuxResource(("engine", "image"), container_images, set_container_image),
    "ModelFiles": LinuxResource(("folder",), model_files, set_model_files),
    "PythonVenv": LinuxResource(("folder",), python_venvs, set_python_venv),
    "DockerSetting": LinuxResource(("pointer",), docker_settings, set_docker_setting),
    "FirewallPort": LinuxResource(("port",), firewall_ports, set_firewall_port, lambda linux, key: True),
    "DataDisk": LinuxResource(("serial", "size"), data_disks, set_data_disk),
    "Mount": LinuxResource(("path",), mounts, set_mount),
    "CdiSpec": LinuxResource((), _cdi, _set_cdi),
    "EngineUnit": LinuxResource(("unit",), engine_units, set_engine_unit),
    "ServingReady": LinuxResource((), serving_ready, await_endpoint),
    "ReleaseFile": LinuxResource(("path",), release_files, set_release_file),
    "ClusterNode": LinuxResource(("node",), cluster_nodes, await_node),
    "ClusterObjects": LinuxResource(("name",), cluster_objects, set_cluster_objects),
}
