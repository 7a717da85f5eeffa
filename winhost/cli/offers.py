"""The words that the tab key offers: loaded when it is pressed, and nothing heavy with it.

Where something cannot be read, its errors are left to `winhost.cli.completion`, which offers nothing then.
"""

import re
from collections.abc import Iterable, Iterator

import click
import yaml

from winhost.engine.store import Store
from winhost.knowledge import catalogue
from winhost.model.capabilities import CAPABILITIES
from winhost.model.fleet import find_fleet
from winhost.model.path import ALL_VARIANTS, EVERY_PATH
from winhost.model.plan import RISKS
from winhost.model.shipped import example_hosts
from winhost.symptoms.table import symptoms

_DEEPEST = 20  # a fleet file has four levels


def fleet(context: click.Context) -> Iterator[str]:
    """Hosts, then groups as `@lab`. Read without the schema, which alone takes longer to load than a tab may take."""
    document = _yaml(find_fleet(context.params.get("fleet_file")).read_bytes())
    hosts = document.get("hosts") if isinstance(document, dict) else None
    if not isinstance(hosts, dict):
        return
    yield from filter(_is_name, hosts)
    groups = {group for host in hosts.values() for group in _groups(host)}
    yield from (f"@{group}" for group in sorted(groups))


def _yaml(text: bytes) -> object:
    """None where it is no YAML, or nested so deep that libyaml's own stack ends, and this process with it."""
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


def runs(context: click.Context) -> Iterable[str]:
    return reversed(Store().runs())


def codes(context: click.Context) -> Iterable[str]:
    return (*catalogue.entries(), *symptoms())


def remedies(context: click.Context) -> Iterable[str]:
    return catalogue.remedies()


def paths(context: click.Context) -> Iterable[str]:
    return dict.fromkeys((*EVERY_PATH, *ALL_VARIANTS))


def capabilities(context: click.Context) -> Iterable[str]:
    return CAPABILITIES


def consents(context: click.Context) -> Iterable[str]:
    return RISKS


def lab_hosts(context: click.Context) -> Iterable[str]:
    return example_hosts()
