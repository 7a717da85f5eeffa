"""Package sources, sets of packages, and single packages of a Linux."""

from winhost.core.rules import Condition, ConsentRule, KeepIf, UndoRule
from winhost.resources.base import NOT_REPORTED, State, resource
from winhost.resources.shared import PACKAGES, PENDING_WORK_DONE, SPEC, UNITS, LinuxType
from winhost.resources.values import CLEARED, FLAG, Value, or_nothing, text


@resource(
    LinuxType(
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
        dependents=(PACKAGES,),
        # The other properties cannot be null while the source is present.
        undo=UndoRule(remove_if_created={"present": False}, unless_changed=True),
    )
)
class AptSource(State):
    """A package source that winhost writes (`winhost-<name>.sources`), and the key that signs it.

    A change needs the text of the key and its SHA-256. If apt cannot read the source, the change is undone at once.
    """

    present: bool
    uri: str | None
    suite: str | None
    components: tuple[str, ...]
    key: str | None
    key_sha256: str | None


MODULES = "linux-modules-nvidia-"  # the beginning of a set that contains NVIDIA's driver
_IS_DRIVER_SET = Condition("packages", of="key", starts_with=MODULES)
_EMPTY_LIST = Value("an empty list: what apt would do can only be done", lambda value: value in ([], ()))


@resource(
    LinuxType(
        "AptPackages",
        title="sets of packages",
        order=55,
        key=("packages",),
        sets={
            "installed": FLAG,
            "held": FLAG,
            "to_add": _EMPTY_LIST,
            "to_change": _EMPTY_LIST,
            "to_change_foreign": _EMPTY_LIST,
            "to_remove": _EMPTY_LIST,
            "restart_due": CLEARED,
        },
        after=("AptSource", "LinuxFile"),
        restarts=True,
        asks=("packages", "restart"),
        risks=(
            ConsentRule("packages", (Condition("to_change_foreign", of="before"),)),
            ConsentRule("restart", (_IS_DRIVER_SET, Condition("installed", of="desired"))),
            ConsentRule("restart", (_IS_DRIVER_SET, Condition("restart_due", of="desired"))),
        ),
        dependents=(UNITS, SPEC),
        timeout=lambda change: 1800,
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("needed_by", gained=True), Condition("installed", of="before", one_of=(False,))),
                    "{needed_by} needs it now",
                ),
            ),
            remove_if_created={"installed": False},
            instead=PENDING_WORK_DONE,
        ),
    )
)
class AptPackages(State):
    """A set of packages; its key lists them sorted, with or without versions (`docker.io nvidia-utils-580=580.1-1`).

    - installed: all are installed; null if a transaction was interrupted. held: all are held back from upgrades.
    - to_add, to_change, to_change_foreign, to_remove: what apt would do now to install the missing packages, according
      to a simulation: `NAME VERSION` or `NAME OLD -> NEW`. Foreign packages are those that winhost did not install. A
      desired state has these empty, so that a plan shows the transaction as their values before, and any other
      transaction at the time of the run is drift. A transaction that would remove foreign packages is refused.
    - needed_by: other packages that depend on packages that the set added.
    - restart_due: for NVIDIA's driver, the loaded driver is not the installed one. A desired state has it false.

    Undoing removes the packages that the transaction added, and restores former versions (if a source still has them),
    holds, and marks of automatically installed packages.
    """

    installed: bool | None
    held: bool
    to_add: tuple[str, ...]
    to_change: tuple[str, ...]
    to_change_foreign: tuple[str, ...]
    to_remove: tuple[str, ...]
    needed_by: tuple[str, ...]
    restart_due: bool = NOT_REPORTED


@resource(
    LinuxType(
        "DebianPackage",
        title="packages in Linux",
        order=50,
        key=("package",),
        sets={
            "version": or_nothing(text(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*", "a version, as apt writes it")),
            "held": FLAG,
        },
        after=("AptSource", "LinuxFile"),
        dependents=(UNITS, SPEC),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("needed_by", gained=True), Condition("version", of="before", one_of=(None,))),
                    "{needed_by} needs it now",
                ),
            )
        ),
    )
)
class DebianPackage(State):
    """version: the installed version, null if it is not installed; winhost removes only packages that it installed.

    held: it is held back from upgrades; needed_by: installed packages that depend on it.
    """

    version: str | None
    held: bool
    needed_by: tuple[str, ...]
