"""Complete commands and options in shells when the tab key is pressed. Each press starts a new winhost, which reads as
little as it can. If something cannot be read, nothing is offered: a shell would not show an error.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from winhost.model.errors import WinhostError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Words = Callable[[click.Context], Iterable[str]]
Offer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _offering(words: Words, *, files: bool = False) -> Offer:
    """Complete a word, leaving out words that are on the line already. files: offer paths as well."""

    def offer(context: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        given = context.params.get(param.name or "") or ()
        items = [
            CompletionItem(word)
            for word in _read(words, context)
            if word.startswith(incomplete) and not (isinstance(given, tuple) and word in map(str, given))
        ]
        return [*items, CompletionItem(incomplete, type="file")] if files else items

    return offer


def _offering_list(words: Words) -> Offer:
    """Complete the word after the last comma, for options that take several words with commas between them."""

    def offer(context: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",")
        given = {word for each in (*(context.params.get(param.name or "") or ()), before) for word in each.split(",")}
        fitting = (word for word in _read(words, context) if word.startswith(last) and word not in given)
        return [CompletionItem(f"{before}{comma}{word}") for word in fitting]

    return offer


def _read(words: Words, context: click.Context) -> Sequence[str]:
    try:
        return tuple(dict.fromkeys(words(context)))
    except (WinhostError, OSError, ValueError, RecursionError):
        return ()


_DEEPEST = 20  # a fleet file has four levels


def _fleet(context: click.Context) -> Iterator[str]:
    """Yield hosts, then groups as `@lab`. The schema is not used, because loading it takes too long for a tab."""
    from winhost.model.fleet_path import find_fleet

    document = _yaml(find_fleet(context.params.get("fleet_file")).read_bytes())
    hosts = document.get("hosts") if isinstance(document, dict) else None
    if not isinstance(hosts, dict):
        return
    yield from filter(_is_name, hosts)
    listed = (host.get("groups") for host in hosts.values() if isinstance(host, dict))
    groups = {group for each in listed if isinstance(each, list) for group in filter(_is_name, each)}
    yield from (f"@{group}" for group in sorted(groups))


def _yaml(text: bytes) -> object:
    """Parse YAML. Returns None if it is not YAML, or nested so deep that libyaml's stack would overflow."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                return None
        return yaml.load(text, loader)  # noqa: S506 - a safe one
    except yaml.YAMLError:
        return None


def _is_name(word: object) -> bool:
    """Offer a shell only names that a fleet file may hold: see `winhost.model.fleet.host_name`."""
    return isinstance(word, str) and re.fullmatch(r"\w[\w.-]*", word, re.ASCII) is not None


def _runs(context: click.Context) -> Iterable[str]:
    from winhost.engine.store import Store

    return reversed(Store().runs())


def _named_in(*names: str) -> Words:
    """Complete words from tables and functions of winhost, which are imported only then."""

    def words(context: click.Context) -> Iterator[str]:
        for each in names:
            module, _, name = each.rpartition(".")
            found = getattr(import_module(f"winhost.{module}"), name)
            yield from found() if callable(found) else found

    return words


_CODES = _named_in(
    "knowledge.catalogue.entries",
    "symptoms.table.symptoms",
    "knowledge.lint_codes.lint_codes",
    "serving.profile.explained",
)
_PATHS = _named_in("model.path.EVERY_PATH", "model.path.WINDOWS_VARIANTS")

HOSTS: dict[str, Any] = {"shell_complete": _offering(_fleet)}
HOSTS_AND_FILES: dict[str, Any] = {"shell_complete": _offering(_fleet, files=True)}
RUNS: dict[str, Any] = {"shell_complete": _offering(_runs)}
SUBJECTS: dict[str, Any] = {"shell_complete": _offering(_named_in("knowledge.versions.subjects"))}
CODES: dict[str, Any] = {"shell_complete": _offering(_CODES)}
REMEDIES: dict[str, Any] = {"shell_complete": _offering(_named_in("knowledge.catalogue.remedies"))}
PATHS: dict[str, Any] = {"shell_complete": _offering(_PATHS)}
CAPABILITIES: dict[str, Any] = {"shell_complete": _offering_list(_named_in("model.capabilities.CAPABILITIES"))}
CONSENTS: dict[str, Any] = {"shell_complete": _offering_list(_named_in("model.plan.RISKS"))}
LAB_HOSTS: dict[str, Any] = {"shell_complete": _offering(_named_in("model.shipped.example_hosts"), files=True)}
