"""Lints CDI specifications, which give containers their GPUs, against the target machine."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.findings.condition import version_of
from winhost.findings.finding import Observation, run_rules
from winhost.recipes.recipe_case import RecipeTarget
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.yaml_nodes import NotYaml, YamlNode, find_duplicate_keys, parse_documents

FIRST, LAST = Version("0.3.0"), Version("1.1.0")
_DIGITS_SINCE = Version("0.5.0")
# The first version with each field: the list, the field of its items, the version. Source: SPEC.md of 1.1.0.
_FIELDS_SINCE = (
    ("mounts", "type", Version("0.4.0")),
    ("deviceNodes", "hostPath", Version("0.5.0")),
    ("netDevices", "hostInterfaceName", Version("1.1.0")),
)
_EDITS_SINCE = (("additionalGids", Version("0.7.0")), ("intelRdt", Version("0.7.0")))
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_NOT_EMPTY = (r"(?s).+", "it has to be there")
# By list and field of its items: the pattern of valid values, as the CDI library checks them, and its description.
_EDIT_RULES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "hooks": {"hookName": ("|".join(_HOOKS), f"it is one of {', '.join(_HOOKS)}"), "path": _NOT_EMPTY},
    "deviceNodes": {
        "path": _NOT_EMPTY,
        "type": ("[bcup]?", "it is b, c, u or p"),
        "permissions": ("[rwm]*", "it has no letters but r, w and m"),
    },
    "mounts": {"hostPath": _NOT_EMPTY, "containerPath": _NOT_EMPTY},
}
_KIND = re.compile(r"[A-Za-z][\w.-]*[A-Za-z0-9]/[A-Za-z][\w.-]*")
_GPU = "nvidia.com/gpu"
_DRIVER = re.compile(r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)$")
_LIBRARIES = ("/usr/lib/wsl", "/usr/lib/wsl/lib")
_WSL_PATHS = ("/usr/lib/wsl/", "/dev/dxg")


@dataclass(frozen=True)
class CdiCase:
    """A specification and its target machine."""

    document: YamlNode
    target: RecipeTarget

    @cached_property
    def version(self) -> Version | None:
        """The CDI version; None if the value is no version."""
        found = self.document.get("cdiVersion")
        return version_of(found.value) if found.value and found.tag not in ("float", "int") else None

    @cached_property
    def nodes(self) -> list[YamlNode]:
        """The paths of device nodes."""
        return list(_paths(self.document, "deviceNodes", "path", "hostPath"))

    @cached_property
    def mounts(self) -> list[YamlNode]:
        """The paths of mounts, in containers and on the host."""
        return list(_paths(self.document, "mounts", "hostPath", "containerPath"))

    @cached_property
    def folders(self) -> list[YamlNode]:
        """The mounts of folders."""
        return [each for each in self.mounts if ".so" not in each.value.rpartition("/")[2]]


def find_in_cdi(source: SourceFile, target: RecipeTarget) -> list[Observation]:
    """Return all observations in a specification."""
    try:
        found = parse_documents(SourceFile(source.text.replace("\t", " "), source.encoding, source.bom))
    except NotYaml as wrong:
        return [Observation("unreadable", wrong.offset, {"problem": str(wrong)})]
    case = CdiCase(YamlNode(source, found[0].node if found else None), target)
    # The requirements of other makers' devices are not known.
    known = case.document.get("devices").items() and case.document.get("kind").value in (_GPU, "")
    return [*find_duplicate_keys(case.document), *run_rules(RULES if known else RULES_OF_ANY_KIND, case)]


def check_versions(case: CdiCase) -> Iterator[Observation]:
    """Check that the version is present, a text, and known."""
    found = case.document.get("cdiVersion")
    if not found.value:
        yield Observation("no-cdi-version", case.document.start if case.document.node else 0)
    elif found.tag in ("float", "int"):
        yield Observation("cdi-version-number", found.start, {"value": found.value})
    elif case.version is None or not FIRST <= case.version <= LAST:
        yield Observation("cdi-version-unknown", found.start, {"value": found.value, "first": FIRST, "last": LAST})


def check_kind(case: CdiCase) -> Iterator[Observation]:
    """Check that the kind of device is NVIDIA's GPUs."""
    found = case.document.get("kind")
    if not _KIND.fullmatch(found.value):
        shown = f", not {found.value}" if found.value else ""
        yield Observation("no-cdi-kind", found.start if found.node else 0, {"found": shown})
    elif found.value != _GPU:
        yield Observation("other-kind", found.start, {"value": found.value})


def check_devices(case: CdiCase) -> Iterator[Observation]:
    """Check that each device has a unique name, and changes something in a container."""
    document, version = case.document, case.version
    found = document.get("devices")
    if not found.items():
        yield Observation("no-cdi-devices", found.start if found.node else 0)
        return
    names = Counter(each.get("name").value for each in found.items())
    if "all" not in names and document.get("kind").value == _GPU:
        yield Observation("no-device-all", found.start, {"asked": "winhost's profiles and most recipes"})
    for each in found.items():
        name = each.get("name")
        words = {"name": name.value or "nothing"}
        if names[name.value] > 1:
            names[name.value] = 0
            yield Observation("device-twice", each.start, words)
        if name.value[:1].isdigit() and version is not None and version < _DIGITS_SINCE:
            yield Observation("device-begins-with-digit", each.start, words)
        if not each.get("containerEdits") and not document.get("containerEdits"):
            yield Observation("device-without-edits", each.start, words)


