"""GPUs that can be partitioned."""

from winhost.resources.base import ResourceType, State, resource

_PARAVIRTUAL = "GPUPARAV"  # the end of their paths; a developer of it in Easy-GPU-PV #49


def is_paravirtual(gpu: str) -> bool:
    """Tell by its interface path."""
    return gpu.upper().endswith(_PARAVIRTUAL)


@resource(
    ResourceType(
        "PartitionableGpu", title="GPUs that can be partitioned", order=140, key=("gpu",), requires="HyperVRole"
    )
)
class PartitionableGpu(State):
    """A GPU that can be split, or shared. `gpu` is its device interface path.

    Of two kinds: split by SR-IOV with the vendor's driver, where `partitions` 1 means that it is whole; and shared by
    Windows' own driver (paravirtualization), where there is one count, 32, which says nothing of its memory.
    """

    partitions: int
    valid_counts: tuple[int, ...]
    used: int
