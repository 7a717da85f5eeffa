"""Packed copies of models: the same weights, smaller, made by the GPU of that Linux."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import lines, or_nothing, seconds_of_download, text, texts

NOT_PACKED: Mapping[str, Json] = {"source": None, "files": None, "command": None}


@resource(
    ResourceType(
        "PackedModel",
        title="packed models",
        order=82,
        key=("folder",),
        sets={
            "source": or_nothing(text(r"/[^\0]+", "a folder there")),
            "files": or_nothing(lines(r"sha256:[0-9a-f]{64} [0-9]{1,15} [^/\0]+", "a list of `sha256:HASH SIZE NAME`")),
            "command": or_nothing(texts(r"(?s).+", "a program and its arguments")),
        },
        after=("ModelFiles", "PythonVenv", "LinuxFolder", "LinuxFile", "ContainerImage", "CdiSpec"),
        requires=ACCESS,
        absent=NOT_PACKED,
        within=DISTROS,
        lasts=lambda change: 3600 + seconds_of_download(change.desired.get("files")),
        undo=UndoRule(remove_if_created={"source": None}),
    )
)
class PackedModel(State):
    """`/srv/winhost/models/NAME--packed`, which is winhost's alone. The original stays where it is.

    source: the folder of the original; files: its weights by their hashes, `sha256:HASH SIZE NAME`, those that are
    there packed; command: docker, podman or systemd-run with the arguments by which the engine's Python packs. A file
    counts while its size and times are what they were when it was packed.
    """

    source: str | None
    files: tuple[str, ...] | None
    command: tuple[str, ...] | None
