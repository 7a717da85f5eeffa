"""The specification of an engine: image, options, environment, mounts, devices, limits and network.

Docker, Podman, Compose and a shell's command (containers.py), units (engine_files.py) and pods (winhost.cluster) are
rendered from it, and none of them from another's text.
"""

from collections.abc import Mapping

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.model.workload import LoadFormat
from winhost.serving.engine_names import model_folder, packed_folder


@dataclass(frozen=True)
class Mount:
    """source: a folder of the machine, or the name of a volume."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """The share of a machine that a container gets. Rows of a profile name these fields, and `mount` for one of mounts.

    network_of: a container whose network it shares; gpus: all; cdi: the name of GPUs in a CDI specification; shm: the
    size of /dev/shm; stop: seconds until it is killed.
    """

    network: str | None = None
    network_of: str | None = None
    mounts: tuple[Mount, ...] = ()
    shm: Bytes | None = None
    stop: int | None = None
    gpus: str | None = None
    cdi: str | None = None
    ipc: str | None = None

    @property
    def gpus_alone(self) -> "Container":
        return Container(gpus=self.gpus, cdi=self.cdi)


@dataclass(frozen=True)
class EngineSpec:
    """options: those of `vllm serve` without model, name and socket; image: of the container, None for vLLM's own
    program.
    """

    served_name: str
    socket: str
    options: tuple[str, ...]
    environment: Mapping[str, str]
    container: Container
    image: str | None = None

    def arguments(self, model: str) -> list[str]:
        """The words behind `vllm serve`. model: the folder as the engine sees it."""
        return [model, f"--served-model-name={self.served_name}", f"--uds={self.socket}", *self.options]

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
