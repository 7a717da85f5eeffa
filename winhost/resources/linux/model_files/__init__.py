"""Files of a model, from a hub at a revision or from a folder."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import lines, or_nothing, seconds_of_download, secret_reference, text

NO_MODEL: Mapping[str, Json] = {"source": None, "revision": None, "files": None, "token": None}
_FILE = r"(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}) ([0-9]{1,15}) (.+)"


@resource(
    ResourceType(
        "ModelFiles",
        title="model files",
        order=80,
        key=("folder",),
        sets={
            "source": or_nothing(text(r"https?://[!-~]+|/[^\0]+", "the address of a model, or a folder there")),
            "revision": or_nothing(text(r"[0-9a-f]{40}", "a commit: 40 hexadecimal digits")),
            "files": or_nothing(lines(_FILE, "a list of `sha256:HASH SIZE PATH`")),
            "token": or_nothing(secret_reference("a token of the hub")),
        },
        after=("SystemdUnit", "Mount"),
        requires=ACCESS,
        absent=NO_MODEL,
        within=DISTROS,
        credential="token",
        lasts=lambda change: 600 + seconds_of_download(change.desired.get("files")),
        undo=UndoRule(remove_if_created={"source": None}),
    )
)
class ModelFiles(State):
    """A folder of files; files has those that are there as they were checked.

    source: `https://huggingface.co/ORG/NAME`, or a folder on that Linux; revision: the commit; files: `sha256:HASH SIZE
    PATH`, or `git-sha1:HASH` where the hub tells no SHA-256; token: a secret reference, null while files lack.
    A file counts as checked while its size and times are what they were then.
    """

    source: str | None
    revision: str | None
    files: tuple[str, ...] | None
    token: str | None
