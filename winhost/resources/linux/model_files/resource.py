"""Files of a model, from a hub at a revision or from a folder."""

import re
from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import UndoRule
from winhost.core.steps import Change
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import Value, or_nothing, secret_reference, text

NO_MODEL: Mapping[str, Json] = {"source": None, "revision": None, "files": None, "token": None}
_FILE = re.compile(r"(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}) ([0-9]{1,15}) (.+)")
_SLOWEST = 4_000_000  # bytes a second


def _files(value: Json) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(_FILE.fullmatch(str(each)) for each in value)


def _seconds(change: Change) -> float:
    files = change.desired.get("files") or ()
    return 600 + sum(int(str(each).split(" ")[1]) for each in files) / _SLOWEST


@resource(
    ResourceType(
        "ModelFiles",
        title="model files",
        order=80,
        key=("folder",),
        sets={
            "source": or_nothing(text(r"https?://[!-~]+|/[^\0]+", "the address of a model, or a folder there")),
            "revision": or_nothing(text(r"[0-9a-f]{40}", "a commit: 40 hexadecimal digits")),
            "files": or_nothing(Value("a list of `sha256:HASH SIZE PATH`", _files)),
            "token": or_nothing(secret_reference("a token of the hub")),
        },
        after=("SystemdUnit", "Mount"),
        requires=ACCESS,
        absent=NO_MODEL,
        within=DISTROS,
        credential="token",
        lasts=_seconds,
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
