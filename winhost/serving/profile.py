"""Profiles: settings with reasons and versions, as data. A profile may extend another and list its changes."""

from collections.abc import Mapping
from dataclasses import field
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from winhost.core.dataclass import dataclass
from winhost.findings.catalogue import parse_row
from winhost.findings.condition import Condition, When, format_condition
from winhost.knowledge import catalogue
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Explanation

BASES = ("bare-metal", "dda", "wsl2")
NAMES = tuple(name for base in BASES for name in (base, f"{base}-no-sleep"))

Kind: TypeAlias = Literal["container", "env", "engine", "wslconfig", "note"]
KINDS: tuple[Kind, ...] = ("container", "env", "engine", "wslconfig", "note")


@dataclass(frozen=True)
class ProfileRow:
    """One setting. kind: `container` for a field of Container, `env` and `engine` for vLLM, `note` for people.

    value: literal, or `${…}`, which is computed; must_know: conditions that have to be known, or the row is left out;
    case: a situation in which it is set, for tests.
    """

    code: str
    kind: Kind
    name: str
    why: str
    evidence: tuple[str, ...]
    value: str | int | None = None
    when: When = field(default_factory=Condition)
    must_know: tuple[str, ...] = ()
    case: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Cause:
    """A condition under which winhost chooses a profile over the one that it extends. case: as of ProfileRow."""

    code: str
    when: When
    why: str
    evidence: tuple[str, ...]
    case: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Profile:
    """All rows, including those of the profile that it extends."""

    name: str
    about: str
    rows: tuple[ProfileRow, ...]
    chosen: tuple[Cause, ...] = ()


def base_of(name: str) -> str:
    """Return `wsl2` for `wsl2-no-sleep`."""
    return name.removesuffix("-no-sleep")


def profile_without_sleep(base: str) -> str:
    """Return the name of the profile without sleep for one of BASES."""
    return f"{base}-no-sleep"


@once
def profile(name: str) -> Profile:
    """Read one of NAMES, or a profile that they are made of."""
    read = _read(name)
    inherited = profile(read["over"]).rows if "over" in read else ()
    parts = [(each, _read(each)) for each in (read.get("like"), name) if each]
    dropped = {setting for _, part in parts for setting in part.get("without", ())}
    added = (_row(each, row) for each, part in parts for row in part.get("rows", ()))
    chosen = (Cause(**_typed(each, cause)) for each, part in parts for cause in part.get("chosen", ()))
    return Profile(name, read["about"], (*(row for row in inherited if row.name not in dropped), *added), tuple(chosen))


@once
def rows() -> Mapping[str, ProfileRow | Cause]:
    """All rows of all profiles, and the reasons against sleep, by code."""
    profiles = [profile(name) for name in NAMES]
    every: list[ProfileRow | Cause] = [row for each in profiles for row in each.rows]
    every += [cause for each in profiles for cause in each.chosen]
    return {row.code: row for row in every}


_EFFECTS: Mapping[Kind, str] = {
    "container": "sets the container's {}",
    "env": "sets {}",
    "engine": "sets {}",
    "wslconfig": "names {} of .wslconfig",
    "note": "says: {}",
}


# No profile has this row: a plan adds it, and its value names the folders that the plan installs.
LOADER = ProfileRow(
    code="profile.loader",
    kind="env",
    name="PYTHONPATH",
    why="The loader of packed weights is installed beside the engine.",
    evidence=("packed-measured",),
)


def explained() -> Mapping[str, ProfileRow | Cause]:
    """All rows that can be explained, by code: those of profiles, and LOADER."""
    return {**rows(), LOADER.code: LOADER}


def explain_row(code: str) -> Explanation:
    """Explain a code of `explained`."""
    row = explained()[code]
    if row is LOADER:
        means = (
            "A plan for a model with `load_format: packed` mounts the loader's folders, and names them in PYTHONPATH."
        )
        return Explanation(code, row.why, means, (), None, catalogue.evidence_of(row.evidence), ())
    when = f", for: {format_condition(row.when)}" if row.when else ""
    no_sleep_effect = "starts and stops a model instead of letting it sleep"
    effect = _EFFECTS[row.kind].format(row.name) if isinstance(row, ProfileRow) else no_sleep_effect
    means = f"`winhost serve profile` {effect}{when}."
    return Explanation(code, row.why, means, (), None, catalogue.evidence_of(row.evidence), ())


def _row(file: str, written: Mapping[str, Any]) -> ProfileRow:
    (kind,) = (kind for kind in KINDS if kind in written)
    values = {key: value for key, value in written.items() if key != kind}
    return ProfileRow(kind=kind, name=written[kind], **_typed(file, {"id": written[kind], **values}))


def _typed(file: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row with its code, made of its file and `id`: `profile.wsl2.NCCL_P2P_DISABLE`."""
    code = f"profile.{file}.{written['id']}"
    return {"code": code, **parse_row(code, {key: value for key, value in written.items() if key != "id"})}


def _read(name: str) -> dict[str, Any]:
    read: dict[str, Any] = load_catalogue(files(__package__).joinpath("profiles", f"{name}.yaml"))
    return read
