"""Docker's own settings, daemon.json, held against what engines need and what Docker refuses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from winhost.findings.finding import Found, TextEdit, run
from winhost.model.catalogue_file import load_beside
from winhost.model.errors import near_or_end
from winhost.model.once import once
from winhost.recipes.command_editor import replaced
from winhost.recipes.recipe_case import RecipeTarget
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
_GONE = ("aufs", "devicemapper", "overlay")
_CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")


@once
def daemon_keys() -> Mapping[str, Any]:
    """See daemon_keys.yaml."""
    return load_beside(__package__, "daemon_keys.yaml")


def daemon_findings(source: SourceFile, target: RecipeTarget) -> list[Found]:
    """All that is wrong in a daemon.json."""
    found: list[Found] = []
    if source.encoding != "utf-8":
        found = [Found("not-utf-8", 0, {"encoding": source.encoding.upper()})]
    elif source.text.startswith(MARK):
        found = [Found("byte-order-mark", 0, {}, (TextEdit(0, 1, ""),))]
    try:
        document = json_document(source)
    except NotYaml as wrong:
        return [*found, Found("not-json", wrong.place, {"problem": str(wrong)})]
    if not document.is_map:
        words = {"name": "The file", "kind": _SAID["map"]}
        return [*found, Found("wrong-kind", document.start if document.node else 0, words)]
    found += keys_twice(document)
    return [*found, *run((*RULES, on_wsl) if target.path == "wsl2" else RULES, document)]


def keys(document: YamlNode) -> Iterator[Found]:
    """Keys that Docker refuses, and values of another kind."""
    kinds = {name: kind for kind in _KINDS for name in daemon_keys()[kind].split()}
    either = daemon_keys()["either"].split()
    for name, value in document.pairs():
        place = value.start
        if row := daemon_keys()["old"].get(name):
            edits = replaced(value.key_text, row["to"]) if "to" in row else without(value, document)
            yield Found("old-key", place, {"name": name, "instead": row["instead"]}, edits)
        elif name not in kinds and name not in either:
            yield Found("unknown-key", place, {"name": name, "near": near_or_end(name, [*kinds, *either])})
        elif name not in either and not _KINDS[kinds[name]](value):
            yield Found("wrong-kind", place, {"name": name, "kind": _SAID[kinds[name]]})
        else:
            yield from _within(name, value)


def _within(name: str, value: YamlNode) -> Iterator[Found]:
    """Values inside of a list or an object, of which Docker takes one kind alone."""
    kind = next((kind for kind, names in daemon_keys()["within"].items() if name in names.split()), "")
    entries = [(f"{name}.{key}", each) for key, each in value.pairs()]
    entries += [(f"{name}[{at}]", each) for at, each in enumerate(value.items())]
    for path, each in entries if kind else ():
        if not _KINDS[kind](each):
            yield Found("wrong-kind", each.start, {"name": path, "kind": _SAID[kind]})


def hosts(document: YamlNode) -> Iterator[Found]:
    """Sockets: at one place only, and never open without TLS."""
    found = document.get("hosts")
    if not found.items():
        return
    yield Found("hosts-in-file", found.start)
    if document.get("tlsverify").value == "true":
        return
    for each in found.items():
        if each.value.startswith("tcp://") and not each.value.startswith(("tcp://127.", "tcp://localhost")):
            yield Found("hosts-open", each.start, {"value": each.value})


def runtimes(document: YamlNode) -> Iterator[Found]:
    """The runtime of NVIDIA, and who manages cgroups with it."""
    default, declared = document.get("default-runtime"), document.get("runtimes")
    names = [name for name, _ in declared.pairs()]
    if default.value and default.value not in (*names, "runc", "io.containerd.runc.v2"):
        edits = _declared(document) if default.value == "nvidia" and not declared else ()
        yield Found("no-such-runtime", default.start, {"value": default.value}, edits)
    path = declared.get("nvidia", "path")
    if path.value and not path.value.endswith(("nvidia-container-runtime", "nvidia-container-runtime.cdi")):
        yield Found(
            "runtime-elsewhere", path.start, {"value": path.value}, replaced(path.text, "nvidia-container-runtime")
        )
    if "nvidia" not in names and not default.value:
        yield Found("no-gpu-runtime", document.start)
    for option in document.get("exec-opts").items():
        if option.value == "native.cgroupdriver=systemd" and "nvidia" in names:
            edits = replaced(option.text, "native.cgroupdriver=cgroupfs")
            yield Found("gpus-lost-on-reload", option.start, {}, edits)


def _declared(document: YamlNode) -> Sequence[TextEdit]:
    """The entry that nvidia-ctk writes, behind the first key."""
    runtime = '"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}'
    first = next(iter(document.pairs()), None)
    if first is None:
        return ()
    source, place = document.source, first[1].start
    start, _ = source.line_of(place)
    indent = source.text[start:place]
    between = f"{source.newline}{indent}" if not indent.strip() else " "
    return (TextEdit(place, place, f"{runtime},{between}"),)


def memory(document: YamlNode) -> Iterator[Found]:
    """The memory at /dev/shm of all containers."""
    found = document.get("default-shm-size")
    size = docker_size(found.value) if found.value else None
    if size is not None and size < SHM_LEAST:
        yield Found("small-default-shm", found.start, {"size": in_gib(size)}, replaced(found.text, "8G"))


def cdi(document: YamlNode) -> Iterator[Found]:
    """Find a daemon that does not know CDI devices."""
    found, folders = document.get("features", "cdi"), document.get("cdi-spec-dirs")
    if found.value == "false":
        yield Found("cdi-turned-off", found.start, {}, replaced(found.text, "true"))
    elif found.node is None:
        yield Found("cdi-not-turned-on", document.start)
    named = [each.value.rstrip("/") for each in folders.items()]
    if named and not set(named) & {"/var/run/cdi", "/run/cdi"}:
        yield Found("cdi-folders-lack", folders.start, {"value": _CDI_FOLDERS[1]})


def other(document: YamlNode) -> Iterator[Found]:
    """Logs, registries, storage, networks."""
    driver, limits = document.get("log-driver"), document.get("log-opts", "max-size")
    if driver.value in ("", "json-file") and limits.node is None:
        yield Found("logs-without-end", driver.start if driver else document.start)
    for each in document.get("insecure-registries").items():
        if not each.value.startswith(("127.", "localhost")):
            yield Found("registry-without-tls", each.start, {"value": each.value})
    storage = document.get("storage-driver")
    if storage.value in _GONE:
        yield Found("storage-driver-gone", storage.start, {"value": storage.value}, without(storage, document))
    tables, debug = document.get("iptables"), document.get("debug")
    if tables.value == "false":
        yield Found("no-iptables", tables.start)
    if debug.value == "true":
        yield Found("debug-left-on", debug.start, {}, without(debug, document))


def on_wsl(document: YamlNode) -> Iterator[Found]:
    """Find data on a disk of Windows."""
    root = document.get("data-root")
    if root.value.startswith("/mnt/") and root.value[6:7] in ("", "/"):
        yield Found("data-on-windows", root.start, {"value": root.value})


RULES = (keys, hosts, runtimes, memory, cdi, other)
