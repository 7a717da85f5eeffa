"""The Linux distro of an account: itself, the VM that it runs in, what it starts with, and the way into it."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from winhost.model.facts import Json
from winhost.resources.base import Change, Keep, ResourceType, Rests, State, Undo, resource, undo_property_by_property
from winhost.resources.values import FLAG, Value, text
from winhost.resources.windows.accounts import DISTROS_OF, or_nothing, undo_whole
from winhost.resources.windows.network import NETWORKS, cuts_the_wire

_SHA256 = or_nothing(text(r"[0-9a-f]{64}", "a SHA-256"))
_MODE = or_nothing(text("bridged|mirrored|nat", "bridged, mirrored or nat"))
_FILE = or_nothing(text(r"(?s)[^\0]*", "the text of a file"))
# Type, base64, and a name; the scripts have it, too.
PUBLIC_KEY = r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp[0-9]{3}) [A-Za-z0-9+/]+={0,2}( [A-Za-z0-9@._:-]+)?"

NO_DISTRO: Mapping[str, Json] = MappingProxyType(
    {"installed": False, "running": False, "image": None, "folder": None, "others": 0}
)
NO_VM: Mapping[str, Json] = MappingProxyType({"running": False, "config": None, "mode": None})
NO_CONF: Mapping[str, Json] = MappingProxyType({"conf": None, "network": None, "resolver": None})
NO_ACCESS: Mapping[str, Json] = MappingProxyType(
    {
        "user": None,
        "port": None,
        "listen": None,
        "allowed": None,
        "address": None,
        "host_key": None,
        "authorized": [],
        "active": False,
    }
)


# What came into a distro since, as far as winhost knows it: not what was in its image, or came with its own packages.
INSIDE = (
    Rests("LinuxFile", unless=("text", (None,)), since=()),
    Rests("AptSource", unless=("present", (False,)), since=()),
    Rests("DebianPackage", unless=("version", (None,)), since=()),
)
_WITHIN = Rests("WslDistro", on=("account", "distro"), disks=True)
_WAY_IN = Rests("WslAccess", on=("account", "distro"), unless=("active", (False,)))


# ---- the distro


def distro_risks(change: Change) -> Iterable[str]:
    """What runs in it ends with it."""
    ends = change.want.get("installed") is False or change.want.get("running") is False
    return ("vm-stop",) if ends and change.before.get("running") is not False else ()


def distro_may_need(change: Change) -> Iterable[str]:
    """With this consent it goes without being exported first."""
    return ("data",) if change.want.get("installed") is False else ()


def undo_distro(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """A distro goes only if it is the one that was imported; then it goes as a whole."""
    if before.get("installed") is not False:
        return undo_property_by_property(before, after, now)
    if not now["installed"]:
        return {}
    if now["image"] is None or now["image"] != after["image"]:
        return Keep("it is not the distro that winhost made any more")
    return {name: NO_DISTRO[name] for name in ("installed", "image", "running") if now[name] != NO_DISTRO[name]}


@resource(
    ResourceType(
        "WslDistro",
        key=("account", "distro"),
        sets={"installed": FLAG, "image": _SHA256, "running": FLAG},
        after=("Wsl", "StagedFile", "WslConfig", "WslVm"),
        requires="AccountTasks",
        absent=NO_DISTRO,
        asks=("vm-stop", "data"),
        risks=distro_risks,
        may_need=distro_may_need,
        rests=(
            Rests("WslConf", on=("account", "distro"), since=("conf", "network", "resolver")),
            Rests("WslAccess", on=("account", "distro"), since=("port", "listen", "allowed", "authorized")),
            *INSIDE,
        ),
        undo=undo_distro,
    )
)
class WslDistro(State):
    """A distro of an account that can run jobs; nobody else sees it.

    image: SHA-256 of the staged file (a .wsl or a tar) that winhost made it of, null for one that somebody else made:
    such a one is never overwritten, started, stopped or taken away. folder: where its disk is; others: how many the
    account has that winhost did not make.
    Taken away it is exported first, to %ProgramData%\\winhost\\exports, unless the consent `data` is given.
    Running means held: by the task that keeps it alive, or by a .wslconfig without an idle timeout.
    """

    installed: bool
    running: bool
    image: str | None
    folder: str | None
    others: int


# ---- its VM


def undo_vm(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """The file goes back by itself, later: a VM cannot be made with what it does not say yet."""
    return Keep("WSL reads the .wslconfig that was put back at its next start") if now["running"] else {}


def ends_distros(change: Change) -> Iterable[str]:
    """It takes effect with the next start. What has never been set is that of a distro, or of a VM, just made."""
    return ("vm-stop",) if any(value is not None for value in change.before.values()) else ()


def may_end_distros(change: Change) -> Iterable[str]:
    """One that winhost did not start may run all the same."""
    return ("vm-stop",)


@resource(
    ResourceType(
        "WslVm",
        key=("account",),
        sets={"config": _SHA256, "mode": _MODE},
        after=("WslConfig", "ExternalSwitch"),
        requires="AccountTasks",
        absent=NO_VM,
        asks=("vm-stop",),
        risks=ends_distros,
        may_need=may_end_distros,
        within=DISTROS_OF,
        undo=undo_vm,
    )
)
class WslVm(State):
    """The VM in which all distros of an account run; running: one of them does.

    config: SHA-256 of the text of .wslconfig (as UTF-8) that it was made with: what the file says, or said before
    winhost changed it. A file that somebody else wrote since the VM's kernel started, or a VM that winhost never saw
    start, tells nothing: null. mode: of its network, as `wslinfo` tells, which is `nat` where mirrored could not be
    had, and `none` where a bridge could not, or has lost its link since, as when its switch was made anew under it
    (that the link tells that: inferred). It gets another one only by starting again. Of a VM that does not run, both
    are what winhost last ended it for.
    """

    running: bool
    config: str | None
    mode: str | None


# ---- what it starts with


@resource(
    ResourceType(
        "WslConf",
        key=("account", "distro"),
        sets={"conf": _FILE, "network": _FILE, "resolver": _FILE},
        after=("WslDistro",),
        requires="WslDistro",
        absent=NO_CONF,
        asks=("vm-stop",),
        risks=ends_distros,
        rests=(_WAY_IN,),
        within=_WITHIN,
    )
)
class WslConf(State):
    """What has to be in a distro before it can be reached at all; everything else comes over SSH.

    conf: /etc/wsl.conf, without which systemd, and so sshd, does not run; network: the file of systemd-networkd with
    the address of a bridged distro without DHCP; resolver: /etc/resolv.conf. null: as the image and WSL have it, which
    comes back when it is set to null. While the distro does not run it is told as winhost left it.
    A noun of its own, and no part of WslDistro: it can be changed, and its drift seen, without a new import.
    """

    conf: str | None
    network: str | None
    resolver: str | None


# ---- the way in


def _port(value: Json) -> bool:
    return value is None or (type(value) is int and 1 <= value <= 65535)


def _address(value: Json) -> bool:
    """In its one spelling: what is read back must be what was wanted."""
    if value is None or not isinstance(value, str):
        return value is None
    try:
        return str(ipaddress.ip_address(value)) == value
    except ValueError:
        return False


def _keys(value: Json) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(line, str) and re.fullmatch(PUBLIC_KEY, line) is not None for line in value
    )


@resource(
    ResourceType(
        "WslAccess",
        key=("account", "distro"),
        sets={
            "port": Value("a port, or nothing", _port),
            "listen": Value("an address in its usual spelling, or nothing", _address),
            "allowed": NETWORKS,
            "authorized": Value("a list of public keys", _keys),
            "active": FLAG,
        },
        after=("WslConf",),
        requires="WslDistro",
        absent=NO_ACCESS,
        asks=("network",),
        risks=cuts_the_wire,
        rests=INSIDE,
        within=_WITHIN,
        undo=undo_whole,
    )
)
class WslAccess(State):
    """sshd in a distro: by key only, at one address, for `user`. From here on the distro is an SSH target.

    allowed: networks (CIDR) that sshd takes anybody from, beside the machine itself; null: from anywhere, as behind
    NAT, where all that comes in comes from Windows. address: its own in the network of a bridge, where it can be
    reached; null elsewhere, and while it does not run.
    authorized: the keys that winhost put there; those of others are left alone and not told. host_key: what the distro
    will show, brought out by the way of Windows and so known before anybody connects. active: it listens now, which
    takes a running distro with systemd, and a network that leads to it. A way in that is taken away takes sshd with it,
    unless that was there before.
    """

    user: str | None
    port: int | None
    listen: str | None
    allowed: tuple[str, ...] | None
    address: str | None
    host_key: str | None
    authorized: tuple[str, ...]
    active: bool
