"""The same plan as files for a person to run by hand: scripts, the plan, a readme for it, and sums.

The scripts are constant text: every value of a plan stays in plan.json, which they read as data.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from graphlib import TopologicalSorter
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from winhost import __version__
from winhost.model.documents import write_document
from winhost.model.errors import UsageFault, visible
from winhost.model.facts import Json
from winhost.model.plan import RISKS, Plan, Step
from winhost.model.shipped import shipped
from winhost.model.units import MiB, size
from winhost.resources.base import Beside, Change, Noun, undo_property_by_property
from winhost.resources.windows import NOUNS
from winhost.resources.windows.accounts import distros_of, undo_account, undo_tasks, undo_whole
from winhost.resources.windows.distros import distro_risks, ends_distros, undo_distro, undo_vm
from winhost.resources.windows.network import cuts_the_wire, undo_switch
from winhost.resources.windows.scripts import agent_digest, agent_text
from winhost.resources.windows.software import restart, undo_feature, undo_staged, undo_wsl, wsl_and_distros
from winhost.resources.windows.vm import devices_of, vm_off

if TYPE_CHECKING:
    from jinja2 import Environment

SUMS = "SHA256SUMS"
_DOING = ("run", "steps", "journal", "plan", "common")
SCRIPTS: Mapping[str, tuple[str, ...]] = {
    "Facts.ps1": ("facts", "common"),
    "Apply.ps1": ("apply", *_DOING),
    "Verify.ps1": ("verify", "plan", "common"),
    "Rollback.ps1": ("rollback", *_DOING),
}

# How the engine of the bundle calls the rules of our nouns. A rule that stands in none of these has no twin there, and
# making a bundle fails.
_DEFAULTS = {field.name: field.default for field in fields(Noun)}
_NEEDS = {_DEFAULTS["needs"]: "", vm_off: "vm-off", NOUNS["AssignableDevice"].needs: "owners-off"}
_RISKS = {
    _DEFAULTS["risks"]: "",
    NOUNS["VmPower"].risks: "stops-a-vm",
    NOUNS["HyperVRole"].risks: "restarts-for-role",
    restart: "restarts",
    cuts_the_wire: "cuts-the-wire",
    distro_risks: "ends-a-distro",
    ends_distros: "ends-distros",
}
_USERS = {_DEFAULTS["users"]: "", devices_of: "devices", wsl_and_distros: "wsl", distros_of: "distros"}
_UNDO = {
    undo_property_by_property: "",
    NOUNS["AssignableDevice"].undo: "place",
    NOUNS["HyperVRole"].undo: "role",
    undo_account: "account",
    undo_tasks: "tasks",
    undo_whole: "whole",
    undo_feature: "feature",
    undo_staged: "staged",
    undo_wsl: "wsl",
    undo_switch: "switch",
    undo_distro: "distro",
    undo_vm: "vm",
}


@dataclass(frozen=True)
class _Row:
    """A noun as the scripts know it."""

    name: str
    place: int
    sets: bool
    restarts: bool
    absent: str
    needs: str
    risks: str
    users: str
    undo: str


@dataclass(frozen=True)
class _Part:
    """A chapter of a script."""

    title: str
    text: str


@dataclass(eq=False)
class BeyondWindows(UsageFault):
    """A plan that changes what no script of Windows can reach, or has nothing else left to do."""

    host: str
    nouns: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"no bundle can do this plan for {self.host}: it changes {', '.join(self.nouns)} of its Linux"

    @property
    def hint(self) -> str:
        return "The scripts of a bundle run in Windows alone. Use: winhost apply"


def bundle(plan: Plan) -> dict[str, bytes]:
    """All files of a bundle but the sums, by name. Raises NotImplementedError for a noun beyond the scripts, and
    BeyondWindows.
    """
    steps = [step.noun for step in plan.steps]
    # Where nothing but its Linux is left, a bundle would have nothing to do, and the next one neither.
    nouns = steps or [waits.noun for waits in plan.deferred]
    beyond = dict.fromkeys(noun for noun in nouns if noun not in NOUNS)
    if beyond and (steps or beyond.keys() == set(nouns)):
        raise BeyondWindows(plan.host, tuple(beyond))
    readme = _environment().get_template("README.md.j2").render(_readme(plan)).encode()
    return {**scripts(), "plan.json": write_document(plan).encode(), "README.md": readme}


def facts_bundle() -> dict[str, bytes]:
    """What a host needs that nobody has read yet: the script that reads it, and how it goes on."""
    readme = _environment().get_template("FACTS.md.j2").render(version=__version__).encode()
    return {"Facts.ps1": scripts()["Facts.ps1"], "README.md": readme}


def sums(files: Mapping[str, bytes]) -> bytes:
    """As `sha256sum` writes and checks them."""
    return "".join(f"{sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)).encode("ascii")


@cache
def scripts() -> Mapping[str, bytes]:
    """The scripts: the same for every plan."""
    return {name: _script(name).encode("ascii") for name in SCRIPTS}


def _script(name: str) -> str:
    parts = [_part(_text(f"parts/{part}.ps1")) for part in SCRIPTS[name]]
    agent = _Part(f"the agent and the nouns, as sent over the wire (SHA-256 {agent_digest()})", agent_text())
    template = _environment().get_template("script.ps1.j2")
    return template.render(head=_text(f"heads/{name}"), parts=[*parts, _part(_tables()), agent])


def _text(name: str) -> str:
    return (shipped("templates") / "bundle" / name).read_text("ascii")


def _part(text: str) -> _Part:
    title, _, rest = text.partition("\n\n")
    return _Part(title.removeprefix("# "), rest)


def _tables() -> str:
    template = _environment().get_template("tables.ps1.j2")
    return template.render(version=__version__, nouns=[_row(noun) for noun in NOUNS.values()], risks=RISKS.items())


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(shipped("templates") / "bundle", encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - what it makes is Markdown and constant scripts; names go through `name`
    )
    made.filters["name"] = markdown
    made.filters["value"] = shown
    return made


# ---- nouns


def _row(noun: Noun) -> _Row:
    return _Row(
        name=noun.name,
        place=_order()[noun.name],
        sets=bool(noun.sets),
        restarts=noun.restarts,
        absent="" if noun.absent is None else json.dumps(dict(noun.absent)),
        needs=_named(_NEEDS, noun.needs, noun),
        risks=_named(_RISKS, noun.risks, noun),
        users=_named(_USERS, noun.users, noun),
        undo=_named(_UNDO, noun.undo, noun),
    )


def _named(names: Mapping[Any, str], rule: Callable[..., Any], noun: Noun) -> str:
    if rule not in names:
        raise NotImplementedError(f"{noun.name} has a rule that templates/bundle/parts does not know")
    return names[rule]


@cache
def _order() -> Mapping[str, int]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for noun in NOUNS.values():
        sorter.add(noun.name, *noun.after, *filter(None, [noun.requires]))
    return {name: number for number, name in enumerate(sorter.static_order())}


# ---- the readme


def _readme(plan: Plan) -> dict[str, object]:
    first = plan.stages[0]
    return {
        "plan": plan,
        "stage": first,
        "steps": [_told(step) for step in first.steps],
        "beside": [wanted for wanted in map(_beside, first.steps) if wanted],
        "later": [waits for waits in first.deferred if waits.noun in NOUNS],
        "beyond": [waits for waits in first.deferred if waits.noun not in NOUNS],
        "irreversible": [step for step in first.steps if step.irreversible],
        "needed": _meanings(plan.risks),
        "possible": _meanings(plan.possible_risks),
        "accept": f" -Accept {','.join(plan.risks)}" if plan.risks else "",
        "roles": {"wish": "", "need": "for the steps below", "give-back": "given back", "undo": ""},
        "version": __version__,
        "digest": agent_digest(),
    }


def _told(step: Step) -> dict[str, object]:
    changes = [(name, step.before[name], want) for name, want in step.want.items()]
    asks = (*step.risks, *(f"perhaps {risk}" for risk in step.may_need))
    return {"step": step, "changes": changes, "asks": ", ".join(asks)}


def _beside(step: Step) -> Beside | None:
    return NOUNS[step.noun].sends(Change(step.key, step.before, step.want)) if step.noun in NOUNS else None


def _meanings(risks: Iterable[str]) -> list[tuple[str, str]]:
    return [(risk, RISKS[risk]) for risk in risks]


_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~&"})


def markdown(text: str) -> str:
    """A host's or a person's words within a line of Markdown: shown as they are, and never markup."""
    return visible(text).translate(_SPECIAL)


def shown(value: Json) -> str:
    """A state's value for people."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= MiB and value % MiB == 0:
        return size(value)
    return "none" if value is None else markdown(str(value))
