"""An Ubuntu that winhost installs for dual boot: its settings, and the decisions at each stage."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from winhost.autoinstall.facts_manifest import (
    authorities_of,
    keeps_local_time,
    machine_of,
    manifest_of_facts,
    windows_esp_of,
)
from winhost.autoinstall.install_plan import InstallPlan, NewSystem
from winhost.autoinstall.medium_files import files_before_settings
from winhost.core.answers import Json, MissingFact, Unavailable, if_available
from winhost.images.ubuntu_releases import MEDIA_MIRROR, InstallerRelease, is_address
from winhost.model.once import once
from winhost.model.reason import Refusal
from winhost.paths.linux import ContainersInside, DriverChoice, LinuxDecisions, LinuxSettings, select_driver
from winhost.paths.setting_values import DHCP, HostSpecific, OwnAddress, Sha256, Upload, matching, pack, public_key
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxGpuDriver, LinuxSystem
from winhost.resources.linux.system import ShownGpus
from winhost.resources.shared import RUNNING
from winhost.resources.windows.boot_entries import RunningSystem, UbuntuInstaller
from winhost.resources.windows.disks import StagedFile
from winhost.resources.windows.read_only import NetworkAdapter

UBUNTU = "ubuntu"  # the name of its installer among the resources
AUTO = "auto"

Item = Mapping[str, Json]


class NewUbuntu(OwnAddress):
    """The system that is installed, and how winhost logs on to it over SSH."""

    hostname: Annotated[
        str,
        matching(r"(?!-)[a-z0-9-]{1,63}(?<!-)", "1 to 63 lower-case letters, digits and dashes"),
        HostSpecific("host name"),
    ]
    key: Annotated[str, AfterValidator(public_key)] | None = None
    """The public key of the user who runs winhost. By default that of ssh.key in fleet.yaml, else of a pair that
    winhost makes.
    """
    user: Annotated[str, matching(r"(?!root\Z)[a-z_][a-z0-9_-]{0,31}", "a user other than root")] = "winhost"
    """The user who logs on with that key, and becomes root with sudo. There is no password."""
    mac: Annotated[
        str,
        matching(r"auto|([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}", "auto, or a MAC address"),
        HostSpecific("MAC address"),
    ] = AUTO
    """The MAC address of its network card. auto: the one over which Windows is reached."""
    installer: Annotated[str, AfterValidator(lambda version: InstallerRelease(version).version)] = "24.04.4"
    """The point release of Ubuntu Server."""
    mirror: str = MEDIA_MIRROR
    """The source of Ubuntu's releases: an address that the host can reach, or a folder with a copy."""
    sha256: Sha256 | None = None
    """The SHA-256 of the installer's image, as Canonical signed it; filled in by `winhost plan`."""
    kernel: Literal["generic", "hwe"] = "generic"
    timezone: Annotated[str, matching(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}", "a time zone")] = "Etc/UTC"
    upload: Upload = "wire"
    """The way in which an image in a folder of this computer is sent to the host, as for a new VM."""
    serve: str = AUTO
    """The address of this computer at which the installer fetches its settings, once. auto: the one that leads to the
    host.
    """

    @model_validator(mode="after")
    def _check_gateway(self) -> "NewUbuntu":
        if self.address != DHCP and self.gateway is None:
            raise ValueError("a static address needs a gateway")
        return self

    @property
    def release(self) -> InstallerRelease:
        return InstallerRelease(self.installer, self.mirror)

    @property
    def image(self) -> Mapping[str, str]:
        """The image that is staged on Windows. Raises MissingFact until its signed SHA-256 is known."""
        name = self.release.image
        if self.sha256 is None:
            raise MissingFact("StagedFile", Unavailable(StagedFile.resource_type.name))
        source = self.release.source(name) if is_address(self.mirror) else f"./{name}"
        return {"sha256": self.sha256, "name": name, "source": source, "title": f"Installer of Ubuntu {self.installer}"}


class UbuntuDecisions(ContainersInside):
    """The decisions that the playbook may refer to. Those about the Linux raise MissingFact until it runs."""

    def __init__(self, facts: HostFacts, settings: NewUbuntu, containers: LinuxSettings | None) -> None:
        self._facts, self._settings, self._containers = facts, settings, containers

    @property
    def images(self) -> tuple[Item, ...]:
        return (self._settings.image,)

    def installers(self, partition: str) -> tuple[Item, ...]:
        """Return the installer on the partition with this GUID; with its recorded values once Ubuntu is installed.

        Raises RefusedError (NotPrepared), MissingFact.
        """
        made = self._facts.find(UbuntuInstaller, {"name": UBUNTU})
        if made is not None and self.is_installed:
            parts = ("partition", "image", "files", "user", "address")
            return ({"name": UBUNTU, **{part: getattr(made, part) for part in parts}},)
        plan, image, address = self.install_plan(), self._settings.image, self._settings.guest_address
        esp = plan.order()["windows_esp"]
        return (
            {
                "name": UBUNTU,
                "partition": partition,
                "image": f"{image['sha256']}-{image['name']}",
                "files": _files(plan.system.kernel_ip_argument, str(esp)),
                "user": self._settings.user,
                "address": str(address.interface) if address else None,
            },
        )

    @property
    def is_installed(self) -> bool:
        """Tell whether the installer that winhost created has installed Ubuntu."""
        made = self._facts.find(UbuntuInstaller, {"name": UBUNTU})
        return made is not None and made.made is True and self._facts.the(RunningSystem).linux is not None

    def install_plan(self) -> InstallPlan:
        """Return the plan of the installation for the current facts. Raises RefusedError (NotPrepared), MissingFact."""
        settings = self._settings
        if settings.key is None:
            raise Refusal(
                "disk.nobody-logs-on",
                "Nobody could log on to the new Ubuntu: it has no password.",
                "Name your public key: --set system.key=@FILE.pub",
            )
        system = NewSystem(
            settings.hostname,
            settings.user,
            (settings.key,),
            self._mac,
            None if settings.address == DHCP else settings.address,
            str(settings.gateway) if settings.gateway else None,
            tuple(map(str, settings.dns)),
            settings.kernel,
            settings.timezone,
        )
        return InstallPlan(
            self._facts.host,
            machine_of(self._facts),
            system,
            settings.installer,
            manifest_of_facts(self._facts),
            authorities=authorities_of(self._facts),
            windows_esp=windows_esp_of(self._facts),
            local_time=keeps_local_time(self._facts),
        )

    @property
    def _mac(self) -> str:
        """The MAC address of the network adapter. Raises Refusal if it is unclear which one leads to winhost."""
        if self._settings.mac != AUTO:
            return self._settings.mac
        adapters = [each.state for each in self._facts.all(NetworkAdapter)]
        found = [
            adapter.mac for adapter in adapters if adapter.management and adapter.kind == "ethernet" and adapter.mac
        ]
        if len(found) != 1:
            raise Refusal(
                "disk.no-network-card",
                f"{len(found)} Ethernet cards of the host lead to this computer, and Ubuntu gets one by its address",
                "Name it: --set system.mac=00:15:5d:01:02:03",
            )
        return found[0]

    # ---- in the Linux, once it runs

    def _await(self) -> None:
        """Raise MissingFact until the Linux runs."""
        if if_available(lambda: self._facts.the(LinuxSystem)) is None:
            raise MissingFact("LinuxSystem", Unavailable(RUNNING))

    @cached_property
    def inside(self) -> LinuxDecisions | None:
        self._await()
        return LinuxDecisions(self._facts, self._containers) if self._containers else None

    @property
    def drivers(self) -> tuple[DriverChoice, ...]:
        """The driver to install. Raises UsageError (NoDriver)."""
        self._await()
        chosen = select_driver(self._facts) if self._gpus else None
        return (chosen,) if chosen else ()

    @property
    def specs(self) -> tuple[Mapping[str, str], ...]:
        """The CDI specifications of the GPUs, once a driver runs them."""
        if self.inside is None or not self._gpus:
            return ()
        self._await_driver()
        return ({"title": "The GPUs, for containers"},)

    @property
    def shown_gpus(self) -> tuple[Item, ...]:
        """The number of GPUs that the driver must show."""
        self._await()
        if not self._gpus:
            return ()
        self._await_driver()
        return ({"count": self._gpus, "loaded": True},)

    @property
    def serving_systems(self) -> tuple[Item, ...]:
        """The Linux, once its driver shows all GPUs: engines start only then. Raises MissingFact before."""
        self._await()
        if self._gpus and self._facts.the(ShownGpus).count != self._gpus:
            raise MissingFact("ShownGpus", Unavailable(ShownGpus.resource_type.name))
        return ({"name": self._settings.hostname},)

    @property
    def _gpus(self) -> int:
        """The number of NVIDIA's GPUs that Windows lists."""
        return sum(gpu.pci.key["device"].startswith("VEN_10DE") for gpu in self._facts.gpus)

    def _await_driver(self) -> None:
        if not self._facts.the(LinuxGpuDriver).loaded:
            raise MissingFact("ShownGpus", Unavailable(LinuxGpuDriver.resource_type.name))


@once
def _files(words: str | None, esp: str) -> str:
    """Pack the files that winhost adds to the installer's for the PowerShell script that writes them."""
    texts = {path: data.decode("utf-8") for path, data in files_before_settings(words, esp).items()}
    return pack(json.dumps(texts, sort_keys=True).encode("ascii"))
