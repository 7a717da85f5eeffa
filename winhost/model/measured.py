"""The results of `winhost probe` on a host's Linux: measured facts, beside those that were read."""

from typing import Literal

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes

Ended = Literal["done", "failed", "crashed", "hung", "skipped"]

Rate = float  # GB/s
Seconds = float


@dataclass(frozen=True)
class FailedCall:
    """A call that failed: `cuInit`, 100, `CUDA_ERROR_NO_DEVICE`. number: -1 where there is no such call or library."""

    call: str
    number: int
    name: str

    def __str__(self) -> str:
        return f"{self.call}: {self.name}" + (f" ({self.number})" if self.number >= 0 else "")


@dataclass(frozen=True)
class PartOutcome:
    """The outcome of a part of the probe. failed: a call failed, or a result was wrong; skipped: it was not tried."""

    part: str
    outcome: Ended
    seconds: Seconds
    why: str | None = None
    error: FailedCall | None = None


@dataclass(frozen=True)
class MeasuredGpu:
    """A GPU as CUDA has it. Sizes in bytes; free and nvlinks (how many are up): None where NVML does not tell."""

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
    """The rates of copies of so many bytes between host and GPU, up to the GPU and down from it."""

    gpu: int
    bytes: Bytes
    pageable_up: Rate | None = None
    pageable_down: Rate | None = None
    pinned_up: Rate | None = None
    pinned_down: Rate | None = None


@dataclass(frozen=True)
class PeerLink:
    """The link from one GPU to another. access: the driver offers it; intact: what arrived is what was sent."""

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
    """offered: the driver's word for concurrent access; concurrent: the processor wrote while the GPU worked."""

    works: bool | None
    concurrent: bool | None
    offered: bool


@dataclass(frozen=True)
class VideoCodec:
    """H.264 on the first GPU. decodes: a picture came out as it went in; engines: of NVDEC; encodes: what NVENC made
    was decoded alike by GPU and processor, None where it was not tried; ffmpeg: the one that was asked; why: it was
    not tried, or failed.
    """

    decodes: bool | None
    engines: int | None
    encodes: bool | None
    ffmpeg: str | None
    why: str | None


@dataclass(frozen=True)
class PinnedMemory:
    """So many bytes were pinned. ended: the error that ended it, `memory` where the machine had no more to spare, None
    where it was enough.
    """

    bytes: Bytes
    ended: str | None


@dataclass(frozen=True)
class SuspendedProcess:
    """A process with so many bytes on the GPU was suspended and resumed. freed: bytes of the GPU meanwhile."""

    bytes: Bytes
    suspended: Seconds | None
    resumed: Seconds | None
    freed: Bytes | None
    intact: bool | None


@dataclass(frozen=True)
class ReduceRate:
    """An all-reduce of so many bytes."""

    bytes: Bytes
    microseconds: Seconds
    rate: Rate


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce over all GPUs. version: as NCCL counts, 22803 for 2.28.3; transports: as its log names them."""

    version: int
    gpus: int
    transports: tuple[str, ...]
    rates: tuple[ReduceRate, ...]
    intact: bool | None


@dataclass(frozen=True)
class ProbeAnswer:
    """All results of the probe. What a part did not measure is None or empty; `outcomes` says why."""

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
        """The outcome of a part of the probe; None where it was not requested."""
        return next((each for each in self.outcomes if each.part == part), None)


@dataclass(frozen=True)
class InContainer:
    """The probe in a container. answer: None where it did not start."""

    image: str
    runtime: str
    answer: ProbeAnswer | None


@dataclass(frozen=True)
class Measurement:
    """One probe of one Linux. path: as of verdicts (`wsl2`); target: its distro; at: ISO 8601 in UTC; script: SHA-256
    of the text that ran.
    """

    path: str
    target: str
    at: str
    script: str
    found: ProbeAnswer

    def __str__(self) -> str:
        """The measurement in the form that verdicts cite."""
        return f"measured {self.at[:10]}, driver {self.found.driver or 'unknown'}, kernel {self.found.kernel}"
