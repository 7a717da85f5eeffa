"""Specifications of CDI: what gives containers their GPUs, held against the machine that they are for."""

import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping

from packaging.version import Version

from winhost.findings.finding import Found
from winhost.recipes.recipe_case import RecipeTarget, version_of
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.yaml_nodes import NotYaml, YamlNode, documents, keys_twice

FIRST, LAST = Version("0.3.0"), Version("1.1.0")
_DIGITS_SINCE = Version("0.5.0")
# By what of which a version can be too low: the list, and the field of its items; SPEC.md of 1.1.0.
_FIELDS_SINCE = (
    ("mounts", "type", Version("0.4.0")),
    ("deviceNodes", "hostPath", Version("0.5.0")),
    ("netDevices", "hostInterfaceName", Version("1.1.0")),
)
_EDITS_SINCE = (("additionalGids", Version("0.7.0")), ("intelRdt", Version("0.7.0")))
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_THERE = (r"(?s).+", "it has to be there")
# By the list and the field of its items: what a value has to be, as the library of CDI checks it.
_EDIT_RULES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "hooks": {"hookName": ("|".join(_HOOKS), f"it is one of {', '.join(_HOOKS)}"), "path": _THERE},
    "deviceNodes": {
        "path": _THERE,
        "type": ("[bcup]?", "it is b, c, u or p"),
        "permissions": ("[rwm]*", "it has no letters but r, w and m"),
    },
    "mounts": {"hostPath": _THERE, "containerPath": _THERE},
}
_KIND = re.compile(r"[A-Za-z][\w.-]*[A-Za-z0-9]/[A-Za-z][\w.-]*")
_GPU = "nvidia.com/gpu"
_DRIVER = re.compile(r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)$")
_LIBRARIES = ("/usr/lib/wsl", "/usr/lib/wsl/lib")
_STORE = ("/usr/lib/wsl/", "/dev/dxg")


def cdi_findings(source: SourceFile, target: RecipeTarget) -> Iterator[Found]:
    """All that is wrong in a specification."""
    try:
        found = documents(SourceFile(source.text.replace("\t", " "), source.encoding, source.bom))
    except NotYaml as wrong:
        yield Found("unreadable", wrong.place, {"problem": str(wrong)})
        return
    document = YamlNode(source, found[0].node) if found else YamlNode(source, None)
    yield from (Found(slip.code, slip.start, slip.words) for slip in keys_twice(document))
    version = yield from _version(document)
    yield from _kind(document)
    yield from _devices(document, version)
    yield from _fields(document, version)
    yield from _bad_edits(document)
    yield from _files(document, target)


def _version(document: YamlNode) -> Generator[Found, None, Version | None]:
    """Yields what is wrong with it, and returns it."""
    found = document.get("cdiVersion")
    if not found.value:
        yield Found("no-cdi-version", document.start if document.node else 0)
        return None
    if found.tag in ("float", "int"):
        yield Found("cdi-version-number", found.start, {"value": found.value})
        return None
    version = version_of(found.value)
    if version is None or not FIRST <= version <= LAST:
        yield Found("cdi-version-unknown", found.start, {"value": found.value, "first": FIRST, "last": LAST})
    return version


def _kind(document: YamlNode) -> Iterator[Found]:
    found = document.get("kind")
    if not _KIND.fullmatch(found.value):
        shown = f", not {found.value}" if found.value else ""
        yield Found("no-cdi-kind", found.start if found.node else 0, {"found": shown})
    elif found.value != _GPU:
        yield Found("other-kind", found.start, {"value": found.value})


def _devices(document: YamlNode, version: Version | None) -> Iterator[Found]:
    found = document.get("devices")
    if not found.items():
        yield Found("no-cdi-devices", found.start if found.node else 0)
        return
    names = Counter(each.get("name").value for each in found.items())
    if "all" not in names and document.get("kind").value == _GPU:
        yield Found("no-device-all", found.start, {"asked": "winhost's profiles and most recipes"})
    for each in found.items():
        name = each.get("name")
        words = {"name": name.value or "nothing"}
        if names[name.value] > 1:
            names[name.value] = 0
            yield Found("device-twice", each.start, words)
        if name.value[:1].isdigit() and version is not None and version < _DIGITS_SINCE:
            yield Found("device-begins-with-digit", each.start, words)
        if not each.get("containerEdits") and not document.get("containerEdits"):
            yield Found("device-without-edits", each.start, words)


