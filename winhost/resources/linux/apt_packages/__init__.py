"""Sets of packages on a Linux, installed and taken back in one transaction each."""

from winhost.core.rules import Condition, ConsentRule, KeepIf, UndoRule
from winhost.resources.base import NOT_TOLD, ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS, DUE_NO_MORE, SPEC, UNITS
from winhost.resources.values import DONE, FLAG, Value

MODULES = "linux-modules-nvidia-"  # how a set begins that brings NVIDIA's driver
_ITS_DRIVER = Condition("packages", of="key", starts_with=MODULES)
_NOTHING = Value("an empty list: what apt would do can only be done", lambda value: value in ([], ()))


@resource(
    ResourceType(
        "AptPackages",
        title="sets of packages",
        order=55,
        key=("packages",),
        sets={
            "installed": FLAG,
            "held": FLAG,
            "to_add": _NOTHING,
            "to_change": _NOTHING,
            "to_change_foreign": _NOTHING,
            "to_remove": _NOTHING,
            "restart_due": DONE,
        },
        after=("AptSource", "LinuxFile"),
        requires=ACCESS,
        restarts=True,
        asks=("packages", "restart"),
        risks=(
            ConsentRule("packages", (Condition("to_change_foreign", of="before"),)),
            ConsentRule("restart", (_ITS_DRIVER, Condition("installed", of="desired"))),
            ConsentRule("restart", (_ITS_DRIVER, Condition("restart_due", of="desired"))),
        ),
        rests=(UNITS, SPEC),
        within=DISTROS,
        lasts=lambda change: 1800,
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("needed_by", gained=True), Condition("installed", of="before", one_of=(False,))),
                    "{needed_by} needs it now",
                ),
            ),
            remove_if_created={"installed": False},
            instead=DUE_NO_MORE,
        ),
    )
)
class AptPackages(State):
    """The packages of the key, each with or without a version (`docker.io nvidia-utils-580=580.1-1`), sorted.

    installed: all of them are, or null where a transaction was broken off. held: upgrades leave all of them alone.
    to_add, to_change, to_change_foreign, to_remove: what apt would do now to install what lacks, as a simulation says:
    `NAME VERSION`, `NAME OLD -> NEW`; foreign are packages that winhost did not install. A desired state has them
    empty. So a plan shows the transaction as what they were before, and whatever else apt would do by then is drift.
    What would be removed and is not of winhost's is refused. needed_by: others that depend on what the set brought.
    restart_due: of NVIDIA's driver, that another one runs than is installed; a desired state has it false.

    Undoing takes away what the transaction added, and gives versions back, as far as a source still has them, holds,
    and the marks of what was installed by itself.
    """

    installed: bool | None
    held: bool
    to_add: tuple[str, ...]
    to_change: tuple[str, ...]
    to_change_foreign: tuple[str, ...]
    to_remove: tuple[str, ...]
    needed_by: tuple[str, ...]
    restart_due: bool = NOT_TOLD
