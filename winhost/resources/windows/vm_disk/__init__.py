"""Disks of the VMs that winhost makes."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, DependentRule, KeepIf, UndoRule
from winhost.model.units import Bytes, MiB
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG, SHA256_OR_NOTHING, or_nothing, sizes

NO_DISK: Mapping[str, Json] = MappingProxyType(
    {"made": False, "image": None, "size": None, "file_size": None, "path": None, "vm": None}
)
_MADE = Condition("made", of="before", one_of=(False,))


@resource(
    ResourceType(
        "VmDisk",
        title="disks of new VMs",
        order=174,
        key=("name",),
        sets={"made": FLAG, "image": SHA256_OR_NOTHING, "size": or_nothing(sizes(MiB))},
        after=("HyperVRole", "StagedFile"),
        requires="HyperVRole",
        absent=NO_DISK,
        asks=("data",),
        risks=(ConsentRule("data", (Condition("made", of="desired", one_of=(False,)),)),),
        lasts=lambda change: 3600,  # an image has GBs, and they are read again after they were written
        dependents=(DependentRule("OwnVm", on=("name",), unless=("made", (False,))),),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (_MADE, Condition("made", one_of=(True,)), Condition("image", differs_from=("after",))),
                    "it is not the disk that winhost made any more",
                ),
            ),
            remove_if_created={name: NO_DISK[name] for name in ("made", "image", "size")},
        ),
    )
)
class VmDisk(State):
    """A disk that winhost made for a VM of this name: a copy of a staged VHDX, made as large as is wanted.

    It lies in a folder of its own, <the host's folder of virtual disks>\\winhost\\<name>\\disk.vhdx, where nothing was
    before; what is there already is never overwritten. image: SHA-256 of the staged file; size: bytes that the guest
    sees; file_size: bytes of the file, which grows as the guest writes; vm: the VM that it is attached to. made: null
    while it was begun and not finished.
    """

    made: bool | None
    image: str | None
    size: Bytes | None
    file_size: Bytes | None
    path: str | None
    vm: str | None
