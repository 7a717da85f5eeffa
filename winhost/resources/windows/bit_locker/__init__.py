"""BitLocker on the host's volumes."""

from winhost.core.dataclass import dataclass
from winhost.core.rules import UndoRule
from winhost.resources.base import NOT_TOLD, ResourceType, State, resource
from winhost.resources.values import Value, or_nothing


@dataclass(frozen=True)
class KeyProtector:
    """A key protector of a volume, by its id. Its secret never leaves the host."""

    id: str
    kind: str


MOST_RESTARTS = 15
RESTARTS = or_nothing(
    Value("a number of restarts, 0 to 15", lambda value: type(value) is int and 0 <= value <= MOST_RESTARTS)
)


@resource(
    ResourceType(
        "BitLocker",
        title="BitLocker",
        order=250,
        key=("volume",),
        sets={"suspended": RESTARTS},
        after=("KeyEscrow",),
        # Each restart counts it down: whatever it is by then, what was found comes back.
        undo=UndoRule(unconditional=True),
    )
)
class BitLocker(State):
    """A volume by its mount point. protection: on, off or unknown.

    conversion: fully-encrypted, fully-decrypted, or on its way (encryption-in-progress …), unknown of a locked volume,
    as is percentage. A volume that is encrypted and not protected may wait for its owner to log on, as with device
    encryption. suspended: after how many restarts protection comes back, 0 for when somebody says so; null where it is
    not suspended. pcrs: of the TPM, what must be as it was for the volume to open by itself; none without a TPM among
    the protectors.
    """

    protection: str
    volume_type: str
    conversion: str = NOT_TOLD
    percentage: int = NOT_TOLD
    suspended: int | None = NOT_TOLD
    protectors: tuple[KeyProtector, ...] = NOT_TOLD
    pcrs: tuple[int, ...] = NOT_TOLD

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its protectors."""
        return tuple(protector.kind for protector in self.protectors)