def _fields(document: YamlNode, version: Version | None) -> Iterator[Found]:
    """Fields of a later version than the file says, each once."""
    used = [
        (name, since, node) for list_name, name, since in _FIELDS_SINCE for node in _paths(document, list_name, name)
    ]
    used += [(name, since, edits.get(name)) for edits in _edits(document) for name, since in _EDITS_SINCE]
    told = set()
    for name, since, node in used:
        if version is not None and version < since and node.node is not None and name not in told:
            told.add(name)
            yield Found("cdi-version-low", node.start, {"field": name, "needed": since, "value": version})


def _bad_edits(document: YamlNode) -> Iterator[Found]:
    """Values for which the specification is refused as a whole."""
    for edits in _edits(document):
        for list_name, rules in _EDIT_RULES.items():
            for each in edits.get(list_name).items():
                for field, (pattern, rule) in rules.items():
                    value = each.get(field)
                    if not re.fullmatch(pattern, value.value) and not (value.node is not None and not value.is_scalar):
                        words = {"field": f"{field} of {list_name}", "value": value.value or "empty", "rule": rule}
                        yield Found("cdi-bad-edit", value.start if value.node else each.start, words)
        for each in edits.get("env").items():
            if not re.match(r"[^=]+=", each.value):
                words = {"field": "A variable", "value": each.value or "empty", "rule": "it is written NAME=VALUE"}
                yield Found("cdi-bad-edit", each.start, words)


def _edits(document: YamlNode) -> list[YamlNode]:
    every = [document.get("containerEdits")]
    return [*every, *(each.get("containerEdits") for each in document.get("devices").items())]


def _paths(document: YamlNode, list_name: str, *names: str) -> Iterator[YamlNode]:
    for edits in _edits(document):
        for each in edits.get(list_name).items():
            yield from (found for name in names if (found := each.get(name)).value)


def _files(document: YamlNode, target: RecipeTarget) -> Iterator[Found]:
    nodes = list(_paths(document, "deviceNodes", "path", "hostPath"))
    mounts = list(_paths(document, "mounts", "hostPath", "containerPath"))
    for each in (*nodes, *mounts, *_paths(document, "hooks", "path")):
        if not each.value.startswith("/"):
            yield Found("not-absolute-path", each.start, {"value": each.value})
    if not document.get("devices").items() or document.get("kind").value not in (_GPU, ""):
        return  # what another maker's devices need is not known
    folders = [each for each in mounts if ".so" not in each.value.rpartition("/")[2]]  # whatever is in them
    if not folders and not any("libcuda" in each.value for each in mounts):
        yield Found("no-driver-library", document.start)
    yield from _of_driver(mounts, target)
    if target.path == "wsl2":
        yield from _of_wsl(document, nodes, mounts, folders)
    elif target.path is not None and (odd := next((n for n in (*nodes, *mounts) if n.value.startswith(_STORE)), None)):
        yield Found("only-for-wsl", odd.start, {"value": odd.value})


def _of_driver(mounts: list[YamlNode], target: RecipeTarget) -> Iterator[Found]:
    """Compare the driver of the mounted files with the target's. Files of WSL do not name theirs."""
    versions = {found[1]: each for each in mounts if (found := _DRIVER.search(each.value))}
    if len(versions) > 1:
        first = next(iter(versions.values()))
        yield Found("cdi-of-two-drivers", first.start, {"value": ", ".join(sorted(versions))})
    for version, each in versions.items():
        driver = target.driver if target.path != "wsl2" else None
        if driver is not None and Version(version).release[: len(driver.release)] != driver.release:
            yield Found("cdi-of-other-driver", each.start, {"value": version, "driver": driver})


def _of_wsl(
    document: YamlNode, nodes: list[YamlNode], mounts: list[YamlNode], folders: list[YamlNode]
) -> Iterator[Found]:
    if odd := next((each for each in nodes if each.value.startswith("/dev/nvidia")), None):
        yield Found("not-for-wsl", odd.start, {"value": odd.value})
    elif not any(each.value == "/dev/dxg" for each in (*nodes, *mounts)):
        yield Found("no-dxg", document.start)
    elif not any("libdxcore" in each.value or each.value.rstrip("/") in _LIBRARIES for each in mounts):
        yield Found("no-dxcore", document.start)
    elif not any("/drivers" in each.value or each.value.rstrip("/") in _LIBRARIES for each in folders) and not any(
        "libnvidia-encode" in each.value or "libnvcuvid" in each.value for each in mounts
    ):
        yield Found("no-video-libraries", document.start)
