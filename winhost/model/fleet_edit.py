"""Adds a host to a fleet.yaml, or removes one. Every other line stays unchanged, including comments."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import write_whole
from winhost.model.fleet import AnyHost, FleetFile, load_fleet
from winhost.model.fleet_path import config_folder, find_fleet
from winhost.model.yamlfile import adapter

_HEAD = "schema: winhost.fleet/1\nhosts:\n"
Entry = Mapping[str, Any]  # the keys of one host in fleet.yaml


def fleet_to_change(fleet_file: Path | None) -> Path:
    """Return the file that commands would read, else the one in the user's configuration, which may not exist yet."""
    try:
        return find_fleet(fleet_file)
    except UsageError:
        return fleet_file or config_folder() / "fleet.yaml"


def add_host(text: str, name: str, entry: Entry) -> str:
    """Add a host at the end of the hosts. Raises UsageError: FleetNotEdited."""
    if not text.strip():
        return _HEAD + _block(name, entry, 2)
    hosts = _hosts(text)
    if hosts is None:
        return _end_with_newline(text) + "hosts:\n" + _block(name, entry, 2)
    key, value = hosts
    lines = _end_with_newline(text).splitlines(keepends=True)
    if isinstance(value, MappingNode) and value.value and not value.flow_style:
        previous, indent = _last_line(value), value.value[0][0].start_mark.column
    elif isinstance(value, ScalarNode) or (isinstance(value, MappingNode) and not value.value):
        previous, indent = key.start_mark.line, key.start_mark.column + 2
        line = lines[previous]
        comment = line[value.end_mark.column :] if value.end_mark.line == previous else ""
        lines[previous] = line[: key.end_mark.column] + ":" + (comment.rstrip("\r\n") if "#" in comment else "") + "\n"
    else:
        raise _not_edited_error("its hosts stand within braces", name, entry)
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    lines.insert(previous + 1, _block(name, entry, indent).replace("\n", newline))
    return _check_edit(text, "".join(lines), lambda hosts: {**hosts, name: _plain(entry)}, name, entry)


def remove_host(text: str, name: str) -> str:
    """Remove a host. Raises UsageError: FleetNotEdited."""
    hosts = _hosts(text)
    entries = hosts[1] if hosts else None
    if not isinstance(entries, MappingNode) or entries.flow_style:
        raise _not_edited_error("its hosts stand within braces", name, None)
    key, value = next((key, value) for key, value in entries.value if key.value == name)
    lines = text.splitlines(keepends=True)
    first, last = key.start_mark.line, max(_last_line(value), key.start_mark.line)
    remaining = [*lines[:first], *lines[last + 1 :]]
    if len(entries.value) == 1:
        assert hosts
        line = hosts[0].start_mark.line
        remaining[line] = remaining[line].rstrip("\r\n")[: hosts[0].end_mark.column] + ": {}\n"
    return _check_edit(
        text, "".join(remaining), lambda hosts: {k: v for k, v in hosts.items() if k != name}, name, None
    )


def write_added_host(path: Path, name: str, entry: Entry) -> AnyHost:
    """Add a host to the file, and return the host as it is read back. If that raises UsageError or OSError, the file is
    unchanged.
    """
    try:
        adapter(FleetFile).validate_json(json.dumps({"schema": "winhost.fleet/1", "hosts": {name: _plain(entry)}}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(
            "UnfitEntry", what=f"{visible(name)}: {visible(first['msg'])}", hint="winhost host add --help"
        ) from None
    before = _read(path, name, entry)
    _write(path, add_host(before, name, entry), before)
    (host,) = (each for each in load_fleet(path).hosts if each.name == name)
    return host


def write_without_host(path: Path, name: str) -> None:
    """Remove a host from the file. If that raises UsageError or OSError, the file is unchanged."""
    before = _read(path, name, None)
    _write(path, remove_host(before, name), before)


def _read(path: Path, name: str, entry: Entry | None) -> str:
    if not path.exists():
        return ""
    load_fleet(path)  # a file with faults is not changed
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise _not_edited_error("it is UTF-16, and winhost changes UTF-8 alone", name, entry) from None


def _write(path: Path, text: str, before: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    existed = path.exists()
    write_whole(path, [text], mode=0o600)
    try:
        load_fleet(path)
    except WinhostError:
        if existed:
            write_whole(path, [before])
        else:
            path.unlink()
        raise


def _hosts(text: str) -> tuple[ScalarNode, Node] | None:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, MappingNode)
    return next(((key, value) for key, value in root.value if key.value == "hosts"), None)


def _last_line(node: Node) -> int:
    """Return the last line of a node."""
    if isinstance(node, MappingNode) and node.value and not node.flow_style:
        return max(_last_line(node.value[-1][1]), int(node.value[-1][0].end_mark.line))
    if isinstance(node, SequenceNode) and node.value and not node.flow_style:
        return _last_line(node.value[-1])
    ended = int(node.end_mark.line)
    literal = isinstance(node, ScalarNode) and node.style in ("|", ">")
    return ended - 1 if literal and node.end_mark.column == 0 else ended


def _end_with_newline(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _block(name: str, entry: Entry, indent: int) -> str:
    text = yaml.safe_dump({name: _plain(entry)}, sort_keys=False, allow_unicode=True, width=1000)
    return "".join(f"{' ' * indent}{line}\n" for line in text.splitlines())


def _plain(entry: Entry) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(entry))
    return plain


def _check_edit(
    before: str, after: str, change: Callable[[dict[str, Any]], dict[str, Any]], name: str, entry: Entry | None
) -> str:
    """Return the new text if only the expected change was made. Raises UsageError: FleetNotEdited."""
    try:
        old, new = yaml.safe_load(before), yaml.safe_load(after)
    except yaml.YAMLError:
        old, new = {}, None
    expected = {**old, "hosts": change(old.get("hosts") or {})}
    if new != expected or (entry is None and list(new) != list(old)):
        raise _not_edited_error("its form is one that winhost does not change", name, entry)
    return after


def _not_edited_error(why: str, name: str, entry: Entry | None) -> UsageError:
    host = visible(name)
    hint = f"Take {host} out of it by hand" if entry is None else "Add by hand:\n" + _block(name, entry, 2).rstrip("\n")
    return UsageError("FleetNotEdited", what=f"fleet.yaml was left as it is, with respect to {host}: {why}", hint=hint)
