"""The system that runs on a machine where a Linux takes turns with Windows."""

from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import RESTART
from winhost.resources.values import one_of

WINDOWS, LINUX = "windows", "linux"
LINUX_NEXT = "linux-next"  # Windows runs, and the next start is of the other one


@resource(
    ResourceType(
        "RunningSystem",
        title="the Linux beside Windows",
        order=300,
        sets={"system": one_of(WINDOWS, LINUX)},
        after=("UbuntuInstaller", "OwnBootEntry", "FirmwareBoot", "BitLocker", "FastStartup", "EfiBackup"),
        restarts=True,
        asks=("restart",),
        risks=RESTART,
        undo=UndoRule(transitional_states={"system": (LINUX_NEXT, LINUX)}),
    )
)
class RunningSystem(State):
    """system: windows, or linux-next where the firmware starts the other one next; linux is told by that Linux, while
    it runs. Setting it tells the firmware what to start once (BootNext), and takes effect with a restart: the Linux, or
    where there is none yet its installer.

    linux: the path by which a boot entry starts a Linux, the first of them; null where winhost made a partition for one
    whose installer has not left its label at EFI\\ubuntu\\winhost.txt yet. installer: the four digits of the entry that
    winhost made. Null where there is none.
    """

    system: str
    linux: str | None
    installer: str | None
