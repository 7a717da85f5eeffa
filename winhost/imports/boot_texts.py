"""`bcdedit` and msinfo32: how the firmware starts Windows, and in English whether Secure Boot is on.

bcdedit words its headings in the language of Windows, but the names of what it lists (path, device) and the files
are the same in each. What it shows of the firmware has no numbers of Boot####: only the firmware's variables have them.
"""

import re
from collections.abc import Mapping

from winhost.imports.observation import FileObservations, Misread, Observation, State, Unreported, Worth

BCD = re.compile(r"^path\s+\\\S.*\.(?:efi|exe)\s*$", re.MULTILINE | re.IGNORECASE)
_BY_UEFI = re.compile(r"^path\s+\\\S.*\.efi\s*$", re.MULTILINE | re.IGNORECASE)
INFO = re.compile(r"<MsInfo>|^BIOS Mode\t", re.MULTILINE)
_MODE = re.compile(r"BIOS Mode(?:\]\]></Item>\s*<Value><!\[CDATA\[|\t)(UEFI|Legacy)\b")
_MODE_ANYWHERE = re.compile(r"<!\[CDATA\[UEFI\]\]>")  # no other value of the summary is that word
_SECURE = re.compile(r"Secure Boot State(?:\]\]></Item>\s*<Value><!\[CDATA\[|\t)(On|Off|Unsupported)\b")
_NUMBERS = Unreported("the firmware's variables alone say it: winhost detect HOST")
_OTHERS = ("current", "next", "order", "entries")


def read_bcd(text: str) -> FileObservations:
    """Raises Misread."""
    if not BCD.search(text):
        raise Misread("names no loader")
    return _boot("uefi" if _BY_UEFI.search(text) else "bios", {})


def read_info(text: str) -> FileObservations:
    """Raises Misread."""
    mode, secure = _MODE.search(text), _SECURE.search(text)
    if mode is None and not _MODE_ANYWHERE.search(text):
        raise Misread("says nothing of the firmware's mode in English, and is not of a UEFI")
    kind = "bios" if mode and mode[1] == "Legacy" else "uefi"
    why = Unreported("msinfo32 does not say it")
    state: State = {
        "state": Observation(secure[1].lower()) if secure else why,
        "authorities": why,
        "revoked": why,
    }
    return _boot(kind, {"SecureBoot": {"": state}})


def _boot(kind: str, more: Mapping[str, Mapping[str, State]]) -> FileObservations:
    boot: State = {"kind": Observation(kind, Worth.EXACT), **dict.fromkeys(_OTHERS, _NUMBERS)}
    return FileObservations(resources={"FirmwareBoot": {"": boot}, **more})
