"""Where packages come from, and which are installed."""

from collections.abc import Mapping

from winhost.model.facts import Json
from winhost.resources.base import Keep, ResourceType, State, Undo, resource, undo_property_by_property
from winhost.resources.linux.system import ACCESS, DISTRO, PACKAGES, SPEC, UNITS
from winhost.resources.values import FLAG, Value, text


def or_null(value: Value) -> Value:
    """The value, or that there is none."""
    return Value(f"{value.says}, or null", lambda given: given is None or value.fits(given))


def _undo_source(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """A source that we added goes as a whole; its parts cannot stand at `null` while it is there."""
    undo = undo_property_by_property(before, after, now)
    came = before.get("present") is False
    return {"present": False} if came and now["present"] and not isinstance(undo, Keep) else undo


@resource(
    ResourceType(
        "AptSource",
        key=("name",),
        sets={
            "present": FLAG,
            "uri": or_null(text(r"(https?://|file:/)[!-~]+", "the address of a repository")),
            "suite": or_null(text(r"[A-Za-z0-9/][A-Za-z0-9/._-]*", "a suite")),
            "components": Value("a list of words", lambda value: isinstance(value, list | tuple)),
            "key": or_null(text(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n[\n -~]*", "an armoured public key")),
            "key_sha256": or_null(text(r"[0-9a-f]{64}", "a SHA-256 in hexadecimal")),
        },
        requires=ACCESS,
        rests=(PACKAGES,),
        within=DISTRO,
        undo=_undo_source,
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


def _undo_package(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """Others that need it now and did not when it came keep it."""
    since = sorted(set(now["needed_by"]) - set(after["needed_by"]))
    if since and "version" in before and before["version"] is None:
        return Keep(f"{', '.join(since)} needs it now")
    return undo_property_by_property(before, after, now)


@resource(
    ResourceType(
        "DebianPackage",
        key=("package",),
        sets={"version": or_null(text(r"[A-Za-z0-9][A-Za-z0-9.+:~-]*", "a version, as apt writes it")), "held": FLAG},
        after=("AptSource", "LinuxFile"),
        requires=ACCESS,
        rests=(UNITS, SPEC),
        within=DISTRO,
        undo=_undo_package,
    )
)
class DebianPackage(State):
    """version: exactly this one, or null where it is not installed; taken away only where winhost installed it.

    held: upgrades leave it alone; needed_by: installed packages that depend on it.
    """

    version: str | None
    held: bool
    needed_by: tuple[str, ...]
