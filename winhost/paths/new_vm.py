"""A VM that winhost creates: its image, its NUMA nodes, its settings and its decisions."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, model_validator

from winhost.core.answers import Json, MissingFact, Unavailable, if_known
from winhost.hardware.host_gpus import gpu_label
from winhost.images.ubuntu_releases import MIRROR, is_address, list_images, refuse_by_name
from winhost.images.ubuntu_releases import NAME as CLOUD_IMAGE
from winhost.model.facts import Instance
from winhost.model.reason import Caution, Refusal, Severity
from winhost.model.units import Bytes, GiB, MiB, about, parse_size, size
from winhost.model.written import Closed
from winhost.paths.setting_values import HostSpecific, Sha256, Upload, matching, refuse_device_name, size_in_steps
from winhost.paths.vm_guest import Guest, GuestDecisions
from winhost.paths.vm_network import VmNetworkSettings, vm_network
from winhost.paths.wsl2 import File
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.disks import StagedFile
from winhost.resources.windows.read_only import Processor, Vm
from winhost.resources.windows.vms import NAME, OwnVm, VmDisk

if TYPE_CHECKING:
    from winhost.images.guest_disk import SourceImage


# ---- its image


_Size = Annotated[int, Field(strict=True, ge=1)]


def _check_image_name(name: str) -> str:
    """Return the name of an image. Raises ValueError, and RefusedError for an image that cannot start on Hyper-V."""
    refuse_by_name(name)
    if not CLOUD_IMAGE.fullmatch(name) and not is_file(name) and not is_address(name):
        raise ValueError(
            f"should be {list_images()}, with a day as ubuntu-24.04@20260814 if you like, or else an https:// address "
            "or the path of a qcow2 or raw image (./FILE)"
        )
    return name


def is_file(name: str) -> bool:
    """Tell whether an image is a file on the computer that winhost runs on."""
    return not is_address(name) and (re.search(r"[/\\]", name) is not None)


class Pinned(Closed):
    """An image and the disk made of it, byte for byte."""

    place: str
    """The image: its address, or its path on the computer that runs winhost."""
    sha256: Sha256
    bytes: _Size
    disk_sha256: Sha256
    """The SHA-256 of the VHDX that winhost makes of it."""
    disk_bytes: _Size

    @property
    def source(self) -> "SourceImage":
        from winhost.images.guest_disk import SourceImage  # reads and writes disks, which a plan without one does not

        return SourceImage(self.place, self.sha256, self.bytes)


class VmImage(Closed):
    """A disk image for the VM: Ubuntu's server image for clouds, or one of your own."""

    name: Annotated[str, AfterValidator(_check_image_name)] = "ubuntu-24.04"
    """ubuntu-24.04 or ubuntu-26.04, its newest release or that of a day (ubuntu-24.04@20260814); or the address or the
    path of a qcow2 or raw image with cloud-init.
    """
    mirror: str = MIRROR
    """The source of Ubuntu's releases: an address, or a folder with a copy of them and their signed SHA256SUMS."""
    sha256: Sha256 | None = None
    """The SHA-256 of the image. Default: the one that Canonical signed; of a file, that of its present content."""
    pinned: Pinned | None = None
    """Exactly which image and disk; filled in by `winhost plan`, and `winhost apply` takes no other."""

    @property
    def file(self) -> str:
        """The file name of its disk, here and on the host."""
        base = re.split(r"[/\\]", self.name)[-1].replace("@", "-")
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", re.sub(r"\.(img|qcow2|raw)\Z", "", base))
        return f"{plain[-58:]}.vhdx"


# ---- its NUMA nodes