def check_fields(case: CdiCase) -> Iterator[Observation]:
    """Report fields of a later version than that of the file, each once."""
    document, version = case.document, case.version
    used = [
        (name, since, node) for list_name, name, since in _FIELDS_SINCE for node in _paths(document, list_name, name)
    ]
    used += [(name, since, edits.get(name)) for edits in _edits(document) for name, since in _EDITS_SINCE]
    reported = set()
    for name, since, node in used:
        if version is not None and version < since and node.node is not None and name not in reported:
            reported.add(name)
            yield Observation("cdi-version-low", node.start, {"field": name, "needed": since, "value": version})


def check_paths(case: CdiCase) -> Iterator[Observation]:
    """Report paths that are not absolute."""
    for each in (*case.nodes, *case.mounts, *_paths(case.document, "hooks", "path")):
        if not each.value.startswith("/"):
            yield Observation("not-absolute-path", each.start, {"value": each.value})


def check_edits(case: CdiCase) -> Iterator[Observation]:
    """Report values for which the whole specification is refused."""
    for edits in _edits(case.document):
        for list_name, rules in _EDIT_RULES.items():
            for each in edits.get(list_name).items():
                for field, (pattern, rule) in rules.items():
                    value = each.get(field)
                    if not re.fullmatch(pattern, value.value) and not (value.node is not None and not value.is_scalar):
                        words = {"field": f"{field} of {list_name}", "value": value.value or "empty", "rule": rule}
                        yield Observation("cdi-bad-edit", value.start if value.node else each.start, words)
        for each in edits.get("env").items():
            if not re.match(r"[^=]+=", each.value):
                what = "what stands here" if each.value else "empty"  # it may be a secret
                words = {"field": "A variable", "value": what, "rule": "it is written NAME=VALUE"}
                yield Observation("cdi-bad-edit", each.start, words)


def _edits(document: YamlNode) -> list[YamlNode]:
    every = [document.get("containerEdits")]
    return [*every, *(each.get("containerEdits") for each in document.get("devices").items())]


def _paths(document: YamlNode, list_name: str, *names: str) -> Iterator[YamlNode]:
    for edits in _edits(document):
        for each in edits.get(list_name).items():
            yield from (found for name in names if (found := each.get(name)).value)


def check_driver(case: CdiCase) -> Iterator[Observation]:
    """Compare the driver version of the mounted files with that of the target. Files of WSL have no version."""
    if not case.folders and not any("libcuda" in each.value for each in case.mounts):
        yield Observation("no-driver-library", case.document.start)
    found = {match[1]: each for each in case.mounts if (match := _DRIVER.search(each.value))}
    if len(found) > 1:
        first = next(iter(found.values()))
        yield Observation("cdi-of-two-drivers", first.start, {"value": ", ".join(sorted(found))})
    loaded = case.target.driver if case.target.path != "wsl2" else None
    for version, each in found.items():
        if loaded is not None and Version(version).release[: len(loaded.release)] != loaded.release:
            yield Observation("cdi-of-other-driver", each.start, {"value": version, "driver": loaded})


def check_wsl(case: CdiCase) -> Iterator[Observation]:
    """Check that a specification for WSL has its device and libraries, and that others do not."""
    sources = (*case.nodes, *case.mounts)
    if case.target.path == "wsl2":
        yield from _missing_in_wsl(case)
    elif case.target.path and (odd := next((each for each in sources if each.value.startswith(_WSL_PATHS)), None)):
        yield Observation("only-for-wsl", odd.start, {"value": odd.value})


def _missing_in_wsl(case: CdiCase) -> Iterator[Observation]:
    document, nodes, mounts = case.document, case.nodes, case.mounts
    if odd := next((each for each in nodes if each.value.startswith("/dev/nvidia")), None):
        yield Observation("not-for-wsl", odd.start, {"value": odd.value})
    elif not any(each.value == "/dev/dxg" for each in (*nodes, *mounts)):
        yield Observation("no-dxg", document.start)
    elif not any("libdxcore" in each.value or each.value.rstrip("/") in _LIBRARIES for each in mounts):
        yield Observation("no-dxcore", document.start)
    elif not any("/drivers" in each.value or each.value.rstrip("/") in _LIBRARIES for each in case.folders) and not any(
        "libnvidia-encode" in each.value or "libnvcuvid" in each.value for each in mounts
    ):
        yield Observation("no-video-libraries", document.start)


RULES_OF_ANY_KIND = (check_versions, check_kind, check_devices, check_fields, check_edits, check_paths)
RULES = (*RULES_OF_ANY_KIND, check_driver, check_wsl)
