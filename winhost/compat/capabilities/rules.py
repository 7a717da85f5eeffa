"""Judges of capabilities, for rules that compare more than a row can say."""

from packaging.version import Version

from winhost.compat.rule import finding
from winhost.compat.target import Target, gpus_if_several, gpus_with_nvlink, name_gpus
from winhost.hardware.gpus import NvLink
from winhost.hardware.host_gpus import catalogue_entry, gpu_memory, may_drive_display
from winhost.knowledge.versions import generation
from winhost.model.reason import Finding, Severity
from winhost.model.units import about, size
from winhost.resources.host import Gpu
from winhost.resources.windows.distros import Wsl
from winhost.resources.windows.vms import VmActions

VLLM_WITHOUT_SNAPSHOT = Version("0.31.0")  # 0.30.0 was checked, and has none
VLLM_WITH_SNAPSHOT = Version("0.32.0")
WSL_WITHOUT_LOGON = Version("2.0.0")  # microsoft/WSL #9231: the MSI's wsl.exe runs in session 0 since

# --- Compute -------------------------------------------------------------------------------------------------------


def cuda_too_old(target: Target) -> Finding | None:
    """Name the GPUs that the stated CUDA is too old for. The version that winhost installs supports all generations."""
    if "cuda" not in target.stated:
        return None
    firsts = ((gpu, _generation(gpu, "cuda")) for gpu in target.gpus)
    new = [gpu for gpu, first in firsts if first and target.cuda < first]
    if not new:
        return None
    severity = Severity.UNSUPPORTED if len(new) == len(target.gpus) else Severity.DEGRADED
    return finding("gpu-compute.cuda-too-old", f"{name_gpus(new)}, CUDA {target.cuda}", severity)


def _generation(gpu: Gpu, what: str) -> Version | None:
    model = catalogue_entry(gpu)
    found = generation(model.architecture) if model else None
    version: Version | None = getattr(found, what, None)
    return version


def measured_with_another_driver(target: Target) -> str | None:
    measured = target.latest_measurement
    return f"{measured}; the driver is {target.driver} now" if measured and not target.measurement else None


# --- Several GPUs --------------------------------------------------------------------------------------------------


def required_nccl(target: Target) -> str | None:
    firsts = {first for gpu in gpus_if_several(target) if (first := _generation(gpu, "nccl"))}
    return f"{name_gpus(gpus_if_several(target))}: NCCL {max(firsts)} or newer" if firsts else None


def unlike_gpus(target: Target) -> str | None:
    models = {gpu.pci.key["device"].partition("&SUBSYS_")[0].upper() for gpu in gpus_if_several(target)}
    return name_gpus(target.gpus) if len(models) > 1 else None


def peers_of_partitions(target: Target) -> Finding | None:
    """vGPUs have peer-to-peer over NVLink only, so GPUs without NVLink have none."""
    gpus = gpus_if_several(target)
    if not gpus:
        return None
    severity = Severity.UNSUPPORTED if len(gpus_with_nvlink(gpus, NvLink.NONE)) == len(gpus) else Severity.UNVERIFIED
    return finding("gpu-p2p.partition", name_gpus(gpus), severity)


# --- Memory, sleep, snapshots --------------------------------------------------------------------------------------


def vram_exceeds_memory(target: Target) -> str | None:
    vram, memory = sum(map(gpu_memory, target.gpus)), target.memory
    return f"{size(vram)} on the GPUs, {about(memory)} in the host" if vram > memory else None


def vllm_without_snapshot(target: Target) -> Finding | None:
    """0.31 was not examined."""
    if target.vllm >= VLLM_WITH_SNAPSHOT:
        return None
    severity = Severity.UNSUPPORTED if target.vllm < VLLM_WITHOUT_SNAPSHOT else Severity.UNVERIFIED
    return finding("vllm-snapshot.old-vllm", f"vLLM {target.vllm}", severity)


# --- Operation -----------------------------------------------------------------------------------------------------


def vms_not_started_at_boot(target: Target) -> str | None:
    actions = [action.state.start for action in target.facts.all(VmActions)]
    stays = actions and set(actions) == {"nothing"}
    return f"{len(actions)} VM(s), each with automatic start action Nothing" if stays else None


def wsl_requires_logon(target: Target) -> str | None:
    wsl = target.facts.the(Wsl)
    return f"WSL {target.wsl}" if (wsl.present or wsl.version) and target.wsl < WSL_WITHOUT_LOGON else None


def only_display_leaves(target: Target) -> str | None:
    shown = list(filter(may_drive_display, target.gpus))
    return name_gpus(shown) if shown and len(shown) == len(target.facts.gpus) else None


def display_leaves(target: Target) -> str | None:
    shown = list(filter(may_drive_display, target.gpus))
    return name_gpus(shown) if shown and len(shown) < len(target.facts.gpus) else None
