"""The specification of an engine: image or program, options, environment, mounts, devices, limits and network.

Docker, Podman, Compose and a shell's command (containers.py), units (engine_files.py) and pods
(cluster/pod_rendering.py) are rendered from it, and none of them from another's text.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.model.workload import LoadFormat
from winhost.serving.engine_names import model_folder, packed_folder

DOCKER_STOP_SECONDS = 10


@dataclass(frozen=True)
class Mount:
    """source: a folder of the machine, or the name of a volume."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """The share of a machine that a container gets. Rows of a profile name these fields, and `mount` for one of mounts.

    network_of: a container whose network it shares; gpus: their number, or `all`; cdi: the name of GPUs in a CDI
    specification; shm: the size of /dev/shm; memory: the most that it may use; stop: seconds until it is killed.
    """

    network: str | None = None
    network_of: str | None = None
    mounts: tuple[Mount, ...] = ()
    shm: Bytes | None = None
    memory: Bytes | None = None
    stop: int | None = None
    gpus: str | None = None
    cdi: str | None = None
    ipc: str | None = None

    @property
    def gpu_access(self) -> "Container":
        """The same access to GPUs, and nothing else."""
        return Container(gpus=self.gpus, cdi=self.cdi)

    @property
    def stop_seconds(self) -> int:
        return DOCKER_STOP_SECONDS if self.stop is None else self.stop


@dataclass(frozen=True)
class EngineSpec:
    """socket: the Unix socket that it listens on, None for `port`; options: those of `vllm serve` without model, name
    and endpoint; image: of the container; program: the path of `vllm` on the machine, where there is no container.
    """

    served_name: str
    socket: str | None
    options: tuple[str, ...]
    environment: Mapping[str, str]
    container: Container
    image: str | None = None
    program: str | None = None
    port: int | None = None

    def arguments(self, model: str) -> list[str]:
        """Return the arguments of `vllm serve`. model: the folder as the engine sees it."""
        endpoint = [f"--uds={self.socket}"] if self.socket else ["--host=0.0.0.0", f"--port={self.port}"]
        return [model, f"--served-model-name={self.served_name}", *endpoint, *self.options]

    def environment_program(self, name: str) -> str:
        """Return the path of another program in the Python environment of `program`."""
        return str(PurePosixPath(str(self.program)).with_name(name))

    @property
    def packed(self) -> bool:
        return f"--load-format={LoadFormat.PACKED}" in self.options

    @property
    def folder(self) -> str:
        """The folder with the model's files, on the machine."""
        return (packed_folder if self.packed else model_folder)(self.served_name)

    @property
    def gpu_environment(self) -> Mapping[str, str]:
        """The variables by which CUDA sees the engine's own GPUs."""
        return {name: value for name, value in self.environment.items() if name.startswith("CUDA_")}
