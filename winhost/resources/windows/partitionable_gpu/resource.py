"""GPUs that can be partitioned."""

from winhost.resources.base import ResourceType, State, resource


@resource(
    ResourceType(
        "PartitionableGpu", title="GPUs that can be partitioned", order=140, key=("gpu",), requires="HyperVRole"
    )
)
class PartitionableGpu(State):
    """A GPU that can be split. `gpu` is its device interface path; `partitions` 1 means that it is whole."""

    partitions: int
    valid_counts: tuple[int, ...]
    used: int
