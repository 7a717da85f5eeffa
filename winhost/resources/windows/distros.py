"""WSL, the VM that it runs, and its distros."""

import ipaddress
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, DependentRule, KeepIf, UndoRule
from winhost.model.units import Bytes
from winhost.resources.base import VERSION, ResourceType, State, resource
from winhost.resources.shared import (
    DISTRO_CONTENTS,
    DISTROS,
    DISTROS_OF_ACCOUNT,
    NETWORK_CONSENT,
    NO_PROFILE,
    RESTART_CONSENT,
    STOPS_DISTROS,
    UNDO_WHOLE,
    WITHIN_DISTRO,
)
from winhost.resources.values import (
    FLAG,
    NETWORKS,
    SHA256_OR_NOTHING,
    Value,
    is_canonical,
    is_port,
    one_of,
    or_nothing,
    text,
    texts,
)
from winhost.resources.windows.vms import INSTALLED, PENDING, UNINSTALLING


@resource(
    ResourceType(
        "VirtualMachinePlatform",
        title="the Windows feature that WSL runs on",
        order=90,
        sets={"feature": one_of(INSTALLED, "available")},
        restarts=True,
        asks=("restart",),
        risks=RESTART_CONSENT,
        dependents=(DependentRule("Wsl", unless=("present", (False,))), DISTROS),
        # Between two restarts it is nobody else's state.
        undo=UndoRule(transitional_states={"feature": (PENDING, UNINSTALLING)}),
    )
)
class VirtualMachinePlatform(State):
    """The optional feature in which distros of WSL 2 run; with it on, a hypervisor runs after the next restart.

    feature: available, installed, install-pending, uninstall-pending (both pending: until the restart) or removed
    (this Windows does not have it, or not its files).
    """

    feature: str


NO_DOWNGRADE = "winhost never downgrades WSL"
_WAS_THERE = Condition("version", of="before", none_of=(None,))
_ENDS = "{version} does not come back; whatever runs in a distro, of any account, ends with the upgrade"


@resource(
    ResourceType(
        "Wsl",
        title="WSL",
        order=270,
        sets={
            "version": text(r"[0-9]{1,5}(\.[0-9]{1,5}){2,3}", "a version, as 2.7.14.0"),
            "package": text("[0-9a-f]{64}", "the SHA-256 of a staged MSI"),
        },
        after=("VirtualMachinePlatform", "StagedFile"),
        asks=("restart",),
        risks=RESTART_CONSENT,
        dependents=(DISTROS,),
        irreversible=(KeepIf((_WAS_THERE,), f"{NO_DOWNGRADE}: {_ENDS}"),),
        # What was not there goes; a version that was there does not come back.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (_WAS_THERE, Condition("version", differs_from=("before",))),
                    NO_DOWNGRADE,
                ),
            )
        ),
    )
)
class Wsl(State):
    """The Windows Subsystem for Linux as a package, for all accounts.

    present: the service of one is there; version: of the package, null where only the WSL in the box or none is there;
    package: SHA-256 of the MSI by which winhost installed this version, null where somebody else did or it changed
    since. Installed is only what Microsoft has signed, and never an older version. An MSI that finds files in use asks
    for a restart; how often that of WSL does nobody documents.
    """

    present: bool
    version: Annotated[str, VERSION] | None
    package: str | None


@resource(
    ResourceType(
        "WslConfig",
        title=".wslconfig files",
        order=310,
        key=("account",),
        sets={
            "text": Value("text, or nothing", lambda value: value is None or isinstance(value, str)),
            "encoding": or_nothing(one_of("utf-8", "utf-8-bom", "utf-16le")),
        },
        after=("AccountTasks",),
        absent={"text": NO_PROFILE, "encoding": NO_PROFILE},
        dependents=(DISTROS_OF_ACCOUNT,),
        undo=UNDO_WHOLE,
    )
)
class WslConfig(State):
    """The file .wslconfig in an account's profile, whole and to the letter; both are null where there is none.

    WSL reads it when its VM starts. Bytes that it could not read either are unknown.
    """

    text: str | None
    encoding: str | None


_MODE = or_nothing(text("bridged|mirrored|nat", "bridged, mirrored or nat"))
NO_VM: Mapping[str, Json] = MappingProxyType({"running": False, "config": None, "mode": None})


@resource(
    ResourceType(
        "WslVm",
        title="VMs of WSL",
        order=320,
        key=("account",),
        sets={"config": SHA256_OR_NOTHING, "mode": _MODE},
        after=("WslConfig", "ExternalSwitch"),
        requires="AccountTasks",
        absent=NO_VM,
        asks=("vm-stop",),
        risks=STOPS_DISTROS,
        may_need=(ConsentRule("vm-stop"),),  # one that winhost did not start may run all the same,
        within=DISTROS_OF_ACCOUNT,
        # The file goes back by itself, later: a VM cannot be made with what it does not say yet.
        undo=UndoRule(
            gone_if=((Condition("running", one_of=(False,)),),),
            never="WSL reads the .wslconfig that was put back at its next start",
        ),
    )
)
class WslVm(State):
    """The VM in which all distros of an account run; running: one of them does.

    config: SHA-256 of the text of .wslconfig (as UTF-8) that it was made with: the file's text, or its text before
    winhost changed it. A file that somebody else wrote since the VM's kernel started, or a VM that winhost never saw
    start, has null. mode: of its network, as `wslinfo` reports it, which is `nat` where mirrored could not be
    had, and `none` where a bridge could not, or has lost its link since, as when its switch was made again under it
    (that the link shows that: inferred). It gets another one only by starting again. Of a VM that does not run, both
    are what winhost last ended it for.
    """

    running: bool
    config: str | None
    mode: str | None


