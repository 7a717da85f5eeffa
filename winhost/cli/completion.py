"""What shells offer behind our commands and options when the tab key is pressed.

Each press starts a new winhost: `winhost.cli.offers` reads as little as it can, and where something cannot be read
nothing is offered, because there is nobody to tell.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from winhost.model.errors import WinhostError

Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offering(words: str, *, files: bool = False) -> Offer:
    """Those words that begin as what is typed, but those that stand there already; with `files` also paths.

    words: the function of `winhost.cli.offers`.
    """

    def offer(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = context.params.get(param.name or "") or ()
        items = [
            CompletionItem(word)
            for word in _read(words, context)
            if word.startswith(incomplete) and not (isinstance(given, tuple) and word in map(str, given))
        ]
        return [*items, CompletionItem(incomplete, type="file")] if files else items

    return offer


def _offering_list(words: str) -> Offer:
    """For options that take several words with commas between them: the one behind the last comma."""

    def offer(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        given = {word for each in (*(context.params.get(param.name or "") or ()), before) for word in each.split(",")}
        fitting = (word for word in _read(words, context) if word.startswith(last) and word not in given)
        return [CompletionItem(f"{before}{comma}{word}") for word in fitting]

    return offer


def _read(words: str, context: click.Context) -> Sequence[str]:
    try:
        return tuple(getattr(import_module("winhost.cli.offers"), words)(context))
    except (WinhostError, OSError, ValueError, RecursionError):
        return ()


HOSTS: dict[str, Any] = {"shell_complete": _offering("fleet")}
HOSTS_AND_FILES: dict[str, Any] = {"shell_complete": _offering("fleet", files=True)}
RUNS: dict[str, Any] = {"shell_complete": _offering("runs")}
CODES: dict[str, Any] = {"shell_complete": _offering("codes")}
REMEDIES: dict[str, Any] = {"shell_complete": _offering("remedies")}
PATHS: dict[str, Any] = {"shell_complete": _offering("paths")}
CAPABILITIES: dict[str, Any] = {"shell_complete": _offering_list("capabilities")}
CONSENTS: dict[str, Any] = {"shell_complete": _offering_list("consents")}
LAB_HOSTS: dict[str, Any] = {"shell_complete": _offering("lab_hosts", files=True)}
