# key {}   state {packages: [text], libraries: [text], wsl_libcuda: bool}
from __future__ import annotations

import re
from pathlib import Path

from winhost.agent.linux_agent import Found, Key, packages, reads, value

# What brings a kernel module or a libcuda of its own. The driver of a WSL distro is the one of Windows.
GPU_DRIVERS = re.compile(
    r"cuda-drivers.*|libcuda1|libnvidia-compute-\d+.*|nvidia-(dkms|driver|headless|kernel|open)(-.*)?"
    r"|xserver-xorg-video-nvidia.*"
)
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
    }
    yield {}, state
