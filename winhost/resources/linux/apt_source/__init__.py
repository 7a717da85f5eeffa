"""Package sources in the distro."""

from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS, PACKAGES
from winhost.resources.values import FLAG, Value, or_nothing, text


@resource(
    ResourceType(
        "AptSource",
        title="package sources in Linux",
        order=40,
        key=("name",),
        sets={
            "present": FLAG,
            "uri": or_nothing(text(r"(https?://|file:/)[!-~]+", "the address of a repository")),
            "suite": or_nothing(text(r"[A-Za-z0-9/][A-Za-z0-9/._-]*", "a suite")),
            "components": Value("a list of words", lambda value: isinstance(value, list | tuple)),
            "key": or_nothing(text(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n[\n -~]*", "an armoured public key")),
            "key_sha256": or_nothing(text(r"[0-9a-f]{64}", "a SHA-256 in hexadecimal")),
        },
        requires=ACCESS,
        rests=(PACKAGES,),
        within=DISTROS,
        # Its parts cannot stand at `null` while it is there.
        undo=UndoRule(remove_if_created={"present": False}, unless_changed=True),
    )
)
class AptSource(State):
    """A source of packages that winhost writes (`winhost-<name>.sources`), and the key that signs it.

    A change comes with the key's text and its SHA-256, and is taken back by itself where apt cannot read the source.
    """

    present: bool
    uri: str | None
    suite: str | None
    components: tuple[str, ...]
    key: str | None
    key_sha256: str | None
