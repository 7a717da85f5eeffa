"""Rules of suspending CUDA processes, and of writing processes to disk and restoring them."""

from packaging.version import Version

from winhost.compat.capability import EVERYWHERE, SHARED, WHOLE_CARD, capability, measure
from winhost.compat.gpu_cards import named, several
from winhost.compat.rule import BLOCKS, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target

# NVIDIA/cuda-checkpoint, README; checkpoint-restore/criu, plugins/cuda
DRIVER_SUSPENDS = Version("550")
DRIVER_WITH_PLUGIN = Version("555")
DRIVER_WITH_CALLS = Version("570")
DRIVER_SUSPENDS_IPC = Version("610")
# microsoft/WSL2-Linux-Kernel, config-wsl: 5.15 and 6.18 were read, what lies between was not
KERNELS_UNREAD = (Version("6.0"), Version("6.18"))
VLLM_WITHOUT_SNAPSHOT = Version("0.31.0")  # 0.30.0 was looked into, and has none
VLLM_WITH_SNAPSHOT = Version("0.32.0")

# Measured on a passed-through H200 with driver 580, evidence `suspend-measured`.
SUSPENDS_AT = 2.6  # GiB/s
RESUMES_AT = 7.6

# --- CUDA's own ----------------------------------------------------------------------------------------------------


@capability("cuda-checkpoint.behind-windows", on=SHARED)
def driver_is_windows(target: Target) -> str | None:
    """Suspending CUDA processes needs NVIDIA's Linux driver, which is not there behind the Windows driver."""
    return f"on {target.path}"


@capability("cuda-checkpoint", on=WHOLE_CARD, unknown=BLOCKS)
@capability("vllm-snapshot", on=WHOLE_CARD, unknown=BLOCKS)
def driver_suspends(target: Target) -> Finding | None:
    """Each Linux driver branch added a part: R550 the tool, R570 the calls, R610 shared memory (IPC)."""
    observed = f"driver {target.driver}"
    if target.driver < DRIVER_SUSPENDS:
        return unsupported("cuda-checkpoint.old-driver", observed=observed)
    if target.driver < DRIVER_WITH_CALLS:
        return degraded("cuda-checkpoint.tool-only", observed=observed)
    if target.driver < DRIVER_SUSPENDS_IPC:
        return note("cuda-checkpoint.no-ipc", observed=observed)
    return None


@capability("cuda-checkpoint.several-cards", on=WHOLE_CARD)
def engines_over_several_cards(target: Target) -> str | None:
    """Processes that share GPU memory are suspended with restrictions, if at all."""
    if several(target):
        return named(several(target))
    return None


@capability("cuda-checkpoint.never", on=WHOLE_CARD)
def never_suspended(target: Target) -> str | None:
    """Managed memory, MIG and MPS are never supported."""
    return f"on {target.path}"


@measure("cuda-checkpoint")
def suspends_at(target: Target) -> str | None:
    """Rates of suspending and resuming, as measured."""
    if target.path not in WHOLE_CARD:
        return None
    return f"suspended at {SUSPENDS_AT} GiB/s and resumed at {RESUMES_AT} GiB/s, as measured: 24 GiB in 9.3 s and 3.2 s"


# --- CRIU ----------------------------------------------------------------------------------------------------------


@capability("criu.dxg", on=SHARED)
def gpu_is_a_file_of_windows(target: Target) -> str | None:
    """CRIU cannot save the state behind /dev/dxg, which is in the Windows driver."""
    return f"/dev/dxg on {target.path}"


@capability("criu.mirrored", on=("wsl2/mirrored",))
def every_process_is_filtered(target: Target) -> str | None:
    """Mirrored networking puts a seccomp filter on every process, and CRIU fails on it."""
    return f"on {target.variant}"


@capability("criu.kernel-unread", on=SHARED)
def kernel_is_unread(target: Target) -> str | None:
    """The configuration of this WSL kernel was not examined; those before and after it support CRIU."""
    first, after = KERNELS_UNREAD
    if first <= target.kernel < after:
        return f"kernel {target.kernel}"
    return None


@capability("criu.no-cuda-plugin", on=WHOLE_CARD)
def no_plugin_for_cuda(target: Target) -> str | None:
    """CRIU's CUDA plugin needs driver R555 or newer."""
    if target.driver < DRIVER_WITH_PLUGIN:
        return f"driver {target.driver}"
    return None


@capability("criu.containers", on=WHOLE_CARD)
def containers_differ(target: Target) -> str | None:
    """Whether CRIU can restore a container depends on the runtime that started it."""
    return f"on {target.path}"


# --- vLLM's --------------------------------------------------------------------------------------------------------


@capability("vllm-snapshot.behind-windows", on=SHARED)
def snapshot_behind_windows(target: Target) -> str | None:
    """vLLM's snapshot needs CRIU and its CUDA plugin, which do not work behind the Windows driver."""
    return f"on {target.path}"


@capability("vllm-snapshot.old-vllm", on=EVERYWHERE)
def vllm_without_snapshot(target: Target) -> Finding | None:
    """vLLM has snapshots from 0.32 on; 0.31 was not examined."""
    if target.vllm >= VLLM_WITH_SNAPSHOT:
        return None
    say = unsupported if target.vllm < VLLM_WITHOUT_SNAPSHOT else unverified
    return say("vllm-snapshot.old-vllm", observed=f"vLLM {target.vllm}")


@capability("vllm-snapshot.plugin", on=WHOLE_CARD)
def plugin_of_a_kind(target: Target) -> str | None:
    """vLLM's snapshot was shown with a patched CRIU plugin, not with the released one."""
    return f"on {target.path}"


@capability("vllm-snapshot.one-card", on=WHOLE_CARD)
def snapshot_of_one_card(target: Target) -> str | None:
    """vLLM's snapshot supports one GPU and no parallelism."""
    if several(target):
        return named(several(target))
    return None


@capability("vllm-snapshot.bound", on=WHOLE_CARD)
def bound_to_the_machine(target: Target) -> str | None:
    """A snapshot is valid only for the same machine, GPU, driver, kernel and versions."""
    return f"on {target.path}"
