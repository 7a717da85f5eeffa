"""Complete commands and options in shells when the tab key is pressed.

Each press starts a new winhost, which reads as little as it can. Where something cannot be read, nothing is offered,
because there is nobody to tell.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from winhost.model.errors import WinhostError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Words = Callable[[click.Context], Iterable[str]]
Offer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _offering(words: Words, *, files: bool = False) -> Offer:
    """Those words that begin as what is typed, but those that stand there already; with `files` also paths."""

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
        return tuple(words(context))
    except (WinhostError, OSError, ValueError, RecursionError):
        return ()


_DEEPEST = 20  # a fleet file has four levels


def _fleet(context: click.Context) -> Iterator[str]:
    """Hosts, then groups as `@lab`. Read without the schema, which alone takes longer to load than a tab may take."""
    from winhost.model.fleet import find_fleet

    document = _yaml(find_fleet(context.params.get("fleet_file")).read_bytes())
    hosts = document.get("hosts") if isinstance(document, dict) else None
    if not isinstance(hosts, dict):
        return
    yield from filter(_is_name, hosts)
    groups = {group for host in hosts.values() for group in _groups(host)}
    yield from (f"@{group}" for group in sorted(groups))


def _yaml(text: bytes) -> object:
    """None where it is no YAML, or nested so deep that libyaml's own stack ends, and this process with it."""
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


def _groups(host: object) -> Iterable[str]:
    groups = host.get("groups") if isinstance(host, dict) else None
    return filter(_is_name, groups) if isinstance(groups, list) else ()


def _is_name(word: object) -> bool:
    """A shell gets only what the fleet file may hold: see `winhost.model.fleetfile.host_name`."""
    return isinstance(word, str) and re.fullmatch(r"\w[\w.-]*", word, re.ASCII) is not None


def _runs(context: click.Context) -> Iterable[str]:
    from winhost.engine.store import Store

    return reversed(Store().runs())


def _subjects(context: click.Context) -> Iterable[str]:
    from winhost.knowledge.versions import subjects

    return subjects()


def _codes(context: click.Context) -> Iterable[str]:
    from winhost.knowledge.catalogue import entries
    from winhost.symptoms.table import symptoms

    return (*entries(), *symptoms())


def _remedies(context: click.Context) -> Iterable[str]:
    from winhost.knowledge.catalogue import remedies

    return remedies()


def _paths(context: click.Context) -> Iterable[str]:
    from winhost.model.path import ALL_VARIANTS, EVERY_PATH

    return dict.fromkeys((*EVERY_PATH, *ALL_VARIANTS))


def _capabilities(context: click.Context) -> Iterable[str]:
    from winhost.model.capabilities import CAPABILITIES

    return CAPABILITIES


def _consents(context: click.Context) -> Iterable[str]:
    from winhost.model.plan import RISKS

    return RISKS


def _lab_hosts(context: click.Context) -> Iterable[str]:
    from winhost.model.shipped import example_hosts

    return example_hosts()


HOSTS: dict[str, Any] = {"shell_complete": _offering(_fleet)}
HOSTS_AND_FILES: dict[str, Any] = {"shell_complete": _offering(_fleet, files=True)}
RUNS: dict[str, Any] = {"shell_complete": _offering(_runs)}
SUBJECTS: dict[str, Any] = {"shell_complete": _offering(_subjects)}
CODES: dict[str, Any] = {"shell_complete": _offering(_codes)}
REMEDIES: dict[str, Any] = {"shell_complete": _offering(_remedies)}
PATHS: dict[str, Any] = {"shell_complete": _offering(_paths)}
CAPABILITIES: dict[str, Any] = {"shell_complete": _offering_list(_capabilities)}
CONSENTS: dict[str, Any] = {"shell_complete": _offering_list(_consents)}
LAB_HOSTS: dict[str, Any] = {"shell_complete": _offering(_lab_hosts, files=True)}
