# key {}   state {packages: [text], libraries: [text], wsl_libcuda: bool, loaded: text | null,
# kind: open | proprietary | null, installed: text | null, signer: text | null}
from __future__ import annotations

from pathlib import Path

from winhost.agent.linux_agent import GPU_DRIVERS, Found, Key, content, packages, reads, run, status, value

RUNNING_DRIVER, RUNNING_MODULE = "/proc/driver/nvidia/version", "/sys/module/nvidia/version"
LIBRARIES = (
    "lib*/libcuda.so.1",
    "usr/lib*/libcuda.so.1",
    "usr/lib/*-linux-gnu/libcuda.so.1",
    "usr/local/lib/libcuda.so.1",
)


@reads("LinuxGpuDriver")
def linux_gpu_driver(key: Key | None) -> Found:
    libraries = {str(path.resolve()) for each in LIBRARIES for path in Path("/").glob(each)}
    state = {
        "packages": value(lambda: sorted(name for name in packages() if GPU_DRIVERS.fullmatch(name))),
        "libraries": sorted(path for path in libraries if not path.startswith("/usr/lib/wsl/")),
        "wsl_libcuda": Path("/usr/lib/wsl/lib/libcuda.so.1").exists(),
        "loaded": value(loaded_driver),
        "kind": value(driver_kind),
        "installed": value(lambda: of_module("version")),
        "signer": value(lambda: of_module("signer")),
    }
    yield {}, state


def loaded_driver() -> str | None:
    return content(RUNNING_MODULE).decode("ascii").strip() if status(RUNNING_MODULE) else None


def driver_kind() -> str | None:
    """The first line names the module: `NVIDIA UNIX Open Kernel Module for x86_64  580.95.05 ...`."""
    if status(RUNNING_DRIVER) is None:
        return None
    return "open" if "Open Kernel Module" in content(RUNNING_DRIVER).decode("utf-8").split("\n")[0] else "proprietary"


def of_module(field: str) -> str | None:
    """Of the module that would be loaded next; it says nothing of what is not there."""
    done = run("modinfo", f"--field={field}", "nvidia")
    return done.output.strip() or None
