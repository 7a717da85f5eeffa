"""The names of paths and their variants, and the memory that a variant provides."""

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.units import Bytes

# Equally good paths are preferred in this order: those that give the guest most first, the newest last.
PATHS = ("dda", "wsl2", "gpu-p", "dual-boot", "bare-metal", "wslc")

# The paths of Linux machines; the paths above are those of Windows machines.
PATHS_OF_LINUX = ("linux",)
EVERY_PATH = (*PATHS, *PATHS_OF_LINUX)

# Configurations of a path that differ in what they support; winhost prefers the first.
VARIANTS = {"wsl2": ("bridged", "mirrored", "nat")}

# Variants that a plan never chooses by itself, with the options that request them. They are only recommended where no
# other variant is as good.
OPT_IN_VARIANTS = {"wsl2/bridged": ("--set", "bridge.switch=winhost", "--set", "bridge.adapter=auto")}

# All variants on Windows: `wsl2/bridged` if a path has variants, else the path itself.
WINDOWS_VARIANTS = tuple(f"{path}/{name}" if name else path for path in PATHS for name in VARIANTS.get(path, ("",)))

NATIVE_PATHS = ("dual-boot", "bare-metal", "linux")  # Linux owns the machine
SHARED_GPU_PATHS = ("wsl2", "wslc")  # the GPU stays with Windows' driver
WHOLE_GPU_PATHS = ("dda", *NATIVE_PATHS)  # Linux' own driver on the whole GPU
GROUPS = {"native": NATIVE_PATHS, "shared": SHARED_GPU_PATHS, "whole-gpu": WHOLE_GPU_PATHS, "in-a-vm": ("dda", "gpu-p")}
"""The names of groups of paths, for rows of rules."""

EVERY_VARIANT = (*WINDOWS_VARIANTS, *PATHS_OF_LINUX)


def check_path(path: str | None) -> None:
    """Check the name of a path or variant. Raises UsageError: UnknownPath."""
    if path is not None and path not in (*EVERY_PATH, *WINDOWS_VARIANTS):
        variants = [variant for variant in WINDOWS_VARIANTS if variant not in EVERY_PATH]
        raise UsageError(
            "UnknownPath",
            what=f"there is no path '{visible(path)}'{did_you_mean(path, (*EVERY_PATH, *WINDOWS_VARIANTS))}",
            hint=f"Paths: {', '.join(EVERY_PATH)}; options of a path: {', '.join(variants)}.",
        )


def is_requested(requested: str | None, variant: str) -> bool:
    """Tell whether a request for a path, for one of its variants, or for any (None) includes this variant."""
    return requested in (None, variant, path_of(variant))


def path_of(variant: str) -> str:
    """Return the path of a variant: `wsl2` of `wsl2/bridged`."""
    return variant.partition("/")[0]


def variant_name(variant: str) -> str | None:
    """Return the name of a variant within its path: `bridged` of `wsl2/bridged`; None for a path."""
    return variant.partition("/")[2] or None


@dataclass(frozen=True)
class AvailableMemory:
    """The memory that a variant provides on this host, in bytes. None: not known.

    variant: one of EVERY_VARIANT; gpus: the memory of each; ram: what the target has or would get; host_ram: of the
    host; shm: size of /dev/shm; pinned: how much can be pinned; all RAM if Linux has its own driver.
    """

    variant: str
    gpus: tuple[Bytes, ...]
    ram: Bytes
    host_ram: Bytes
    shm: Bytes | None = None
    pinned: Bytes | None = None

    @property
    def path(self) -> str:
        return path_of(self.variant)
