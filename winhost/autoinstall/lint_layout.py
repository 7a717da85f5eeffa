"""Rules on `storage` as a whole and on `layout`, each form of which takes a disk by other means than its name."""

from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from winhost.autoinstall.autoinstall_file import Loc
from winhost.autoinstall.lint_document import AutoinstallContext, bare, schema
from winhost.findings.finding import Finding
from winhost.model.errors import did_you_mean

Findings = Iterator[Finding]
MATCHES = Version("24.04.2")  # of the media; use_gap heeds `match` from there on (LP #2080608)
_NAMES = ("direct", "lvm", "zfs", "hybrid")
_LAYOUT = ("storage", "layout")


def storage(context: AutoinstallContext) -> Findings:
    """Without a section the largest disk goes."""
    section, asked = context.file.section, context.get("interactive-sections") or []
    if not section:
        return
    if "storage" not in section:
        asks = "storage" in asked or "*" in asked
        others = [str(key) for key in section if key not in bare(schema()["sections"])]
        wrong = next((key for key in others if did_you_mean(key, ["storage"])), None)
        near = f"; '{wrong}' is not it." if wrong else "."
        yield context.found((), "no-storage-asks" if asks else "no-storage", near=near)
        return
    content = context.mapping("storage")
    if "config" not in content and "layout" not in content:
        yield context.found(("storage",), "storage-empty")
    elif "config" in content and "layout" in content:
        yield context.found(("storage", "config"), "layout-and-config")


def layout(context: AutoinstallContext) -> Findings:
    """What the layout does to which disk."""
    if not context.uses_layout:
        return
    found = context.mapping(*_LAYOUT)
    for loc, key, near in context.unknown(_LAYOUT, found, schema()["layout"]):
        yield context.found(loc, "unknown-key", key=key, near=near)
    yield from _name(context, found)
    mode = found.get("mode")
    if mode == "use_gap":
        yield from _gap(context, found)
    elif mode is None:
        yield context.found(_LAYOUT, "layout-no-mode", which=_which(found))
    elif mode == "reformat_disk":
        yield context.found((*_LAYOUT, "mode"), "layout-reformat", which=_which(found))
    yield from _match(context, (*_LAYOUT, "match"), found.get("match"))


def _which(layout: dict[str, Any]) -> str:
    match = layout.get("match")
    return "the largest disk" if not match else f"the first disk that matches {match}"


def _name(context: AutoinstallContext, layout: dict[str, Any]) -> Findings:
    name = layout.get("name")
    if name is not None and name not in _NAMES:
        yield context.found((*_LAYOUT, "name"), "layout-name", found=name)
    if name == "lvm" and layout.get("sizing-policy") != "all":
        yield context.found((*_LAYOUT, "name"), "layout-scaled")


def _gap(context: AutoinstallContext, layout: dict[str, Any]) -> Findings:
    loc = (*_LAYOUT, "mode")
    yield context.found(loc, "gap-version")
    if not layout.get("match"):
        yield context.found(loc, "gap-anywhere")
    elif context.installer is None:
        yield context.found(loc, "gap-may-ignore-match")
    elif context.installer < MATCHES:
        yield context.found(loc, "gap-ignores-match")


def disk_matches(context: AutoinstallContext) -> Findings:
    """The match of each disk in `config`."""
    for each in context.of("disk"):
        if "serial" not in each.data and "path" not in each.data:
            yield from _match(context, (*each.loc, "match"), each.data.get("match"), kept=each.is_true("preserve"))


def _match(context: AutoinstallContext, loc: Loc, match: object, *, kept: bool = False) -> Findings:
    if isinstance(match, list):
        if context.installer is not None and context.installer < MATCHES:
            yield context.found(loc, "match-list")
        for at, each in enumerate(match):
            yield from _one_match(context, (*loc, at), each, kept=kept)
    elif match is not None:
        yield from _one_match(context, loc, match, kept=kept)


def _one_match(context: AutoinstallContext, loc: Loc, match: object, *, kept: bool) -> Findings:
    if not isinstance(match, dict):
        return
    for place, key, near in context.unknown(loc, match, schema()["match"]):
        yield context.found(place, "match-key", key=key, near=near)
    if not kept:
        return
    named = [key for key in ("serial", "path", "id_path", "devpath") if key in match]
    for key in (*named, *(key for key in ("model", "vendor") if key in match)):
        if any(char in str(match[key]) for char in "*?["):
            yield context.found((*loc, key), "match-wildcard", key=key, value=match[key])
    if not named:
        how = ", ".join(f"{key}: {value}" for key, value in match.items()) or "left"
        yield context.found(loc, "match-any", how=how)
