"""Files of a release, such as the one program that k3s is."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import UndoRule
from winhost.core.steps import Change
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import SHA256_OR_NOTHING, Value, or_nothing, text

NO_RELEASE: Mapping[str, Json] = {"source": None, "sha256": None, "bytes": None}
_SLOWEST = 1_000_000  # bytes a second


def _seconds(change: Change) -> float:
    size = change.desired.get("bytes")
    return 300 + (size / _SLOWEST if isinstance(size, int) else 0)


@resource(
    ResourceType(
        "ReleaseFile",
        title="files of releases",
        order=31,
        key=("path",),
        sets={
            "source": or_nothing(text(r"https?://[!-~]+|/[^\0]+", "the address of a file, or its path there")),
            "sha256": SHA256_OR_NOTHING,
            "bytes": or_nothing(Value("a size in bytes", lambda value: type(value) is int and value > 0)),
        },
        requires=ACCESS,
        absent=NO_RELEASE,
        within=DISTROS,
        lasts=_seconds,
        undo=UndoRule(remove_if_created={"source": None}),
    )
)
class ReleaseFile(State):
    """A program or archive by its path, of those that winhost brings: `/usr/local/bin/k3s`, and the images that k3s
    loads when it starts. source: where winhost took it from, or began to; null where it did not; sha256, bytes: of
    what is there.
    """

    source: str | None
    sha256: str | None
    bytes: int | None
