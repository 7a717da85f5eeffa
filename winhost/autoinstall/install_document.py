"""The whole autoinstall file, made at the moment of use: it holds the SSH host key by which winhost knows the machine.

It is written as JSON, which YAML is, so that the guard can read and complete it with the standard library alone.
"""

import json
from collections.abc import Mapping
from typing import Any

from winhost.autoinstall.installer_storage import PYTHON, guard_commands
from winhost.autoinstall.storage_section import Action
from winhost.core.dataclass import dataclass
from winhost.images.seed import GuestSeed, network_config, user_data
from winhost.model.errors import UsageError

# The medium is mounted there; a file that is fetched comes to the other place.
ON_MEDIUM, FETCHED = "/cdrom/winhost", "/run/winhost"
# Each of modules of ours that become one text.
SCRIPTS = {
    "guard.py": ("installer_storage.py", "installer_guard.py"),
    "boot.py": ("installer_boot.py",),
    "fetch.py": ("fetch_settings.py",),
}
_KERNELS = ("generic", "hwe")
# The installer leaves the key in these two, and cloud-init has it by then.
_FORGET = (
    "rm -f /var/log/installer/autoinstall-user-data /etc/cloud/cloud.cfg.d/99-installer.cfg",
    "touch /etc/cloud/cloud-init.disabled",
)


@dataclass(frozen=True)
class InstallSettings:
    """What the new system is. seed: its name, user, keys and network; beside: in a partition that Windows made, so that
    the boot entry of Windows stays first; report: where the installer says how far it is; local_time: a Windows that
    stays has it in the hardware clock.
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
    """An SSH key of the machine, made here; private: OpenSSH's text, secret. It has no repr."""

    private: str
    public: str


def new_host_key() -> HostKey:
    """An Ed25519 key that no machine has had."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return HostKey(private.decode("ascii"), public.decode("ascii"))


def install_document(settings: InstallSettings, storage: Action, key: HostKey, scripts: str = ON_MEDIUM) -> Action:
    """Secret, for the key. scripts: the folder that the guard is in."""
    return {
        **installer_part(settings, storage, scripts),
        "user-data": _user_data(settings.seed, key),
        "network": _network(settings.seed),
    }


def installer_part(settings: InstallSettings, storage: Action, scripts: str) -> Action:
    """All but what is secret or of the site."""
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


def _user_data(seed: GuestSeed, key: HostKey) -> Mapping[str, Any]:
    data = user_data(seed)
    keys = {"ed25519_private": key.private, "ed25519_public": key.public}
    return {**data, "runcmd": [*data["runcmd"], *_FORGET], "hostname": seed.hostname, "ssh_keys": keys}


def _network(seed: GuestSeed) -> Mapping[str, Any]:
    """A card of metal keeps its name: the installer is running on it already."""
    network = network_config(seed)
    for card in network["ethernets"].values():
        del card["set-name"]
    return network


def written_install(document: Action) -> str:
    """The text of autoinstall.yaml."""
    return json.dumps(document, indent=1) + "\n"
