"""The watchers that a workload wants on the Windows host of a distro, for people at its desktop."""

import click

from winhost.cli.stack_parts import StackParts, yield_key_of
from winhost.cli.stack_target import StackTarget
from winhost.core.answers import Json
from winhost.gateway.key_lines import parse_key
from winhost.model.workload import YieldTo
from winhost.resources.windows.yield_watcher import watcher_settings
from winhost.serving.stack import LOOPBACK

_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - where the gateway listens, compared


def desktop_watchers(parts: StackParts, target: StackTarget) -> list[dict[str, Json]]:
    """The setting `watchers` of path wsl2. Raises click's UsageError, UsageError (SecretUnreadable), MissingFact."""
    wanted = parts.workload.availability.yield_to
    if wanted is None or not wanted.accounts:
        return []
    mode = target.networking_mode
    if mode is None:
        raise click.UsageError(
            "availability.yield_to.accounts names people at the desktop of a Windows that shares its GPUs with WSL, "
            f"and path {target.request.path} has none: leave it out there"
        )
    url = wanted.url or _own_address(parts, mode)
    found = []
    for account in wanted.accounts:
        name, reference = yield_key_of(account, parts.words.yield_key)
        digest = parse_key(parts.yield_line(name, reference)).sha256
        found.append({"account": account, "settings": settings_text(wanted, url), "key": reference, "digest": digest})
    return found


def settings_text(wanted: YieldTo, url: str) -> str:
    return watcher_settings(
        url=url,
        programs=wanted.programs,
        full_screen=wanted.full_screen,
        unlocked=wanted.unlocked,
        gpu_memory=wanted.gpu_memory,
    )


def _own_address(parts: StackParts, mode: str) -> str:
    """The gateway on Windows's own loopback, where WSL brings it. Raises click's UsageError."""
    address, port = parts.listen
    if mode == "bridged" or parts.tls or address not in (*LOOPBACK, *_ANYWHERE):
        raise click.UsageError(
            "at which address does Windows reach the gateway? Add it to availability.yield_to of the workload: "
            f"url: https://NAME:{port}, by the name in its certificate"
        )
    return f"http://127.0.0.1:{port}"
