"""`manage-bde -protectors -get C:` in any language, and `manage-bde -status` in English: BitLocker of a volume.

The first one has the secrets that open a volume. They are never kept: a protector is read by its GUID, and its kind by
the form of what follows. In other languages only forms and GUIDs are read.
"""

import re

from winhost.imports.observation import FileObservations, Misread, Observation, State, Unreported, sections, told

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
    states = {volume[1]: _volume(section) for volume, section in sections(VOLUME, text)}
    if not states:
        raise Misread("names no volume")
    return FileObservations(resources={"BitLocker": states})


def _volume(section: str) -> State:
    if STATUS.search(section):
        return _status(dict(_ENGLISH.findall(section)))
    protectors, registers = [], set[int]()
    for head, behind in sections(PROTECTOR, section):
        block = head[0] + behind
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


def _status(english: dict[str, str]) -> State:
    conversion = english.get("Conversion Status", "")
    percentage = re.match(r"(\d{1,3})(?:[.,]\d+)?%", english.get("Percentage Encrypted", ""))
    protection = {"Protection On": "on", "Protection Off": "off"}.get(english.get("Protection Status", ""))
    return {
        "conversion": told(_CONVERSIONS.get(conversion, conversion.lower().replace(" ", "-")), _ELSEWHERE),
        "percentage": told(int(percentage[1]) if percentage else None, _ELSEWHERE),
        "protection": told(protection, _ELSEWHERE),
        "protectors": Unreported("manage-bde -protectors -get says it"),
        "pcrs": Unreported("manage-bde -protectors -get says it"),
    }
