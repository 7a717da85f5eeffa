"""Make the files of a bundle, with which a person applies a plan by hand: scripts, the plan, a readme, and sums.

The scripts are constant text. All values of a plan are in plan.json, which the scripts read as data.
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
LINUX_MODULES = ("bundle", "commands", "host", "journal")  # next to run.py
LINUX_FOLDER = "linux"  # the folder of the files for the Linux
_MAX_CHARACTERS = 80  # characters of a value in a table
SHARED = "Winhost.ps1"  # the functions of all scripts
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
    """A resource in the tables of the PowerShell scripts."""

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
    """A chapter of the shared script."""

    title: str
    text: str


def bundle(plan: Plan, included: frozenset[str] = frozenset()) -> dict[str, bytes]:
    """Return the files of a bundle except the sums, by name. included: names of attachments that are added to the
    folder. Raises UsageError: WhichLinux.
    """
    # Attachments are next to the scripts: no host downloads them from this computer, even if the plan says so.
    plan = replace(
        plan, stages=tuple(replace(each, steps=tuple(map(_without_download, each.steps))) for each in plan.stages)
    )
    written = write_document(plan).encode()
    if plan.request.path in PATHS_OF_LINUX:
        context = _readme(plan, frozenset())
        context["steps"] = context["linux_steps"]  # on a Linux machine, all steps are of Linux
        return {README: _environment().get_template("LINUX.md.j2").render(context).encode(), **_linux_folder(written)}
    readme = _environment().get_template("README.md.j2").render(_readme(plan, included)).encode()
    if plan.linux_key is None and any(step.resource in LINUX for step in plan.steps):
        raise UsageError(
            "WhichLinux",
            what=f"the plan does not say by what key the Linux of {plan.host} is known",
            hint=f"Make it again with this winhost: winhost plan {plan.host} --path {plan.request.path}",
            host=plan.host,
        )
    linux_files = _linux_folder(written) if _is_for_linux(plan.stages[0]) else {}
    return {**scripts(), PLAN: written, README: readme, **linux_files}


def _without_download(step: Step) -> Step:
    if _attachment(step) is None:
        return step
    return replace(step, risks=tuple(risk for risk in step.risks if risk != "network"))


def _linux_folder(written: bytes) -> dict[str, bytes]:
    """Return the files of the folder that is copied to the Linux."""
    files = {**linux_sources(), PLAN: written}
    return {f"{LINUX_FOLDER}/{name}": content for name, content in {**files, SUMS: sums(files)}.items()}


def _is_for_linux(stage: Stage) -> bool:
    resources = {*(desired.resource for desired in stage.desired), *(deferred.resource for deferred in stage.deferred)}
    return not resources.isdisjoint(LINUX)


@once
def linux_sources() -> Mapping[str, bytes]:
    """Return the files that run in the Linux, the same for each plan. They are read as text, because run.py can be
    imported only there.
    """
    core_files = (each for each in packaged(core).iterdir() if each.name.endswith(".py"))
    declared: dict[str, Json] = {}
    for rules in sorted((LINUX_RULES[name] for name in LINUX), key=lambda each: each.order):
        # The title for a user in that Linux.
        title = "a Linux with apt and systemd" if rules.name == "LinuxSystem" else rules.title.removesuffix(" in Linux")
        declared[rules.name] = as_json(replace(rules, title=title))
    return {
        "agent.py": linux_scripts.agent_text().encode("ascii"),
        **{
            f"core/{each.name}": _read_ascii(each).encode("ascii")
            for each in sorted(core_files, key=lambda each: each.name)
        },
        "resources.json": f"{json.dumps(declared, indent=1)}\n".encode("ascii"),
        **{
            f"{name}.py": _read_packaged(f"linux_{name}.py").replace("@winhost@", __version__).encode("ascii")
            for name in (*LINUX_MODULES, "run")
        },
    }


def facts_bundle() -> dict[str, bytes]:
    """Return the files for a host that was not read yet: a script that reads it, and a readme."""
    readme = _environment().get_template("FACTS.md.j2").render(version=__version__).encode()
    return {**{name: scripts()[name] for name in ("Facts.ps1", SHARED)}, README: readme}


def sums(files: Mapping[str, bytes]) -> bytes:
    """Format the hashes of files as `sha256sum` does."""
    return "".join(f"{sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)).encode("ascii")


@once
def scripts() -> Mapping[str, bytes]:
    """Return the PowerShell scripts, the same for each plan."""
    templates, load = _environment(), _read_packaged("powershell/load.ps1")
    # A script that people start has its help and parameters, and loads the shared script.
    head = templates.get_template("head.ps1.j2")
    texts = {
        name: head.render(head=_read_packaged(f"powershell/heads/{name}"), load=load, start=start)
        for name, start in HEADS.items()
    }
    linux_files = sorted(f"{LINUX_FOLDER}/{name}" for name in (*linux_sources(), PLAN, SUMS))
    tables = templates.get_template("tables.ps1.j2").render(
        version=__version__,
        files=[*HEADS, SHARED, PLAN, README, *linux_files],  # all files that a bundle may have, except the sums
        resources=[_row(resource) for resource in WINDOWS.values()],
        linux=LINUX,
        risks=RISKS.items(),
    )
    parts = [_part(text) for text in (*(_read_packaged(f"powershell/{chapter}.ps1") for chapter in _CHAPTERS), tables)]
    agent = _Part(f"the agent and the resources (SHA-256 {agent_digest()})", agent_text())
    texts[SHARED] = templates.get_template("shared.ps1.j2").render(parts=[*parts, agent])
    return {name: text.encode("ascii") for name, text in texts.items()}


def _read_packaged(name: str) -> str:
    return _read_ascii(packaged(__package__) / name)


def _read_ascii(file: Traversable) -> str:
    return file.read_bytes().decode("ascii").replace("\r\n", "\n")


def _part(text: str) -> _Part:
    title, _, rest = text.partition("\n\n")
    return _Part(title.removeprefix("# "), rest)


@once
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(shipped("templates") / "bundle", encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - it renders Markdown and constant scripts; names are escaped by `name`
    )
    environment.filters["name"] = markdown
    environment.filters["value"] = format_value
    environment.filters["titled"] = title_of
    return environment


# ---- resources


def _row(resource: ResourceType) -> _Row:
    # Scripts on Windows cannot read the content of a distro, so only dependents on Windows count.
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


def _readme(plan: Plan, included: frozenset[str]) -> dict[str, object]:
    first = plan.stages[0]
    attachments = [each for each in map(_attachment, first.steps) if each]
    linux_risks = sort_risks(risk for step in first.steps if step.resource in LINUX for risk in step.risks)
    return {
        "plan": plan,
        "stage": first,
        "may_restart": any("restart" in (*step.risks, *step.may_need) for step in first.steps),
        "steps": [_step_for_scripts(step) for step in first.steps if step.resource in WINDOWS],
        "attachments": [each for each in attachments if each.name not in included],
        "brought": [each for each in attachments if each.name in included],
        "later": first.deferred,
        "linux": _is_for_linux(first),
        "linux_steps": [_step_for_scripts(step) for step in first.steps if step.resource in LINUX],
        "irreversible": [step for step in first.steps if step.irreversible],
        "needed": _risk_meanings(plan.risks),
        "possible": _risk_meanings(plan.possible_risks),
        "accept": f" -Accept {','.join(plan.risks)}" if plan.risks else "",
        "accept_inside": f" --accept {','.join(linux_risks)}" if linux_risks else "",
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


def _risk_meanings(risks: Iterable[str]) -> list[tuple[str, str]]:
    return [(risk, RISKS[risk]) for risk in risks]


_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|~&"})


def markdown(text: str) -> str:
    """Escape text of a host or a person for a line of Markdown, so that it is never markup."""
    return visible(text).translate(_SPECIAL)


def format_value(value: Json) -> str:
    """Format a value of a state for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= MiB and value % MiB == 0:
        return size(value)
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "none"
    text = "none" if value is None else str(value)
    if packed := describe_packed(text):
        return packed
    if len(text) > _MAX_CHARACTERS:
        return f"{markdown(text[:_MAX_CHARACTERS])}… ({len(text)} characters; all of it in plan.json)"
    return markdown(text)
