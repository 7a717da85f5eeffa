"""Packages of a Linux, one by one and in sets, and where they come from."""

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


MODULES = "linux-modules-nvidia-"  # how a set begins that brings NVIDIA's driver
_ITS_DRIVER = Condition("packages", of="key", starts_with=MODULES)
_NOTHING = Value("an empty list: what apt would do can only be done", lambda value: value in ([], ()))


@resource(
    LinuxType(
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
            "restart_due": CLEARED,
        },
        after=("AptSource", "LinuxFile"),
        restarts=True,
        asks=("packages", "restart"),
        risks=(
            ConsentRule("packages", (Condition("to_change_foreign", of="before"),)),
            ConsentRule("restart", (_ITS_DRIVER, Condition("installed", of="desired"))),
            ConsentRule("restart", (_ITS_DRIVER, Condition("restart_due", of="desired"))),
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
    """version: exactly this one, or null where it is not installed; taken away only where winhost installed it.

    held: upgrades leave it alone; needed_by: installed packages that depend on it.
    """

    version: str | None
    held: bool
    needed_by: tuple[str, ...]
