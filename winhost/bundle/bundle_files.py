"""A plan as files that a person runs by hand: scripts, the plan, a readme for it, and sums.

The scripts are constant text: every value of a plan stays in plan.json, which they read as data.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from hashlib import sha256
from importlib.resources import files as packaged
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from winhost import __version__, core
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.core.order import change_of
from winhost.core.rules import as_json
from winhost.core.steps import Step
from winhost.model.documents import write_document
from winhost.model.errors import UsageError, visible
from winhost.model.once import once
from winhost.model.packed import describe_packed
from winhost.model.path import PATHS_OF_LINUX
from winhost.model.plan import RISKS, Plan, Stage, sort_risks
from winhost.model.shipped import shipped
from winhost.model.units import MiB, size
from winhost.resources.base import Attachment, ResourceType
from winhost.resources.linux import linux_scripts
from winhost.resources.registry import LINUX, LINUX_RULES, RULES, WINDOWS, label, title_of
from winhost.resources.windows.windows_scripts import agent_digest, agent_text

if TYPE_CHECKING:
    from jinja2 import Environment

SUMS = "SHA256SUMS"
PLAN = "plan.json"
README = "README.md"
LINUX_MODULES = ("bundle", "commands", "host", "journal")  # beside run.py there
LINUX_FOLDER = "linux"  # the folder of what runs there
_LONGEST = 80  # characters of a value in a table
SHARED = "Winhost.ps1"  # what the scripts that people start have in common: nearly everything
HEADS: Mapping[str, str] = {
    "Facts.ps1": "Start-WinhostFacts",
    "Apply.ps1": "Start-WinhostRun 'Apply.ps1'",
    "Verify.ps1": "Start-WinhostVerify",
    "Rollback.ps1": "Start-WinhostRun 'Rollback.ps1'",
}
SCRIPTS = (*HEADS, SHARED)
_CHAPTERS = (
    "facts",
    "verify",
    "apply",
    "rollback",
    "undo_steps",
    "rules",
    "marks",
    "run",
    "steps",
    "journal",
    "plan",
    "common",
)


@dataclass(frozen=True)
class _Row:
    """A resource as the scripts know it."""

    name: str
    title: str
    order: int
    sets: bool
    restarts: bool
    absent: str
    needs: str
    risks: str
    dependents: str
    within: str
    known_as: str
    credential: str
    requires: str
    undo: str


@dataclass(frozen=True)
class _Part:
    """A chapter of the shared part."""

    title: str
    text: str


def bundle(plan: Plan, brought: frozenset[str] = frozenset()) -> dict[str, bytes]:
    """All files of a bundle but the sums, by name. brought: files that lie there beside these. Raises UsageError:
    WhichLinux.
    """
    # Files lie beside the scripts: no host fetches them through a port, whatever the plan was to do.
    plan = replace(plan, stages=tuple(replace(each, steps=tuple(map(_carried, each.steps))) for each in plan.stages))
    written = write_document(plan).encode()
    if plan.request.path in PATHS_OF_LINUX:
        told = _readme(plan, frozenset())
        told["steps"] = told["linux_steps"]  # of a machine of its own, all steps are of Linux
        return {README: _environment().get_template("LINUX.md.j2").render(told).encode(), **_linux_folder(written)}
    readme = _environment().get_template("README.md.j2").render(_readme(plan, brought)).encode()
    if plan.linux_key is None and any(step.resource in LINUX for step in plan.steps):
        raise UsageError(
            "WhichLinux",
            what=f"the plan does not say by what key the Linux of {plan.host} is known",
            hint=f"Make it again with this winhost: winhost plan {plan.host} --path {plan.request.path}",
            host=plan.host,
        )
    inside = _linux_folder(written) if _is_for_linux(plan.stages[0]) else {}
    return {**scripts(), PLAN: written, README: readme, **inside}


def _carried(step: Step) -> Step:
    if _attachment(step) is None:
        return step
    return replace(step, risks=tuple(risk for risk in step.risks if risk != "network"))


def _linux_folder(written: bytes) -> dict[str, bytes]:
    """A folder of its own, which goes into the Linux."""
    files = {**linux_sources(), PLAN: written}
    return {f"{LINUX_FOLDER}/{name}": content for name, content in {**files, SUMS: sums(files)}.items()}


def _is_for_linux(stage: Stage) -> bool:
    resources = {*(desired.resource for desired in stage.desired), *(deferred.resource for deferred in stage.deferred)}
    return not resources.isdisjoint(LINUX)


@once
def linux_sources() -> Mapping[str, bytes]:
    """The files that run in the Linux, the same for every plan: read as text, because only there run.py can be
    imported.
    """
    core_files = (each for each in packaged(core).iterdir() if each.name.endswith(".py"))
    declared: dict[str, Json] = {}
    for rules in sorted((LINUX_RULES[name] for name in LINUX), key=lambda each: each.order):
        # The title for somebody who is in that Linux.
        title = "a Linux with apt and systemd" if rules.name == "LinuxSystem" else rules.title.removesuffix(" in Linux")
        declared[rules.name] = as_json(replace(rules, title=title))
    return {
        "agent.py": linux_scripts.agent_text().encode("ascii"),
        **{
            f"core/{each.name}": _plain(each).encode("ascii") for each in sorted(core_files, key=lambda each: each.name)
        },
        "resources.json": f"{json.dumps(declared, indent=1)}\n".encode("ascii"),
        **{
            f"{name}.py": _text(f"linux_{name}.py").replace("@winhost@", __version__).encode("ascii")
            for name in (*LINUX_MODULES, "run")
        },
    }


def facts_bundle() -> dict[str, bytes]:
    """The files for a host that nobody has read yet: what reads it, and how it goes on."""
    readme = _environment().get_template("FACTS.md.j2").render(version=__version__).encode()
    return {**{name: scripts()[name] for name in ("Facts.ps1", SHARED)}, README: readme}


def sums(files: Mapping[str, bytes]) -> bytes:
    """The sums in the format of `sha256sum`."""
    return "".join(f"{sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)).encode("ascii")


@once
def scripts() -> Mapping[str, bytes]:
    """The scripts: the same for every plan."""
    templates, load = _environment(), _text("powershell/load.ps1")
    # What people start has its help and parameters, and loads the shared part.
    head = templates.get_template("head.ps1.j2")
    texts = {
        name: head.render(head=_text(f"powershell/heads/{name}"), load=load, start=start)
        for name, start in HEADS.items()
    }
    linux_files = sorted(f"{LINUX_FOLDER}/{name}" for name in (*linux_sources(), PLAN, SUMS))
    tables = templates.get_template("tables.ps1.j2").render(
        version=__version__,
        files=[*HEADS, SHARED, PLAN, README, *linux_files],  # all that a bundle may have, without its sums
        resources=[_row(resource) for resource in WINDOWS.values()],
        linux=LINUX,
        risks=RISKS.items(),
    )
    parts = [_part(text) for text in (*(_text(f"powershell/{chapter}.ps1") for chapter in _CHAPTERS), tables)]
    agent = _Part(f"the agent and the resources (SHA-256 {agent_digest()})", agent_text())
    texts[SHARED] = templates.get_template("shared.ps1.j2").render(parts=[*parts, agent])
    return {name: text.encode("ascii") for name, text in texts.items()}


def _text(name: str) -> str:
    return _plain(packaged(__package__) / name)


def _plain(file: Traversable) -> str:
    return file.read_bytes().decode("ascii").replace("\r\n", "\n")


def _part(text: str) -> _Part:
    title, _, rest = text.partition("\n\n")
    return _Part(title.removeprefix("# "), rest)


@once
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
    made.filters["value"] = format_value
    made.filters["titled"] = title_of
    return made


# ---- resources


def _row(resource: ResourceType) -> _Row:
    # No script on Windows can read what is inside a distro, so only dependents on Windows count.
    dependents = [
        {**{each.name: getattr(rule, each.name) for each in fields(rule)}, "label": label(rule.resource)}
        for rule in resource.dependents
        if rule.resource in WINDOWS
    ]
    return _Row(
        name=resource.name,
        title=title_of(resource.name),
        order=RULES[resource.name].order,
        sets=bool(resource.sets),
        restarts=resource.restarts,
        absent="" if resource.absent is None else json.dumps(dict(resource.absent)),
        needs=json.dumps(as_json(resource.needs)),
        risks=json.dumps(as_json(resource.risks)),
        dependents=json.dumps(dependents),
        within=resource.within.resource if resource.within else "",
        known_as=" ".join(resource.known_as or ()),
        credential=resource.credential,
        requires=resource.requires or "",
        undo=json.dumps(as_json(resource.undo)),
    )


# ---- the readme


def _readme(plan: Plan, brought: frozenset[str]) -> dict[str, object]:
    first = plan.stages[0]
    attachments = [each for each in map(_attachment, first.steps) if each]
    inside = sort_risks(risk for step in first.steps if step.resource in LINUX for risk in step.risks)
    return {
        "plan": plan,
        "stage": first,
        "may_restart": any("restart" in (*step.risks, *step.may_need) for step in first.steps),
        "steps": [_step_for_scripts(step) for step in first.steps if step.resource in WINDOWS],
        "attachments": [each for each in attachments if each.name not in brought],
        "brought": [each for each in attachments if each.name in brought],
        "later": first.deferred,
        "linux": _is_for_linux(first),
        "linux_steps": [_step_for_scripts(step) for step in first.steps if step.resource in LINUX],
        "irreversible": [step for step in first.steps if step.irreversible],
        "needed": _meanings(plan.risks),
        "possible": _meanings(plan.possible_risks),
        "accept": f" -Accept {','.join(plan.risks)}" if plan.risks else "",
        "accept_inside": f" --accept {','.join(inside)}" if inside else "",
        "roles": {"desired": "", "need": "needed by later steps", "restore": "restored", "undo": ""},
        "version": __version__,
        "digest": agent_digest(),
    }


def _step_for_scripts(step: Step) -> dict[str, object]:
    changes = [(name, step.before[name], desired) for name, desired in step.desired.items()]
    asks = (*step.risks, *(f"possibly {risk}" for risk in step.may_need))
    return {"step": step, "changes": changes, "asks": ", ".join(asks)}


def _attachment(step: Step) -> Attachment | None:
    return WINDOWS[step.resource].upload(change_of(step)) if step.resource in WINDOWS else None


def _meanings(risks: Iterable[str]) -> list[tuple[str, str]]:
    return [(risk, RISKS[risk]) for risk in risks]


_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~&"})


def markdown(text: str) -> str:
    """A host's or a person's words within a line of Markdown: shown as they are, and never markup."""
    return visible(text).translate(_SPECIAL)


def format_value(value: Json) -> str:
    """A state's value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= MiB and value % MiB == 0:
        return size(value)
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "none"
    text = "none" if value is None else str(value)
    if packed := describe_packed(text):
        return packed
    if len(text) > _LONGEST:
        return f"{markdown(text[:_LONGEST])}… ({len(text)} characters; all of it in plan.json)"
    return markdown(text)