def numa_cautions(facts: HostFacts, gpus: Iterable[Gpu], memory: Bytes, cpus: int) -> Iterator[Caution]:
    """Yield the cautions for a new VM with these GPUs and this size on a host with several sockets; unknown facts give
    none.

    No cmdlet of Hyper-V chooses a node for a VM: Set-VMProcessor and Set-VMMemory only bound what it takes of a node,
    and by default a node of the VM is as large as one of the host.
    """
    with suppress(MissingFact):
        sockets = facts.all(Processor)
        if len(sockets) < 2:
            return
        told = [f"The host has {len(sockets)} sockets."]
        nodes = {gpu_label(gpu): node for gpu in gpus if (node := _numa_node(gpu)) is not None}
        for node in sorted({*nodes.values()}):
            told.append(f"On NUMA node {node}: {', '.join(label for label, at in nodes.items() if at == node)}.")
        share = if_known(lambda: facts.memory.total // len(sockets))  # as if each socket had as much as the others
        if share is not None and memory > share:
            told.append(f"The {size(memory)} of the VM are more than the {about(share)} of one, so they span several.")
        most = if_known(lambda: max(socket.state.threads for socket in sockets))
        if most is not None and cpus > most:
            told.append(f"Its {cpus} processors are more than the {most} of one, so they span several.")
        yield Caution(
            "vm.numa",
            Severity.UNVERIFIED,
            " ".join(told) + " On which of them the VM runs, and whether its guest sees the NUMA node of its GPUs, "
            "Hyper-V decides; nobody has verified it.",
        )


def _numa_node(gpu: Gpu) -> int | None:
    return if_known(lambda: gpu.pci.state.numa)


# ---- settings and decisions


UPLOAD_BY_HTTP = "http"
_HOST_RESERVE = 2 * GiB  # as a rule of the verdict on a VM has it
_LEAST_MEMORY, _LEAST_DISK = GiB, 4 * GiB


class NewVm(VmNetworkSettings):
    """A VM that winhost makes, and that gets the GPUs."""

    name: Annotated[
        str,
        matching(NAME, "1 to 63 lower-case letters, digits and dashes between them"),
        AfterValidator(refuse_device_name),
        HostSpecific("VM name"),
    ]
    """The name of the VM and of the folder of its disk. No VM may have it yet."""
    cpus: Annotated[int, Field(strict=True, ge=1, le=2048)]
    """Virtual processors."""
    memory: Annotated[
        str, size_in_steps(f"{size(_LEAST_MEMORY)} at least, in steps of {size(2 * MiB)}", 2 * MiB, _LEAST_MEMORY)
    ]
    """Static: all of it is pinned while the VM runs."""
    disk: Annotated[str, size_in_steps(f"{size(_LEAST_DISK)} at least, in steps of {size(MiB)}", MiB, _LEAST_DISK)]
    """The size of its disk as the guest sees it. The file grows up to that, and the volume must have room for all of
    it.
    """
    image: VmImage = VmImage()
    """The image that the disk is made of, where no VHDX is given."""
    vhdx: File | None = None
    """A VHDX with a Linux that starts on a Generation 2 VM, instead of an image. It is copied, never changed."""
    guest: Guest | None = None
    """The set-up of its Linux on its first start. Default: none; whoever prepared its disk did it."""
    upload: Upload = "wire"
    """The way of its disk to the host from the computer that runs winhost: over the connection itself, or fetched by
    the host's curl.exe from a port that winhost opens for that time, or written to the host by SFTP, as `sftp` of the
    host in fleet.yaml says, or to its administrative share (smb); these are many times faster.
    """
    secure_boot: bool = True
    """Secure Boot, with the template for Linux. winhost never switches it off by itself."""

    @model_validator(mode="after")
    def _has_one_disk(self) -> "NewVm":
        if self.vhdx is not None and "image" in self.model_fields_set:
            raise ValueError("its disk is made of vhdx or of an image, not of both")
        return self

    @property
    def key(self) -> Mapping[str, str]:
        """The key of its resources."""
        return {"name": self.name}

    @property
    def disk_sha256(self) -> str | None:
        """The hash of the VHDX that its disk is copied from; None where an image is not pinned yet."""
        if self.vhdx is not None:
            return self.vhdx.sha256
        return self.image.pinned.disk_sha256 if self.image.pinned else None


def find_own_vm(facts: HostFacts, asked: NewVm) -> Instance[Vm] | None:
    """Return the VM if winhost has created it, else None. Raises MissingFact."""
    own = facts.find(OwnVm, asked.key)
    if own is None or not own.made or not own.ours:
        return None
    return next((vm for vm in facts.vms if vm.key["vm"] == own.id), None)


class ComingVm(dict[str, str]):
    """The known parts of a VM that does not exist yet. Reading any other part raises MissingFact."""

    def __missing__(self, part: str) -> str:
        raise MissingFact(f"Vm.{part}", Unavailable(OwnVm.resource_type.name))


def get_own_vm(facts: HostFacts, asked: NewVm) -> Instance[Vm]:
    """Return the VM. Raises MissingFact until winhost has created it."""
    found = find_own_vm(facts, asked)
    if found is None:
        raise MissingFact("Vm", Unavailable(OwnVm.resource_type.name))
    return found


def desired_vm(facts: HostFacts, asked: NewVm) -> Mapping[str, Json]:
    """Return the desired state of the new VM. Raises Refusal, MissingFact."""
    for refusal in _refusals(facts, asked):
        raise refusal
    network = vm_network(facts, asked.name, asked)
    return {
        "name": asked.name,
        "image": _pinned_disk_sha256(asked),
        "size": parse_size(asked.disk),
        "cpus": asked.cpus,
        "memory": parse_size(asked.memory),
        "switch": network.known_switch,
        "vlan": asked.vlan,
        "mac": _mac(facts, asked.name),
        "secure_boot": asked.secure_boot,
    }


def guest_decisions(facts: HostFacts, asked: NewVm) -> GuestDecisions | None:
    """Return the decisions about the guest, or None if winhost does not set it up. Raises MissingFact."""
    if asked.guest is None:
        return None
    mac = _mac(facts, asked.name)
    return GuestDecisions(facts, asked.name, asked.guest, mac, lambda: vm_network(facts, asked.name, asked))


def staged_disk_image(asked: NewVm) -> Mapping[str, str]:
    """Return the staged file from which the disk is copied. Raises MissingFact."""
    name = asked.vhdx.name if asked.vhdx else asked.image.file
    source = asked.vhdx.source if asked.vhdx else f"./{name}"
    return {"sha256": _pinned_disk_sha256(asked), "name": name, "source": source, "title": f"Disk image {name}"}


def _pinned_disk_sha256(asked: NewVm) -> str:
    """Return the SHA-256 of the disk. Raises MissingFact if the image is not pinned: it is fetched later."""
    if asked.disk_sha256 is None:
        raise MissingFact("StagedFile", Unavailable(StagedFile.resource_type.name))
    return asked.disk_sha256


def _mac(facts: HostFacts, name: str) -> str:
    """Return a locally administered MAC address that is always the same for this machine and VM name."""
    return "02" + sha256(f"{facts.os.machine_id} {name}".encode()).hexdigest()[:10].upper()


def _refusals(facts: HostFacts, asked: NewVm) -> Iterator[Refusal]:
    own = facts.find(OwnVm, asked.key)
    others = [vm for vm in facts.vms if own is None or vm.key["vm"] != own.id]
    if any(vm.state.name.casefold() == asked.name for vm in others):
        yield Refusal(
            "vm.name-taken",
            f"The host has a VM {asked.name} already, which winhost did not make.",
            f"Choose another name, or give that VM the GPUs: --vm {asked.name}",
        )
    if asked.guest.key is None if asked.guest else asked.vhdx is None:
        yield Refusal(
            "vm.nobody-logs-on",
            "Nobody could log on to the VM: an image for clouds has neither a user nor a password.",
            "Name your public key with --ssh-key FILE.pub; or a VHDX that you have prepared, with --vhdx.",
        )
    disk = facts.find(VmDisk, asked.key)
    if disk is not None and disk.made and asked.disk_sha256 not in (None, disk.image):
        yield Refusal(
            "vm.another-disk",
            f"winhost made a disk for {asked.name} already, of another image.",
            "Roll back the run that made it, or choose another name.",
        )
    if parse_size(asked.memory) > facts.memory.total - _HOST_RESERVE:
        yield Refusal(
            "vm.too-much-memory",
            f"{asked.memory} for the VM leave the host less than {size(_HOST_RESERVE)} of {about(facts.memory.total)}.",
            "Give it less with --memory.",
        )
    threads = sum(each.state.threads for each in facts.all(Processor))
    if asked.cpus > threads:
        yield Refusal(
            "vm.too-many-processors",
            f"The host has {threads} logical processors, and {asked.cpus} are wanted for the VM.",
            "Give it fewer with --cpus.",
        )
