"""Lints Docker's daemon.json: what Docker refuses, and what engines need."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from winhost.findings.condition import matches, matching_rows
from winhost.findings.finding import Observation, Row, TextEdit, matching_key_rows, run_rules
from winhost.model.catalogue_file import load_package_file
from winhost.model.errors import did_you_mean_or_period
from winhost.model.once import once
from winhost.recipes.command_editor import replace_value
from winhost.recipes.recipe_case import RecipeTarget
from winhost.recipes.recipe_rows import ROWS
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.sizes import docker_size, format_size
from winhost.recipes.yaml_nodes import MARK, NotYaml, YamlNode, find_duplicate_keys, parse_json, remove_entry
from winhost.serving.computed import MIN_SHM

_KINDS: Mapping[str, Callable[[YamlNode], bool]] = {
    "text": lambda node: node.is_scalar and node.quoted,
    "flag": lambda node: node.tag == "bool",
    "list": lambda node: node.is_list,
    "map": lambda node: node.is_map,
    "number": lambda node: node.tag == "int",
}
_KIND_NAMES = {"text": "a text", "flag": "true or false", "list": "a list", "map": "an object", "number": "a number"}
_INVALID = re.compile("[\udc80-\udcff]")  # bytes that are no UTF-8, as surrogateescape decodes them


@once
def daemon_keys() -> Mapping[str, Any]:
    """See daemon_keys.yaml."""
    return load_package_file(__package__, "daemon_keys.yaml")


def find_in_daemon(source: SourceFile, target: RecipeTarget) -> list[Observation]:
    """Return all observations in a daemon.json."""
    if source.encoding == "latin-1":  # the text does not match its byte order mark
        return [Observation("not-utf-8", 0)]
    if invalid := _INVALID.search(source.text):
        return [Observation("not-utf-8", invalid.start())]
    found: list[Observation] = []
    if source.encoding != "utf-8":
        found = [Observation("utf-16", 0, {"encoding": source.encoding.upper()})]
    elif source.text.startswith(MARK):
        found = [Observation("byte-order-mark", 0, {}, (TextEdit(0, 1, ""),))]
    if not source.text.strip(MARK).strip():
        return [*found, Observation("empty-file", 0)]
    try:
        document = parse_json(source)
    except NotYaml as wrong:
        return [*found, Observation("not-json", wrong.offset, {"problem": str(wrong)})]
    if not document.is_map:
        words = {"name": "The file", "kind": _KIND_NAMES["map"]}
        return [*found, Observation("wrong-kind", document.start if document.node else 0, words)]
    found += find_duplicate_keys(document)
    return [*found, *run_rules(RULES, document), *apply_rows(document, target)]


def check_keys(document: YamlNode) -> Iterator[Observation]:
    """Report keys that Docker refuses, and values of the wrong type."""
    kinds = {name: kind for kind in _KINDS for name in daemon_keys()[kind].split()}
    either = daemon_keys()["either"].split()
    for name, value in document.pairs():
        offset = value.start
        if row := daemon_keys()["old"].get(name):
            edits = replace_value(value.key_text, row["to"]) if "to" in row else remove_entry(value, document)
            yield Observation("old-key", offset, {"name": name, "instead": row["instead"]}, edits)
        elif name not in kinds and name not in either:
            yield Observation(
                "unknown-key", offset, {"name": name, "near": did_you_mean_or_period(name, [*kinds, *either])}
            )
        elif name not in either and not _KINDS[kinds[name]](value):
            yield Observation("wrong-kind", offset, {"name": name, "kind": _KIND_NAMES[kinds[name]]})
        else:
            yield from _check_entries(name, value)


def _check_entries(name: str, value: YamlNode) -> Iterator[Observation]:
    """Report values in a list or object that do not have the one type that Docker allows there."""
    kind = next((kind for kind, names in daemon_keys()["within"].items() if name in names.split()), "")
    entries = [(f"{name}.{key}", each) for key, each in value.pairs()]
    entries += [(f"{name}[{at}]", each) for at, each in enumerate(value.items())]
    for path, each in entries if kind else ():
        if not _KINDS[kind](each):
            yield Observation("wrong-kind", each.start, {"name": path, "kind": _KIND_NAMES[kind]})


def apply_rows(document: YamlNode, target: RecipeTarget) -> Iterator[Observation]:
    """Yield the observations of rows about a key, or about each item of a list. A missing key is reported at
    the file.
    """

    def ask(question: str) -> tuple[Any]:
        return (target.path == "wsl2" if question == "wsl" else _answer(document.get(*question.split("."))),)

    for row, key in matching_key_rows(ROWS, ask):
        *around, _ = key.split(".")
        node = document.get(*key.split("."))
        yield _observation(row, node if node.node else document, document.get(*around))
    for row, _ in matching_rows((row for row in ROWS.values() if "each" in row.find), ask, "nothing"):
        listed = document.get(row.find["each"])
        yield from (
            _observation(row, each, listed) for each in listed.items() if matches(each.value, row.find["value"])
        )


def _answer(node: YamlNode) -> Any:
    """Return the value of a key; for a list its items, for an object its keys; None if the key is missing."""
    if node.is_scalar or not node:
        return node.value if node else None
    return tuple(name for name, _ in node.pairs()) or tuple(each.value for each in node.items())


def _observation(row: Row, node: YamlNode, around: YamlNode) -> Observation:
    edits = remove_entry(node, around) if row.mend.get("remove") else ()
    if "set" in row.mend:
        edits = replace_value(node.text, row.mend["set"])
    return Observation(row.code, node.start, {"value": node.value}, edits)


def check_runtimes(document: YamlNode) -> Iterator[Observation]:
    """Report a default runtime that is not declared."""
    default, declared = document.get("default-runtime"), document.get("runtimes")
    names = [name for name, _ in declared.pairs()]
    if default.value and default.value not in (*names, "runc", "io.containerd.runc.v2"):
        edits = _declare_nvidia(document) if default.value == "nvidia" and not declared else ()
        yield Observation("no-such-runtime", default.start, {"value": default.value}, edits)


def _declare_nvidia(document: YamlNode) -> Sequence[TextEdit]:
    """Return an edit that adds the entry of nvidia-ctk before the first key."""
    runtime = '"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}'
    first = next(iter(document.pairs()), None)
    if first is None:
        return ()
    source, offset = document.source, first[1].start
    start, _ = source.line_bounds(offset)
    indent = source.text[start:offset]
    between = f"{source.newline}{indent}" if not indent.strip() else " "
    return (TextEdit(offset, offset, f"{runtime},{between}"),)


def check_memory(document: YamlNode) -> Iterator[Observation]:
    """Check the default size of /dev/shm for all containers."""
    found = document.get("default-shm-size")
    size = docker_size(found.value) if found.value else None
    if size is not None and size < MIN_SHM:
        yield Observation(
            "small-default-shm", found.start, {"size": format_size(size)}, replace_value(found.text, "8G")
        )


def check_cdi(document: YamlNode) -> Iterator[Observation]:
    """Check that the CDI folders include the one that the container toolkit writes to."""
    folders = document.get("cdi-spec-dirs")
    named = {each.value.rstrip("/") for each in folders.items()}
    if named and not named & {"/var/run/cdi", "/run/cdi"}:
        yield Observation("cdi-folders-lack", folders.start, {"value": "/var/run/cdi"})


RULES = (check_keys, check_runtimes, check_memory, check_cdi)