NO_DISTRO: Mapping[str, Json] = MappingProxyType(
    {"installed": False, "running": False, "image": None, "folder": None, "file_size": None, "others": 0}
)
_STOPPED = Condition("running", of="before", one_of=(False,))
_IMPORTED = Condition("installed", of="before", one_of=(False,))


@resource(
    ResourceType(
        "WslDistro",
        title="the distro",
        order=330,
        key=("account", "distro"),
        sets={"installed": FLAG, "image": SHA256_OR_NOTHING, "running": FLAG},
        after=("Wsl", "StagedFile", "WslConfig", "WslVm"),
        requires="AccountTasks",
        absent=NO_DISTRO,
        asks=("vm-stop", "data"),
        # What runs in it ends with it.
        risks=tuple(
            ConsentRule("vm-stop", (Condition(name, of="desired", one_of=(False,)),), unless=(_STOPPED,))
            for name in ("installed", "running")
        ),
        # With this consent it goes without being exported first.
        may_need=(ConsentRule("data", (Condition("installed", of="desired", one_of=(False,)),)),),
        dependents=(
            DependentRule("WslConf", on=("account", "distro"), since=("conf", "network", "resolver")),
            DependentRule("WslAccess", on=("account", "distro"), since=("port", "listen", "allowed", "authorized")),
            *DISTRO_CONTENTS,
        ),
        # A distro goes only if it is the one that was imported; then it goes as a whole.
        undo=UndoRule(
            gone_if=((_IMPORTED, Condition("installed", one_of=(False,))),),
            keep_if=tuple(
                KeepIf((_IMPORTED, other), "it is not the distro that winhost made any more")
                for other in (Condition("image", one_of=(None,)), Condition("image", differs_from=("after",)))
            ),
            remove_if_created={name: NO_DISTRO[name] for name in ("installed", "image", "running")},
        ),
    )
)
class WslDistro(State):
    """A distro of an account that can run jobs; nobody else sees it.

    image: SHA-256 of the staged file (a .wsl or a tar) that winhost made it of, null for one that somebody else made:
    such a one is never overwritten, started, stopped or taken away. folder: where its disk is; file_size: bytes of the
    file ext4.vhdx there, which has the distro and all that is in it; others: how many the account has that winhost did
    not make.
    Taken away it is exported first, to %ProgramData%\\winhost\\exports, unless the consent `data` is given.
    Running means held: by the task that keeps it alive, or by a .wslconfig without an idle timeout.
    """

    installed: bool
    running: bool
    image: str | None
    folder: str | None
    file_size: Bytes | None
    others: int


_FILE = or_nothing(text(r"(?s)[^\0]*", "the text of a file"))
NO_CONF: Mapping[str, Json] = MappingProxyType({"conf": None, "network": None, "resolver": None})
_WAY_IN = DependentRule("WslAccess", on=("account", "distro"), unless=("active", (False,)))


@resource(
    ResourceType(
        "WslConf",
        title="settings inside the distro",
        order=340,
        key=("account", "distro"),
        sets={"conf": _FILE, "network": _FILE, "resolver": _FILE},
        after=("WslDistro",),
        requires="WslDistro",
        absent=NO_CONF,
        asks=("vm-stop",),
        risks=STOPS_DISTROS,
        dependents=(_WAY_IN,),
        within=WITHIN_DISTRO,
    )
)
class WslConf(State):
    """The files that a distro needs before it can be reached at all; everything else comes over SSH.

    conf: /etc/wsl.conf, without which systemd, and so sshd, does not run; network: the file of systemd-networkd with
    the address of a bridged distro without DHCP; resolver: /etc/resolv.conf. null: as the image and WSL have it, which
    comes back when it is set to null. While the distro does not run, the state is what winhost last wrote. A resource
    of its own, and no part of WslDistro: it can be changed, and its drift seen, without a new import.
    """

    conf: str | None
    network: str | None
    resolver: str | None


# Type, base64, and a name; the scripts have it, too.
PUBLIC_KEY = r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp[0-9]{3}) [A-Za-z0-9+/]+={0,2}( [A-Za-z0-9@._:-]+)?"
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


@resource(
    ResourceType(
        "WslAccess",
        title="SSH access to the distro",
        order=350,
        key=("account", "distro"),
        sets={
            "port": or_nothing(Value("a port", is_port)),
            "listen": or_nothing(Value("an address in its usual spelling", is_canonical(ipaddress.ip_address))),
            "allowed": NETWORKS,
            "authorized": texts(PUBLIC_KEY, "a list of public keys"),
            "active": FLAG,
        },
        after=("WslConf",),
        requires="WslDistro",
        absent=NO_ACCESS,
        asks=("network",),
        risks=NETWORK_CONSENT,
        dependents=DISTRO_CONTENTS,
        within=WITHIN_DISTRO,
        undo=UNDO_WHOLE,
    )
)
class WslAccess(State):
    """sshd in a distro: by key only, at one address, for `user`. From here on the distro is an SSH target.

    allowed: networks (CIDR) that sshd accepts connections from, as from the machine itself; null: from anywhere, as
    behind NAT, where all that comes in comes from Windows. address: its own in the network of a bridge, where it can be
    reached; null elsewhere, and while it does not run. authorized: the keys that winhost put there; those of others are
    left alone and not listed. host_key: what the distro will show, read through Windows and so known before anybody
    connects. active: it listens now, which takes a running distro with systemd, and a network that leads to it. Taking
    the access away removes sshd, unless that was there before.
    """

    user: str | None
    port: int | None
    listen: str | None
    allowed: tuple[str, ...] | None
    address: str | None
    host_key: str | None
    authorized: tuple[str, ...]
    active: bool
