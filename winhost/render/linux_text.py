"""Describe a Linux host in lines and table rows, for the terminal and the report."""

from winhost.model.facts import Instance
from winhost.model.units import about, size
from winhost.render.fact_text import format_fact
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import (
    ContainerEngine,
    LinuxDisk,
    LinuxGpu,
    LinuxGpuDriver,
    LinuxSystem,
    ListeningPort,
)

GPU_COLUMNS = ("GPU", "memory", "driver", "address")
GPU_COLUMNS_WIDE = ("BARs",)
DISK_COLUMNS = ("disk", "size", "model", "table", "filesystem", "mounted", "held by", "serial")
PORT_COLUMNS = ("address", "port", "reached from", "processes")


def system_line(host: HostFacts) -> str:
    """Return the distribution and its kernel."""
    system = host.the(LinuxSystem)
    return f"{system.id} {system.version or ''}, kernel {system.kernel}, {system.architecture}"


def machine_line(host: HostFacts) -> str:
    system = host.the(LinuxSystem)
    platform = (
        f"WSL ({system.wsl_networking})"
        if system.wsl
        else "on metal"
        if system.virtualization == "none"
        else f"in {system.virtualization}"
    )
    shm = "no /dev/shm" if system.shm is None else f"/dev/shm up to {about(system.shm)}"  # noqa: S108
    boot = {None: "no UEFI", True: "Secure Boot on", False: "Secure Boot off"}[system.secure_boot]
    return f"{platform}, {about(system.memory)} memory ({shm}), cgroups {system.cgroups}, {boot}"


def driver_line(host: HostFacts) -> str:
    """Return the version of NVIDIA's driver that runs, and of the one on disk."""
    driver = host.the(LinuxGpuDriver)
    if driver.wsl_libcuda:
        return "NVIDIA driver of Windows"
    running = f"NVIDIA driver {driver.loaded} ({driver.kind})" if driver.loaded else "no NVIDIA driver runs"
    signed = f"signed by {driver.signer}" if driver.signer else "not signed"
    return f"{running}, on disk {driver.installed}, {signed}" if driver.installed else running


def engines_line(host: HostFacts) -> str:
    engines = [
        f"{each.key['engine']} {each.state.version}{f' ({each.state.socket})' if each.state.socket else ''}"
        for each in host.all(ContainerEngine)
    ]
    return f"Containers: {', '.join(engines) or 'no engine'}"


def gpu_rows(host: HostFacts) -> list[tuple[str, ...]]:
    """Return rows with cells in the order of GPU_COLUMNS, then GPU_COLUMNS_WIDE."""
    return [_gpu_row(each) for each in host.all(LinuxGpu)]


def _gpu_row(each: Instance[LinuxGpu]) -> tuple[str, ...]:
    gpu = each.state
    return (
        format_fact(lambda: gpu.name or gpu.device or "not known"),
        format_fact(lambda: size(gpu.vram) if gpu.vram else "not listed by nvidia-smi"),
        format_fact(lambda: gpu.driver or "none"),
        each.key["address"],
        format_fact(lambda: " + ".join(size(bar.size) for bar in gpu.bars) or "none"),
    )


def disk_rows(host: HostFacts) -> list[tuple[str, ...]]:
    """Return rows with cells in the order of DISK_COLUMNS."""
    return [
        (
            each.key["disk"],
            about(each.state.size),
            each.state.model or "",
            each.state.table or "none",
            f"{each.state.filesystem or 'none'}{', read-only' if each.state.read_only else ''}",
            ", ".join(each.state.mounted),
            ", ".join(each.state.holders),
            each.state.serial or next(iter(each.state.by_id), ""),
        )
        for each in host.all(LinuxDisk)
    ]


def port_rows(host: HostFacts) -> list[tuple[str, ...]]:
    """Return rows with cells in the order of PORT_COLUMNS."""
    ports = sorted(host.all(ListeningPort), key=lambda each: (int(each.key["port"]), each.key["address"]))
    return [
        (
            each.key["address"],
            each.key["port"],
            "anywhere" if each.state.everywhere else "its network",
            ", ".join(each.state.processes),
        )
        for each in ports
    ]
