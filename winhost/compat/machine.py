"""What kind of machine and Windows a host is: what the rules of several paths ask alike."""

from winhost.paths.cards import runs_cuda, serves
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows import Firmware
from winhost.resources.windows.operating_system import OsFamily

SERVERS = (OsFamily.SERVER, OsFamily.AZURE_LOCAL)
CLIENTS = (OsFamily.CLIENT, OsFamily.MULTI_SESSION, OsFamily.ALTERED)
DOMAIN_CONTROLLER = 2  # Win32_OperatingSystem.ProductType

# How makers and models of virtual machines begin. Source: systemd, src/basic/virt.c, detect_vm_dmi_vendor.
HYPERVISORS = (
    *("kvm", "openstack", "kubevirt", "qemu", "vmware", "vmw", "innotek gmbh", "virtualbox", "xen", "bochs"),
    *("parallels", "bhyve", "hyper-v", "amazon ec2", "apple virtualization", "google compute engine"),
)
MODEL_OF_HYPER_V = "virtual machine"  # Microsoft makes computers, too: only the model tells
METAL = ".metal"  # instances of Amazon EC2 that are whole machines


def is_x64(facts: HostFacts) -> bool:
    """Windows says `64-bit` in its own language for x64, and puts `ARM` before it for the other."""
    return "64" in facts.os.architecture and "arm" not in facts.os.architecture.casefold()


def is_virtual(firmware: Firmware) -> bool:
    """Whether the machine is itself a VM, by what its firmware calls it. That it is none is no proof."""
    told = (firmware.manufacturer.casefold(), firmware.model.casefold())
    if METAL in told[1]:
        return False
    return told[1] == MODEL_OF_HYPER_V or any(name.startswith(HYPERVISORS) for name in told)


def cannot_run_vms(firmware: Firmware) -> bool:
    """Windows says that virtualization is off, too, once a hypervisor runs."""
    return not firmware.hypervisor_present and not firmware.virtualization_enabled


def is_domain_controller(facts: HostFacts) -> bool:
    """By its product type."""
    return facts.os.product_type == DOMAIN_CONTROLLER


def gpus(facts: HostFacts) -> list[Card]:
    """Without what is just a screen."""
    return list(filter(serves, facts.cards))


def no_gpu(facts: HostFacts) -> str | None:
    """What is there instead of a GPU, where there is none."""
    return None if gpus(facts) else f"{len(facts.cards)} display device(s), none of them a GPU"


def no_cuda(facts: HostFacts) -> str | None:
    """The GPUs, where none of them is NVIDIA's."""
    found = gpus(facts)
    return ", ".join(card.gpu.state.name for card in found) if found and not any(map(runs_cuda, found)) else None


def made_by(firmware: Firmware) -> str:
    """Maker and model, as firmware tells them."""
    return f"{firmware.manufacturer} {firmware.model}"
