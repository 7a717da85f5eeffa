"""`manage-bde -protectors -get C:` in any language, and `manage-bde -status` in English: BitLocker of a volume.

The first one has the secrets that open a volume. They are never kept: a protector is read by its GUID, and its kind by
the form of what follows. In other languages only forms and GUIDs are read.
"""

import re
from collections.abc import Iterator

from winhost.core.answers import Json
from winhost.imports.observation import FileObservations, Misread, Observation, State, Unreported, Value

_GUID = r"\{([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\}"
PROTECTOR = re.compile(rf"^ {{4}}\S.*\r?\n {{6}}\S+\s*{_GUID}", re.MULTILINE)
"""A protector: its kind, and in the next line its id."""
STATUS = re.compile(r"^ {4}Conversion Status: {1,40}\S", re.MULTILINE)
VOLUME = re.compile(r"^\S[^\r\n:]{0,60} ([A-Z]:) \[", re.MULTILINE)
_PASSWORD = re.compile(r"^\s*\d{6}(?:-\d{6}){7}\s*$", re.MULTILINE)
_REGISTERS = re.compile(r"^\s*(\d{1,2}(?:, \d{1,2})*)\s*$", re.MULTILINE)
_KEY_FILE = re.compile(r"\.BEK\b", re.IGNORECASE)
_ENGLISH = re.compile(r"^ {4}([A-Z][A-Za-z ]{2,30}): {1,40}(\S.*?)\s*$", re.MULTILINE)
_CONVERSIONS = {"Used Space Only Encrypted": "fully-encrypted"}
_ELSEWHERE = Unreported("manage-bde -status says it, in English")


def read(text: str) -> FileObservations:
    """Raises Misread."""
    states = dict(_volumes(text))
    if not states:
        raise Misread("names no volume")
    return FileObservations(resources={"BitLocker": states})


def _volumes(text: str) -> Iterator[tuple[str, State]]:
    places = [*VOLUME.finditer(text)]
    for place, after in zip(places, [*places[1:], None], strict=False):
        yield place[1], _volume(text[place.end() : after.start() if after else len(text)])


def _volume(section: str) -> State:
    if STATUS.search(section):
        return _status(dict(_ENGLISH.findall(section)))
    heads = [*PROTECTOR.finditer(section)]
    protectors, registers = [], set[int]()
    for head, after in zip(heads, [*heads[1:], None], strict=False):
        block = section[head.start() : after.start() if after else len(section)]
        found = _REGISTERS.search(block)
        registers |= {int(each) for each in found[1].split(", ")} if found else set()
        protectors.append({"id": head[1].lower(), "kind": _kind(block, bound=found is not None)})
    return {
        "protectors": Observation(protectors),
        "pcrs": Observation(sorted(registers)),
        "protection": _ELSEWHERE,
        "conversion": _ELSEWHERE,
        "percentage": _ELSEWHERE,
    }


def _kind(block: str, *, bound: bool) -> str:
    if _PASSWORD.search(block) or block.lstrip().startswith("Numerical Password:"):
        return "recovery-password"
    if bound or block.lstrip().startswith("TPM"):
        return "tpm-pin" if "PIN" in block.lstrip().partition("\n")[0] else "tpm"
    return "external-key" if _KEY_FILE.search(block) else "unknown"


def _status(told: dict[str, str]) -> State:
    conversion = told.get("Conversion Status", "")
    percentage = re.match(r"(\d{1,3})(?:[.,]\d+)?%", told.get("Percentage Encrypted", ""))
    return {
        "conversion": _known(_CONVERSIONS.get(conversion, conversion.lower().replace(" ", "-"))),
        "percentage": _known(int(percentage[1]) if percentage else None),
        "protection": _known({"Protection On": "on", "Protection Off": "off"}.get(told.get("Protection Status", ""))),
        "protectors": Unreported("manage-bde -protectors -get says it"),
        "pcrs": Unreported("manage-bde -protectors -get says it"),
    }


def _known(value: Json) -> Value:
    return _ELSEWHERE if value in (None, "") else Observation(value)
