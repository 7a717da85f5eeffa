"""Copies of EFI system partitions, from which a rollback puts back what an installer changed."""

from winhost.core.rules import Condition, ConsentRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG


@resource(
    ResourceType(
        "EfiBackup",
        title="the copy of the EFI system partition",
        order=94,
        key=("partition",),
        sets={"kept": FLAG},
        after=("KeyEscrow",),  # without the proof nothing is done for another system
        asks=("data",),
        risks=(ConsentRule("data", (Condition("kept", of="desired", one_of=(False,)),)),),
    )
)
class EfiBackup(State):
    """A copy of an EFI system partition's files, by the partition's GUID. kept: the host has a copy of its files.

    changed: what has another content by now; added: what came since, of that which an installer of Linux puts there.
    Once the copy is not wanted any more, the first is put back by its hash, and the second taken away, with the boot
    entries that start a Linux from there and came since. A file that was open when it was to be copied, as the one that
    Windows boots by, is in neither.
    """

    kept: bool
    changed: tuple[str, ...]
    added: tuple[str, ...]
