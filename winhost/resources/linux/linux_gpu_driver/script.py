# key {}   state {packages: [text], libraries: [text], wsl_libcuda: bool, loaded: text | null,
# kind: open | proprietary | null, installed: text | null, signer: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

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
        "installed": value(lambda: read_module_field("version")),
        "signer": value(lambda: read_module_field("signer")),
    }
    yield {}, state
