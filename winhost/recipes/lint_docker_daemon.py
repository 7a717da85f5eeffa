"""Docker's own settings, daemon.json, held against what engines need and what Docker refuses."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from winhost.findings.condition import matches, matching_rows
from winhost.findings.finding import Observation, Row, TextEdit, matching_key_rows, run_rules
from winhost.model.catalogue_file import load_package_file
from winhost.model.errors import did_you_mean_or_period
from winhost.model.once import once
from winhost.recipes.command_editor import replaced
from winhost.recipes.recipe_case import RecipeTarget
from winhost.recipes.recipe_rows import ROWS
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.written_sizes import docker_size, in_gib
from winhost.recipes.yaml_nodes import MARK, NotYaml, YamlNode, json_document, keys_twice, without
from winhost.serving.computed import SHM_LEAST

_KINDS: Mapping[str, Callable[[YamlNode], bool]] = {
    "text": lambda node: node.is_scalar and node.quoted,
    "flag": lambda node: node.tag == "bool",
    "list": lambda node: node.is_list,
    "map": lambda node: node.is_map,
    "number": lambda node: node.tag == "int",
}
_SAID = {"text": "a text", "flag": "true or false", "list": "a list", "map": "an object", "number": "a number"}
_INVALID = re.compile("[\udc80-\udcff]")  # bytes that are no UTF-8, as surrogateescape decodes them


@once
def daemon_keys() -> Mapping[str, Any]:
    """See daemon_keys.yaml."""
    return load_package_file(__package__, "daemon_keys.yaml")


def daemon_findings(source: SourceFile, target: RecipeTarget) -> list[Observation]:
    """All that is wrong in a daemon.json."""
    if source.encoding == "latin-1":  # the text is not what its byte order mark says
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
        document = json_document(source)
    except NotYaml as wrong:
        return [*found, Observation("not-json", wrong.offset, {"problem": str(wrong)})]
    if not document.is_map:
        words = {"name": "The file", "kind": _SAID["map"]}
        return [*found, Observation("wrong-kind", document.start if document.node else 0, words)]
    found += keys_twice(document)
    return [*found, *run_rules(RULES, document), *by_rows(document, target)]


def keys(document: YamlNode) -> Iterator[Observation]:
    """Keys that Docker refuses, and values of another kind."""
    kinds = {name: kind for kind in _KINDS for name in daemon_keys()[kind].split()}
    either = daemon_keys()["either"].split()
    for name, value in document.pairs():
        offset = value.start
        if row := daemon_keys()["old"].get(name):
            edits = replaced(value.key_text, row["to"]) if "to" in row else without(value, document)
            yield Observation("old-key", offset, {"name": name, "instead": row["instead"]}, edits)
        elif name not in kinds and name not in either:
            yield Observation(
                "unknown-key", offset, {"name": name, "near": did_you_mean_or_period(name, [*kinds, *either])}
            )
        elif name not in either and not _KINDS[kinds[name]](value):
            yield Observation("wrong-kind", offset, {"name": name, "kind": _SAID[kinds[name]]})
        else:
            yield from _within(name, value)


def _within(name: str, value: YamlNode) -> Iterator[Observation]:
    """Values inside of a list or an object, of which Docker takes one kind alone."""
    kind = next((kind for kind, names in daemon_keys()["within"].items() if name in names.split()), "")
    entries = [(f"{name}.{key}", each) for key, each in value.pairs()]
    entries += [(f"{name}[{at}]", each) for at, each in enumerate(value.items())]
    for path, each in entries if kind else ():
        if not _KINDS[kind](each):
            yield Observation("wrong-kind", each.start, {"name": path, "kind": _SAID[kind]})


def by_rows(document: YamlNode, target: RecipeTarget) -> Iterator[Observation]:
    """Yield the findings of rows about a key, or about each item of a list. What is not there is missed at the file."""

    def ask(question: str) -> tuple[Any]:
        return (target.path == "wsl2" if question == "wsl" else _answer(document.get(*question.split("."))),)

    for row, key in matching_key_rows(ROWS, ask):
        *around, _ = key.split(".")
        node = document.get(*key.split("."))
        yield _found(row, node if node.node else document, document.get(*around))
    for row, _ in matching_rows((row for row in ROWS.values() if "each" in row.find), ask, "nothing"):
        listed = document.get(row.find["each"])
        yield from (_found(row, each, listed) for each in listed.items() if matches(each.value, row.find["value"]))


def _answer(node: YamlNode) -> Any:
    """The value of a key as it is written: of a list its items, of an object its keys; None where it is not there."""
    if node.is_scalar or not node:
        return node.value if node else None
    return tuple(name for name, _ in node.pairs()) or tuple(each.value for each in node.items())


def _found(row: Row, node: YamlNode, around: YamlNode) -> Observation:
    edits = without(node, around) if row.mend.get("remove") else ()
    if "set" in row.mend:
        edits = replaced(node.text, row.mend["set"])
    return Observation(row.code, node.start, {"value": node.value}, edits)


def runtimes(document: YamlNode) -> Iterator[Observation]:
    """Find a default runtime that nobody declares."""
    default, declared = document.get("default-runtime"), document.get("runtimes")
    names = [name for name, _ in declared.pairs()]
    if default.value and default.value not in (*names, "runc", "io.containerd.runc.v2"):
        edits = _declared(document) if default.value == "nvidia" and not declared else ()
        yield Observation("no-such-runtime", default.start, {"value": default.value}, edits)


def _declared(document: YamlNode) -> Sequence[TextEdit]:
    """The entry that nvidia-ctk writes, behind the first key."""
    runtime = '"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}'
    first = next(iter(document.pairs()), None)
    if first is None:
        return ()
    source, offset = document.source, first[1].start
    start, _ = source.line_of(offset)
    indent = source.text[start:offset]
    between = f"{source.newline}{indent}" if not indent.strip() else " "
    return (TextEdit(offset, offset, f"{runtime},{between}"),)


def memory(document: YamlNode) -> Iterator[Observation]:
    """The memory at /dev/shm of all containers."""
    found = document.get("default-shm-size")
    size = docker_size(found.value) if found.value else None
    if size is not None and size < SHM_LEAST:
        yield Observation("small-default-shm", found.start, {"size": in_gib(size)}, replaced(found.text, "8G"))


def cdi(document: YamlNode) -> Iterator[Observation]:
    """Find folders of CDI without the one that the container toolkit writes to."""
    folders = document.get("cdi-spec-dirs")
    named = {each.value.rstrip("/") for each in folders.items()}
    if named and not named & {"/var/run/cdi", "/run/cdi"}:
        yield Observation("cdi-folders-lack", folders.start, {"value": "/var/run/cdi"})


RULES = (keys, runtimes, memory, cdi)
