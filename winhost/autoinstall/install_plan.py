"""An installation of Ubuntu on one machine: its plan, and the autoinstall file that is made from the plan on use.

The plan contains no secret and no consent: the user consents to a wipe when media are made. The file contains the SSH
host key by which winhost will recognize the machine. It is written as JSON, which is also YAML, so that the guard can
read and complete it with only the standard library.
"""

import json
from collections.abc import Sequence
from dataclasses import field, replace
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

from winhost.autoinstall.guard_order import (
    Action,
    Scheme,
    WholeDisk,
    order_beside,
    order_whole,
    storage_beside_windows,
    whole_disks,
)
from winhost.autoinstall.installer_storage import PYTHON, guard_commands
from winhost.autoinstall.manifest import DiskManifest, MachineIdentity
from winhost.core.dataclass import dataclass
from winhost.hardware.gpus import find_model
from winhost.images.seed import GuestAddress, GuestSeed, network_config, user_data
from winhost.images.ubuntu_releases import InstallerRelease
from winhost.model.documents import write_document
from winhost.model.errors import UsageError
from winhost.model.versions import refuse_other_kind, refuse_other_version
from winhost.model.yamlfile import load_json

# The mount point of the medium, and the folder for fetched files.
ON_MEDIUM, FETCHED = "/cdrom/winhost", "/run/winhost"
# The modules that make up each script.
SCRIPTS = {
    "guard.py": ("installer_storage.py", "installer_guard.py"),
    "boot.py": ("installer_boot.py",),
    "fetch.py": ("fetch_settings.py",),
}
_KERNELS = ("generic", "hwe")
# The installer leaves the key in these files; cloud-init has read it by then.
_REMOVE_KEY_COMMANDS = (
    "rm -f /var/log/installer/autoinstall-user-data /etc/cloud/cloud.cfg.d/99-installer.cfg",
    "touch /etc/cloud/cloud-init.disabled",
)


@dataclass(frozen=True)
class InstallSettings:
    """The settings of the new system. seed: its name, user, keys and network; beside: it is installed into a partition
    that Windows made, and the boot entry of Windows stays first; report: the address for the installer's reports;
    local_time: a Windows that stays keeps local time in the hardware clock.
    """

    seed: GuestSeed
    beside: bool
    kernel: str = "generic"
    timezone: str = "Etc/UTC"
    report: str | None = None
    local_time: bool = True

    def __post_init__(self) -> None:
        if self.kernel not in _KERNELS:
            raise UsageError("NoSuchKernel", what=f"there is no kernel '{self.kernel}': {' or '.join(_KERNELS)}")


@dataclass(frozen=True, repr=False)
class HostKey:
    """The SSH host key of the new machine. private: OpenSSH's text, secret, so the class has no repr."""

    private: str
    public: str


