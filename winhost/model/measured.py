"""The results of `winhost probe` on a Linux: measurements that complement the facts that were read."""

from typing import Literal

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes

Ended = Literal["done", "failed", "crashed", "hung", "skipped"]

Rate = float  # GB/s
Seconds = float


@dataclass(frozen=True)
class FailedCall:
    """A failed call, such as `cuInit`, 100, `CUDA_ERROR_NO_DEVICE`. number: -1 if the call or library does not
    exist.
    """

    call: str
    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.call}: {self.name}" + (f" ({self.number})" if self.number >= 0 else "")


@dataclass(frozen=True)
class PartOutcome:
    """The outcome of a part of the probe. failed: a call failed, or a result was wrong; skipped: the part did
    not run.
    """

    part: str
    outcome: Ended
    seconds: Seconds
    why: str | None = None
    error: FailedCall | None = None


@dataclass(frozen=True)
class MeasuredGpu:
    """A GPU as CUDA reports it. Sizes in bytes; free, nvlinks (how many are up): None if NVML does not report them."""

    index: int
    name: str
    location: str
    total: Bytes
    free: Bytes | None
    compute_capability: str
    unified_addressing: bool
    concurrent_managed: bool
    fd_handles: bool
    nvlinks: int | None


@dataclass(frozen=True)
class CopyRates:
    """The rates of copies of `bytes` bytes between host and GPU; up: to the GPU, down: from it."""

    gpu: int
    bytes: Bytes
    pageable_up: Rate | None = None
    pageable_down: Rate | None = None
    pinned_up: Rate | None = None
    pinned_down: Rate | None = None


@dataclass(frozen=True)
class PeerLink:
    """The link from one GPU to another. access: the driver offers it; intact: the copied data was correct."""

    source: int
    target: int
    access: bool
    rate: Rate | None = None
    intact: bool | None = None


@dataclass(frozen=True)
class SharedMemory:
    """The state of /dev/shm. usable: a MiB was mapped and written; memlock: the limit, None where there is none."""

    total: Bytes
    free: Bytes
    usable: bool
    memlock: Bytes | None


@dataclass(frozen=True)
class ManagedMemory:
    """Managed memory. offered: the driver reports concurrent access; concurrent: the processor wrote while the GPU
    worked.
    """

    works: bool | None
    concurrent: bool | None
    offered: bool


@dataclass(frozen=True)
class VideoCodec:
    """H.264 on the first GPU. decodes: a decoded picture was correct; engines: the number of NVDEC engines; encodes:
    GPU and processor decoded the output of NVENC alike, None if that was not tried; ffmpeg: the program that was used;
    why: encoding was not tried, or failed.
    """

    decodes: bool | None
    engines: int | None
    encodes: bool | None
    ffmpeg: str | None
    why: str | None


@dataclass(frozen=True)
class PinnedMemory:
    """The number of bytes that were pinned. ended: the error that ended the attempt, `memory` if the machine had no
    more memory, None if the limit of the probe was reached.
    """

    bytes: Bytes
    ended: str | None


@dataclass(frozen=True)
class SuspendedProcess:
    """A process with `bytes` bytes on the GPU that was suspended and resumed. freed: the GPU memory that this freed."""

    bytes: Bytes
    suspended: Seconds | None
    resumed: Seconds | None
    freed: Bytes | None
    intact: bool | None


@dataclass(frozen=True)
class ReduceRate:
    """The rate of an all-reduce of `bytes` bytes."""

    bytes: Bytes
    microseconds: Seconds
    rate: Rate


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce over all GPUs. version: of NCCL, 22803 for 2.28.3; transports: as NCCL's log names them."""

    version: int
    gpus: int
    transports: tuple[str, ...]
    rates: tuple[ReduceRate, ...]
    intact: bool | None


@dataclass(frozen=True)
class ProbeAnswer:
    """All results of the probe. Values that were not measured are None or empty; `outcomes` says why."""

    kernel: str
    outcomes: tuple[PartOutcome, ...]
    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[MeasuredGpu, ...] = ()
    shm: SharedMemory | None = None
    copies: tuple[CopyRates, ...] = ()
    peers: tuple[PeerLink, ...] = ()
    ipc_legacy: bool | None = None
    ipc_fd: bool | None = None
    managed: ManagedMemory | None = None
    video: VideoCodec | None = None
    pinned: PinnedMemory | None = None
    checkpoint: SuspendedProcess | None = None
    nccl: AllReduce | None = None
    container: "InContainer | None" = None

    def outcome_of(self, part: str) -> PartOutcome | None:
        """Return the outcome of a part of the probe; None if the part was not requested."""
        return next((each for each in self.outcomes if each.part == part), None)


@dataclass(frozen=True)
class InContainer:
    """The probe in a container. answer: None if the container did not start."""

    image: str
    runtime: str
    answer: ProbeAnswer | None


@dataclass(frozen=True)
class Measurement:
    """One probe of one Linux. path: as in verdicts (`wsl2`); target: the distro; at: ISO 8601 in UTC; script: the
    SHA-256 of the script that ran.
    """

    path: str
    target: str
    at: str
    script: str
    found: ProbeAnswer

    def __str__(self) -> str:
        """Format the measurement as verdicts cite it."""
        return f"measured {self.at[:10]}, driver {self.found.driver or 'unknown'}, kernel {self.found.kernel}"
