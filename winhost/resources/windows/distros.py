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
        # A state that is pending until a restart is the run's own.
        undo=UndoRule(transitional_states={"feature": (PENDING, UNINSTALLING)}),
    )
)
class VirtualMachinePlatform(State):
    """The optional Windows feature that WSL 2 needs. When it is installed, a hypervisor runs after the next restart.

    feature: available, installed, install-pending or uninstall-pending (until the restart), or removed (this Windows
    has no such feature, or its files were removed).
    """

    feature: str


NEVER_DOWNGRADED = "winhost never downgrades WSL"
_WAS_INSTALLED = Condition("version", of="before", none_of=(None,))
_UPGRADE_EFFECTS = "{version} does not come back; whatever runs in a distro, of any account, ends with the upgrade"


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
        irreversible=(KeepIf((_WAS_INSTALLED,), f"{NEVER_DOWNGRADED}: {_UPGRADE_EFFECTS}"),),
        # A WSL that winhost installed is removed. After an upgrade, the former version is not restored.
        undo=UndoRule(
            keep_if=(KeepIf((_WAS_INSTALLED, Condition("version", differs_from=("before",))), NEVER_DOWNGRADED),)
        ),
    )
)
class Wsl(State):
    """The Windows Subsystem for Linux as a package, for all accounts.

    present: a service of WSL exists; version: of the package, null if there is only the WSL that is part of Windows, or
    none; package: SHA-256 of the MSI from which winhost installed this version, null if somebody else installed it or
    it was updated since. winhost installs only packages that Microsoft has signed, and never an older version. An MSI
    requests a restart if files are in use; how often that of WSL does is not documented.
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
    """The file .wslconfig in an account's profile, with its exact text; both properties are null if there is none.

    WSL reads it when its VM starts. Bytes that WSL could not decode make both properties unknown.
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
        may_need=(ConsentRule("vm-stop"),),  # a VM that winhost did not start may run
        within=DISTROS_OF_ACCOUNT,
        # Rollback restores WslConfig later, and a VM cannot be started with settings that are not in the file yet.
        undo=UndoRule(
            gone_if=((Condition("running", one_of=(False,)),),),
            never="WSL reads the .wslconfig that was put back at its next start",
        ),
    )
)
class WslVm(State):
    """The VM in which all distros of an account run; running: at least one of them runs.

    - config: SHA-256 of the text of .wslconfig (as UTF-8) with which the VM was started: the file's text, or its text
      before winhost changed it. Null if somebody else wrote the file after the VM's kernel started, or if winhost does
      not know with which file the VM was started.
    - mode: the networking mode that `wslinfo` reports. It is `nat` if mirrored mode was not possible; `none` if the
      bridge was not possible, or if it has lost its link since, as when its switch was created again (inferred from
      the link). The VM gets another mode only when it starts again.

    For a VM that does not run, both are the values for which winhost last stopped it.
    """

    running: bool
    config: str | None
    mode: str | None


NO_DISTRO: Mapping[str, Json] = MappingProxyType(
    {"installed": False, "running": False, "image": None, "folder": None, "file_size": None, "others": 0}
)
_WAS_STOPPED = Condition("running", of="before", one_of=(False,))
_WAS_ABSENT = Condition("installed", of="before", one_of=(False,))


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
        # Programs that run in the distro are stopped with it.
        risks=tuple(
            ConsentRule("vm-stop", (Condition(name, of="desired", one_of=(False,)),), unless=(_WAS_STOPPED,))
            for name in ("installed", "running")
        ),
        # With this consent it is removed without being exported first.
        may_need=(ConsentRule("data", (Condition("installed", of="desired", one_of=(False,)),)),),
        dependents=(
            DependentRule("WslConf", on=("account", "distro"), since=("conf", "network", "resolver")),
            DependentRule("WslAccess", on=("account", "distro"), since=("port", "listen", "allowed", "authorized")),
            *DISTRO_CONTENTS,
        ),
        # A distro is removed only if it is the one that was imported, and then as a whole.
        undo=UndoRule(
            gone_if=((_WAS_ABSENT, Condition("installed", one_of=(False,))),),
            keep_if=tuple(
                KeepIf((_WAS_ABSENT, other), "it is not the distro that winhost made any more")
                for other in (Condition("image", one_of=(None,)), Condition("image", differs_from=("after",)))
            ),
            remove_if_created={name: NO_DISTRO[name] for name in ("installed", "image", "running")},
        ),
    )
)
class WslDistro(State):
    """A WSL distro of an account that can run jobs. Only that account sees it.

    image: SHA-256 of the staged file (a .wsl or a tar) from which winhost imported it; null for a distro that somebody
    else created, which winhost never overwrites, starts, stops or removes. folder: the folder of its disk; file_size:
    bytes of ext4.vhdx there, which contains the whole distro; others: the number of the account's distros that winhost
    did not create.

    Before it is removed it is exported to %ProgramData%\\winhost\\exports, unless the consent `data` is given. A
    distro is kept running by the keep-alive task, or by a .wslconfig without an idle timeout.
    """

    installed: bool
    running: bool
    image: str | None
    folder: str | None
    file_size: Bytes | None
    others: int


_FILE_TEXT = or_nothing(text(r"(?s)[^\0]*", "the text of a file"))
NO_CONF: Mapping[str, Json] = MappingProxyType({"conf": None, "network": None, "resolver": None})
_SSH_ACCESS = DependentRule("WslAccess", on=("account", "distro"), unless=("active", (False,)))


@resource(
    ResourceType(
        "WslConf",
        title="settings inside the distro",
        order=340,
        key=("account", "distro"),
        sets={"conf": _FILE_TEXT, "network": _FILE_TEXT, "resolver": _FILE_TEXT},
        after=("WslDistro",),
        requires="WslDistro",
        absent=NO_CONF,
        asks=("vm-stop",),
        risks=STOPS_DISTROS,
        dependents=(_SSH_ACCESS,),
        within=WITHIN_DISTRO,
    )
)
class WslConf(State):
    """The files that a distro needs before it can be reached over SSH; everything else is set up over SSH.

    conf: /etc/wsl.conf, without which systemd, and therefore sshd, does not run; network: the file of systemd-networkd
    with the static address of a bridged distro; resolver: /etc/resolv.conf. null: the file of the image or of WSL,
    which is restored when the property is set to null. While the distro does not run, the state is what winhost last
    wrote. It is separate from WslDistro so that it can be changed, and its drift detected, without a new import.
    """

    conf: str | None
    network: str | None
    resolver: str | None


# Type, base64 and a name. The scripts contain the same pattern.
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
    """sshd in a distro, which accepts only public keys, listens on one address, and lets `user` log on.

    - allowed: networks (CIDR) from which sshd accepts connections, besides the machine itself; null: from anywhere, as
      behind NAT, where all connections come from Windows.
    - address: the distro's own address on a bridge; null in other modes, and while it does not run.
    - authorized: the keys that winhost added. Other keys are left alone and not listed.
    - host_key: the distro's SSH host key, read through Windows and therefore known before the first connection.
    - active: sshd listens now. That requires a running distro with systemd, and a network that reaches it.

    Removing the access uninstalls sshd, unless it was installed before.
    """

    user: str | None
    port: int | None
    listen: str | None
    allowed: tuple[str, ...] | None
    address: str | None
    host_key: str | None
    authorized: tuple[str, ...]
    active: bool
