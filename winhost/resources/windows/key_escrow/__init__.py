"""The proof that the recovery key of a volume is kept elsewhere."""

from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import one_of, or_nothing, secret_reference

NONE, DIRECTORY, ENTRA, TYPED = "none", "active-directory", "entra", "typed"


@resource(
    ResourceType(
        "KeyEscrow",
        title="the proof that a recovery key is kept",
        order=252,
        key=("volume",),
        sets={
            "proof": one_of(NONE, DIRECTORY, ENTRA, TYPED),
            "last_group": or_nothing(secret_reference("the last six digits of the recovery key")),
        },
        credential="last_group",
        undo=UndoRule(whole=True),
    )
)
class KeyEscrow(State):
    """A proof that the recovery key of a volume with BitLocker is kept elsewhere, by the volume's mount point.

    proof: active-directory or entra, which took the key of `protector` once more and said so; or typed: somebody knew
    the last six digits of it, which were compared on the host and are stored nowhere. last_group: a secret reference to
    those. A proof counts as long as the volume has that protector.
    """

    proof: str
    last_group: str | None
    protector: str | None
