"""Complete commands and options in shells. Each press of the tab key starts a new winhost, so it loads as little as
possible. If something cannot be read, nothing is offered, because a shell would not show an error.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from winhost.model.errors import WinhostError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FindNames = Callable[[click.Context], Iterable[str]]
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _completer(find_names: FindNames, *, files: bool = False) -> Completer:
    """Return the completer for one name, which leaves out names that are on the line already. files: offer paths,
    too.
    """

    def offer(context: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        used_names = context.params.get(param.name or "") or ()
        items = [
            CompletionItem(name)
            for name in _read(find_names, context)
            if name.startswith(incomplete) and not (isinstance(used_names, tuple) and name in map(str, used_names))
        ]
        return [*items, CompletionItem(incomplete, type="file")] if files else items

    return offer


def _list_completer(find_names: FindNames) -> Completer:
    """Return the completer for a list with commas, which completes the name after the last comma."""

    def offer(context: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        typed, comma, prefix = incomplete.rpartition(",")
        used_names = {
            name for each in (*(context.params.get(param.name or "") or ()), typed) for name in each.split(",")
        }
        matches = (name for name in _read(find_names, context) if name.startswith(prefix) and name not in used_names)
        return [CompletionItem(f"{typed}{comma}{name}") for name in matches]

    return offer


def _read(find_names: FindNames, context: click.Context) -> Sequence[str]:
    try:
        return tuple(dict.fromkeys(find_names(context)))
    except (WinhostError, OSError, ValueError, RecursionError):
        return ()


_MAX_DEPTH = 20  # a fleet file has four levels


def _fleet(context: click.Context) -> Iterator[str]:
    """Yield hosts, then groups as `@lab`. Does not use the model of fleet.yaml, which takes too long to load."""
    from winhost.model.fleet_path import find_fleet

    document = _yaml(find_fleet(context.params.get("fleet_file")).read_bytes())
    hosts = document.get("hosts") if isinstance(document, dict) else None
    if not isinstance(hosts, dict):
        return
    yield from filter(_is_name, hosts)
    group_lists = (host.get("groups") for host in hosts.values() if isinstance(host, dict))
    groups = {group for each in group_lists if isinstance(each, list) for group in filter(_is_name, each)}
    yield from (f"@{group}" for group in sorted(groups))


def _yaml(text: bytes) -> object:
    """Parse YAML. Return None if it is not YAML, or nested so deep that libyaml's stack would overflow."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                return None
        return yaml.load(text, loader)  # noqa: S506 - a safe one
    except yaml.YAMLError:
        return None


def _is_name(name: object) -> bool:
    """Tell whether a fleet file may contain this name, as `winhost.model.fleet.host_name` checks it."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name, re.ASCII) is not None


def _runs(context: click.Context) -> Iterable[str]:
    from winhost.engine.store import Store

    return reversed(Store().runs())


def _names_from(*dotted_names: str) -> FindNames:
    """Return a source of names from constants and functions of winhost, which are imported only when it is called."""

    def find_names(context: click.Context) -> Iterator[str]:
        for each in dotted_names:
            module, _, name = each.rpartition(".")
            value = getattr(import_module(f"winhost.{module}"), name)
            yield from value() if callable(value) else value

    return find_names


_CODES = _names_from(
    "knowledge.catalogue.entries",
    "symptoms.table.symptoms",
    "knowledge.lint_codes.lint_codes",
    "serving.profile.explained",
)
_PATHS = _names_from("model.path.EVERY_PATH", "model.path.WINDOWS_VARIANTS")

HOSTS: dict[str, Any] = {"shell_complete": _completer(_fleet)}
HOSTS_AND_FILES: dict[str, Any] = {"shell_complete": _completer(_fleet, files=True)}
RUNS: dict[str, Any] = {"shell_complete": _completer(_runs)}
SUBJECTS: dict[str, Any] = {"shell_complete": _completer(_names_from("knowledge.versions.subjects"))}
CODES: dict[str, Any] = {"shell_complete": _completer(_CODES)}
REMEDIES: dict[str, Any] = {"shell_complete": _completer(_names_from("knowledge.catalogue.remedies"))}
PATHS: dict[str, Any] = {"shell_complete": _completer(_PATHS)}
CAPABILITIES: dict[str, Any] = {"shell_complete": _list_completer(_names_from("model.capabilities.CAPABILITIES"))}
CONSENTS: dict[str, Any] = {"shell_complete": _list_completer(_names_from("model.plan.RISKS"))}
LAB_HOSTS: dict[str, Any] = {"shell_complete": _completer(_names_from("model.shipped.example_hosts"), files=True)}