def new_host_key() -> HostKey:
    """Generate an Ed25519 key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return HostKey(private.decode("ascii"), public.decode("ascii"))


def install_document(settings: InstallSettings, storage: Action, key: HostKey, scripts: str = ON_MEDIUM) -> Action:
    """Make the content of the installer's file, which is secret because of the key. scripts: the guard's folder."""
    data, network = user_data(settings.seed), network_config(settings.seed)
    for adapter in network["ethernets"].values():
        del adapter["set-name"]  # the installer uses the adapter already, under its own name
    return {
        **installer_part(settings, storage, scripts),
        "user-data": {
            **data,
            "runcmd": [*data["runcmd"], *_REMOVE_KEY_COMMANDS],
            "hostname": settings.seed.hostname,
            "ssh_keys": {"ed25519_private": key.private, "ed25519_public": key.public},
        },
        "network": network,
    }


def installer_part(settings: InstallSettings, storage: Action, scripts: str) -> Action:
    """Make the part of the file that contains neither secrets nor settings of the site."""
    document: Action = {
        "version": 1,
        "refresh-installer": {"update": False},
        "early-commands": guard_commands(scripts),
        "locale": "en_US.UTF-8",
        "keyboard": {"layout": "us"},
        "timezone": settings.timezone,
        "source": {"id": "ubuntu-server", "search_drivers": False},
        "kernel": {"flavor": settings.kernel},
        "drivers": {"install": False},
        "apt": {"fallback": "offline-install", "geoip": False},
        "updates": "security",
        "ssh": {"install-server": True, "allow-pw": False, "authorized-keys": list(settings.seed.admin_keys)},
        "storage": storage,
        "shutdown": "reboot",
    }
    late = [f"{PYTHON} {scripts}/boot.py order"] if settings.beside else []
    late += ["printf '0.0 0 0.0\\n0\\nLOCAL\\n' > /target/etc/adjtime"] if settings.local_time else []
    if late:
        document["late-commands"] = late
    if settings.beside:
        document["error-commands"] = [f"{PYTHON} {scripts}/boot.py windows"]
    if settings.report:
        document["reporting"] = {"winhost": {"type": "webhook", "endpoint": settings.report, "level": "INFO"}}
    return document


def format_install_file(document: Action) -> str:
    """Return the text of autoinstall.yaml."""
    return json.dumps(document, indent=1) + "\n"


SCHEMA = "winhost.install-plan/1"
EXTRAS = ("criu", "cuda-checkpoint")


@dataclass(frozen=True)
class NewSystem:
    """The identity and network of the new system. mac: of the network adapter; address: as 192.0.2.10/24, with gateway
    and name servers, or None for DHCP.
    """

    hostname: str
    user: str
    keys: tuple[str, ...]
    mac: str
    address: str | None = None
    gateway: str | None = None
    dns: tuple[str, ...] = ()
    kernel: str = "generic"
    timezone: str = "Etc/UTC"

    def seed(self) -> GuestSeed:
        """Return the seed of the new system. Raises ValueError for wrong addresses, UsageError (SeedUnusable)."""
        address = None
        if self.address is not None:
            if self.gateway is None:
                raise ValueError("an address needs a gateway")
            resolvers = tuple(map(ip_address, self.dns))
            address = GuestAddress(ip_interface(self.address), ip_address(self.gateway), resolvers)
        return GuestSeed(self.hostname, self.user, self.keys, self.mac, address)

    @property
    def kernel_ip_argument(self) -> str | None:
        """The installer's network in the form of the kernel's argument `ip=`; None with DHCP."""
        if self.address is None or self.gateway is None:
            return None
        interface = ip_interface(self.address)
        return f"{interface.ip}::{self.gateway}:{interface.netmask}:{self.hostname}::off"


@dataclass(frozen=True)
class InstallPlan:
    """The plan of an installation. beside: the disk with Windows, which stays; whole: disks that Ubuntu gets; one of
    the two is set.

    authorities: the signers that the firmware accepts; None where Secure Boot is off; gpus: by their PCI ids;
    windows_esp: the EFI system partition of Windows, which may be on another disk than beside; local_time: a Windows
    that stays keeps local time in the hardware clock.
    """

    host: str
    machine: MachineIdentity
    system: NewSystem
    installer: str
    beside: DiskManifest | None = None
    whole: tuple[WholeDisk, ...] = ()
    scheme: Scheme = field(default_factory=Scheme)
    authorities: tuple[str, ...] | None = None
    gpus: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    windows_esp: str | None = None
    local_time: bool = True
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema is {self.schema[:60]!r}, not {SCHEMA!r}")
        if (self.beside is None) == (not self.whole):
            raise ValueError("it has to name a partition next to Windows, or whole disks")
        names = [each.name for each in self.whole]
        if len({*names, *(each.choice.id for each in self.whole)}) != 2 * len(names):
            raise ValueError("it names a disk twice")
        if unknown := set(self.extras) - set(EXTRAS):
            raise ValueError(f"there is no {min(unknown)!r} to install; there is {' and '.join(EXTRAS)}")
        InstallerRelease(self.installer)
        self.system.seed()

    def settings(self, report: str | None = None) -> InstallSettings:
        system, beside = self.system, self.beside is not None
        return InstallSettings(system.seed(), beside, system.kernel, system.timezone, report, self.local_time)

    def storage(self) -> Action:
        """Make the storage section. Raises ValueError, RefusedError (DisksUnusable)."""
        if self.beside is not None:
            return storage_beside_windows(self.beside)
        return whole_disks([each.choice for each in self.whole], self.scheme)

    def order(self, wiped: Sequence[str] = (), report: str | None = None) -> dict[str, Any]:
        """Make the order that the guard compares with the machine. wiped: names of the disks whose wipe the user has
        consented to.
        """
        if self.beside is not None:
            return order_beside(self.beside, report, self.windows_esp)
        # A consent in the file is ignored, because no user has typed it.
        disks = [replace(each, wipe=each.name if each.name in wiped else None) for each in self.whole]
        return order_whole(self.machine, disks, self.scheme, report)


def settings_to_fetch(plan: InstallPlan, key: HostKey, wiped: Sequence[str] = (), report: str | None = None) -> bytes:
    """Make the document that the installer fetches, which is secret because of the key. Raises as `storage` does."""
    document = install_document(plan.settings(report), plan.storage(), key, FETCHED)
    return json.dumps({"autoinstall": document, "guard": plan.order(wiped, report)}).encode("ascii")


def read_install_plan(path: Path) -> InstallPlan:
    """Read the file of a plan. Raises UsageError (FileFaults, WrongDocument, OtherVersion, SeedUnusable)."""

    def check(data: object) -> None:
        refuse_other_kind(str(path), data, SCHEMA, "Plan the installation: winhost install plan FACTS -o FILE")
        refuse_other_version(str(path), data)

    return load_json(path, InstallPlan, check)


def format_install_plan(plan: InstallPlan) -> str:
    return write_document(plan)


def next_steps(plan: InstallPlan) -> list[str]:
    """List the steps to do over SSH once the system has started. The driver is one of them, because over SSH it can be
    tried again if it fails.
    """
    login = f"{plan.system.user}@{plan.system.hostname}"
    steps = [
        f"Add {plan.system.hostname} to fleet.yaml with kind: linux and the host key that was made for it",
        f"winhost detect {plan.system.hostname}",
        f"winhost plan {plan.system.hostname} --path linux -o plan.json, for the driver, engines and the gateway",
    ]
    on_board = [model.name for gpu in plan.gpus if (model := find_model(gpu)) is not None and "SXM" in model.name]
    if len(on_board) > 1:
        exact = '"nvidia-fabricmanager-$(modinfo -F version nvidia | cut -d. -f1)=$(modinfo -F version nvidia)*"'
        steps.append(
            f"{len(on_board)} GPUs on a board with NVSwitch need the fabric manager in exactly the driver's version. "
            "That plan installs and starts it with the driver where NVSwitches are on the PCI bus; where they are not, "
            f"and CUDA fails with 802, on {login}: "
            f"sudo apt-get install {exact} && sudo systemctl enable --now nvidia-fabricmanager"
        )
    if "criu" in plan.extras:
        ppa = "sudo add-apt-repository -y ppa:criu/ppa && " if plan.installer.startswith("24.04") else ""
        steps.append(
            f"A workload with `needs: {{must: [criu]}}` brings CRIU with its plan. By hand, on {login}: "
            f"{ppa}sudo apt-get install criu && sudo criu check (unverified: its CUDA plug-in)"
        )
    if "cuda-checkpoint" in plan.extras:
        steps.append(
            "cuda-checkpoint comes from NVIDIA/cuda-checkpoint, for driver 550 or later, as a program of its own that "
            "no distribution packages; CRIU's newest plug-in does without it from driver 580 on (unverified)"
        )
    return steps
