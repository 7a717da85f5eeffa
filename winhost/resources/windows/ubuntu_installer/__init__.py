"""The installer of Ubuntu, as Windows puts it onto a partition of its own."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import ConsentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import FLAG, GUID, INTERFACE, or_nothing, text

NO_INSTALLER: Mapping[str, Json] = MappingProxyType(
    {"made": False, **dict.fromkeys(("partition", "image", "files", "user", "address", "host_key", "ticket"))}
)
_COPYING = 3600  # seconds that some GB may take from a slow disk, also to be hashed


@resource(
    ResourceType(
        "UbuntuInstaller",
        title="the installer of Ubuntu",
        order=290,
        key=("name",),
        sets={
            "made": FLAG,
            "partition": or_nothing(text(GUID, "the GUID of a partition")),
            "image": or_nothing(text("[0-9a-f]{64}-[A-Za-z0-9._-]{1,63}", "the SHA-256 and the name of a staged file")),
            "files": or_nothing(text(r"[A-Za-z0-9+/]{4,65536}={0,2}", "files by their paths, as gzip in base64")),
            "user": or_nothing(text(r"[a-z_][a-z0-9_-]{0,31}", "the name of a user")),
            "address": or_nothing(INTERFACE),
            "host_key": or_nothing(text(r"ssh-ed25519 [A-Za-z0-9+/]{68}", "an ed25519 key, without a name")),
            "ticket": or_nothing(text("[0-9a-f]{64}", "a SHA-256")),
        },
        after=("OwnPartition", "StagedFile"),
        absent=NO_INSTALLER,
        asks=("data",),
        risks=(ConsentRule("data"),),
        lasts=lambda change: _COPYING if change.desired.get("made") or change.desired.get("ticket") else 60,
        undo=UndoRule(remove_if_created=NO_INSTALLER),
    )
)
class UbuntuInstaller(State):
    """The content of the installer's partition, and the identity of the new system. Its name is ubuntu.

    partition: the GUID of that which winhost made for it; image: the staged file whose content is there; files: what
    winhost puts beside and over it, JSON of texts by their paths. user, address, host_key: who may log on to the new
    system, where (null for DHCP), and the SSH key by which it is known. ticket: the SHA-256 of winhost/fetch.json on
    the partition, by which the installer gets its settings; the text of that comes as the secret of a set, is good for
    one answer, and is never told. With it the partition becomes read-only by the attribute of its table, and then all
    that lies on it must be what was put there. made: null where it was begun and not finished, or the partition is
    gone.
    """

    made: bool | None
    partition: str | None
    image: str | None
    files: str | None
    user: str | None
    address: str | None
    host_key: str | None
    ticket: str | None
