"""The resources of a simulated Linux: what is asked of each, and what it refuses, as the scripts there do."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.accounts import (
    linux_groups,
    linux_users,
    logs_us_on,
    set_linux_group,
    set_linux_user,
    set_ssh_key,
    ssh_keys,
)
from winhost.lab.linux.container_store import container_images, set_container_image
from winhost.lab.linux.data_disks import data_disks, linux_disks, mounts, set_data_disk, set_mount
from winhost.lab.linux.docker_daemon import docker_settings, set_docker_setting
from winhost.lab.linux.host_key import set_ssh_host_key, ssh_host_key
from winhost.lab.linux.kernel_settings import cuts_routes, kernel_modules, set_kernel_module, set_sysctl, sysctls
from winhost.lab.linux.linux_errors import refused
from winhost.lab.linux.linux_machine import FILES, PACKAGE_SETS, PACKAGES, UNITS, Linux, State
from winhost.lab.linux.model_store import model_files, set_model_files
from winhost.lab.linux.package_manager import SOURCES, asked_of
from winhost.lab.linux.port_rules import firewall_ports, set_firewall_port
from winhost.lab.linux.program_folders import program_folders, set_program_folder
from winhost.lab.linux.python_venvs import python_venvs, set_python_venv
from winhost.lab.linux.served_engines import await_endpoint, engine_units, serving_ready, set_engine_unit
from winhost.lab.linux.simulated_cluster import (
    await_node,
    cluster_nodes,
    cluster_objects,
    release_files,
    secret_files,
    set_cluster_objects,
    set_release_file,
    set_secret_file,
)
from winhost.lab.physics.windows_errors import CmdletError, NotYet

Get = Callable[[Linux, Key | None], Iterable[Record]]
Set = Callable[[Linux, Key, Mapping[str, Json]], None]

_FILES = (
    "/etc/apt/apt.conf.d/52winhost",
    "/etc/cloud/cloud-init.disabled",
    "/etc/docker/daemon.json",
    "/etc/resolv.conf",
    "/etc/wsl.conf",
)
_FOLDERS = ("/etc/cdi", "/etc/ssh/sshd_config.d", "/etc/systemd/network", "/etc/systemd/system")
_OURS = (
    r"/etc/(?:sudoers\.d/[0-9]*-?winhost[a-z0-9-]*|netplan/[0-9]*-?winhost[a-z0-9-]*\.yaml"
    r"|nftables\.d/[0-9]*-?winhost[a-z0-9-]*\.nft)"
    r"|/opt/winhost/gateway(?:-plain-http)?-[0-9a-f]{16}/(?:settings\.json|keys)"
    r"|/usr/local/lib/systemd/system/winhost-(?:(?:gateway|keeper|kv-prune)\.service|kv-prune\.timer)"
    r"|/opt/winhost/kv-prune-[0-9a-f]{16}/prune_kv\.py"
    r"|/opt/winhost/engine-[a-z0-9][a-z0-9-]{0,63}-[0-9a-f]{16}/(?:compose\.yaml|ready\.py)|/etc/winhost/serving\.json"
    r"|/etc/rancher/k3s/config\.yaml|/usr/local/lib/systemd/system/winhost-k3s\.service"
)
_NAMED = r"(?:[a-zA-Z0-9@_-][a-zA-Z0-9@._-]*\.d/)?[a-zA-Z0-9_-][a-zA-Z0-9@._-]*"
_UNIT = r"[A-Za-z0-9_][A-Za-z0-9:_.@\\-]*\.(?:mount|path|service|socket|target|timer)"
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


# ---- files


def _files(linux: Linux, key: Key | None) -> Iterable[Record]:
    for path in [key["path"]] if key else FILES:
        yield Record(linux.file(_writable(path)), {"path": path})


def _writable(path: str) -> str:
    folder = next((each for each in _FOLDERS if path.startswith(f"{each}/")), None)
    named = folder is not None and re.fullmatch(_NAMED, path[len(folder) + 1 :]) is not None and ".." not in path
    if path in _FILES or named or re.fullmatch(_OURS, path):
        return path
    raise bad_request(f"{path} is not among the files that winhost writes.")


def _set_file(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    path = _writable(key["path"])
    before = linux.file(path)
    after = {**before, **desired}
    if after["text"] is not None and after["link"] is not None:
        raise wrong_place(f"{path} is a link to {before['link']}; what replaces it says so: link null.")
    if after["link"] is None and after["text"] is not None:
        _matching(r"(?s).*", after["text"], "text")
        _matching(r"0?[0-7]{3}", after["mode"] or "0644", "a mode as 0644")
        owner = _matching(r"[^:]+:[^:]+", after["owner"] or "root:root", "an owner as root:root")
        if owner != "root:root":
            raise bad_request(f"{owner}: nobody is called so.")
        if "text" in desired:
            _validate(path, after["text"])
    linux.write(path, after)


def _validate(path: str, text: str) -> None:
    """Of the validators only those of JSON: the others are programs that the lab has not."""
    of_gateway = path.startswith("/opt/winhost/gateway-") and path.endswith("/settings.json")
    if path != "/etc/docker/daemon.json" and not of_gateway:
        return
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise refused("NotValid", "InvalidData", f"json refuses the new {path}.", "json")
    if of_gateway and "-plain-http-" not in path and found.get("plain_http_beyond_this_machine"):
        raise refused("NotValid", "InvalidData", f"winhost refuses the new {path}.", "winhost")


def _cuts_ssh(linux: Linux, key: Key) -> bool:
    if key["path"].startswith("/etc/ssh/"):
        return linux.distro.systemd
    return key["path"].startswith(("/etc/sudoers.d/", "/etc/netplan/"))


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


# ---- units


def _units(linux: Linux, key: Key | None) -> Iterable[Record]:
    if not linux.distro.systemd:
        raise NotYet("LinuxSystem")
    for name in [key["unit"]] if key else UNITS:
        yield Record(linux.systemd.state(_matching(_UNIT, name, "the name of a unit")), {"unit": name})


def _set_unit(linux: Linux, key: Key, desired: Mapping[str, Json]) -> None:
    if "enabled" in desired:
        linux.systemd.enable(key["unit"], str(desired["enabled"]))
    if desired.get("active") is True:
        linux.systemd.start(key["unit"])
    if desired.get("active") is False:
        linux.systemd.stop(key["unit"])


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


ENTRIES: Mapping[str, LinuxResource] = {
    "LinuxSystem": LinuxResource((), lambda linux, key: linux.system()),
    "LinuxBoot": LinuxResource((), lambda linux, key: linux.boot()),
    "LinuxGpuDriver": LinuxResource((), lambda linux, key: linux.driver_state()),
    "LinuxGpu": LinuxResource(("address",), lambda linux, key: linux.gpus()),
    "ContainerEngine": LinuxResource(("engine",), lambda linux, key: linux.engines()),
    "LinuxDisk": LinuxResource(("disk",), linux_disks),
    "ListeningPort": LinuxResource(("address", "port"), lambda linux, key: linux.found("ListeningPort")),
    "ShownGpus": LinuxResource((), _shown_gpus, _await_gpus),
    "SshHostKey": LinuxResource((), ssh_host_key, set_ssh_host_key),
    "LinuxFile": LinuxResource(("path",), _files, _set_file, _cuts_ssh),
    "LinuxFolder": LinuxResource(("path",), program_folders, set_program_folder),
    "AptSource": LinuxResource(("name",), _sources, _set_source),
    "DebianPackage": LinuxResource(("package",), _packages, _set_package),
    "AptPackages": LinuxResource(("packages",), _package_sets, _set_packages),
    "SystemdUnit": LinuxResource(("unit",), _units, _set_unit),
    "ContainerImage": LinuxResource(("engine", "image"), container_images, set_container_image),
    "ModelFiles": LinuxResource(("folder",), model_files, set_model_files),
    "PythonVenv": LinuxResource(("folder",), python_venvs, set_python_venv),
    "DockerSetting": LinuxResource(("pointer",), docker_settings, set_docker_setting),
    "KernelModule": LinuxResource(("module",), kernel_modules, set_kernel_module),
    "Sysctl": LinuxResource(("name",), sysctls, set_sysctl, cuts_routes),
    "FirewallPort": LinuxResource(("port",), firewall_ports, set_firewall_port, lambda linux, key: True),
    "DataDisk": LinuxResource(("serial", "size"), data_disks, set_data_disk),
    "Mount": LinuxResource(("path",), mounts, set_mount),
    "LinuxGroup": LinuxResource(("group",), linux_groups, set_linux_group),
    "LinuxUser": LinuxResource(("user",), linux_users, set_linux_user, logs_us_on),
    "SshKey": LinuxResource(("user", "key"), ssh_keys, set_ssh_key, logs_us_on),
    "CdiSpec": LinuxResource((), _cdi, _set_cdi),
    "EngineUnit": LinuxResource(("unit",), engine_units, set_engine_unit),
    "ServingReady": LinuxResource((), serving_ready, await_endpoint),
    "ReleaseFile": LinuxResource(("path",), release_files, set_release_file),
    "SecretFile": LinuxResource(("path",), secret_files, set_secret_file),
    "ClusterNode": LinuxResource(("node",), cluster_nodes, await_node),
    "ClusterObjects": LinuxResource(("name",), cluster_objects, set_cluster_objects),
}
