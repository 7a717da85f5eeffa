"""Judges by the security descriptor who can write a file on Windows."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["OWN", "SOME", "UNTOLD", "EVERYONE"]
"""The name of an Openness of `winhost.model.files`."""

_ALLOW_ENTRY = re.compile(r"\((A|XA|OA);([A-Z]*);([^;]*);[^;]*;[^;]*;([^;)]+)")
_CONTROL = 0x40000 | 0x80000 | 0x10000000  # to change rights or owner, or everything
# By kind: the access rights that allow to change the file or folder, as bits and as abbreviations in SDDL. For a
# folder, deleting its files is one of them.
_WRITES = {
    "file": (_CONTROL | 0x2 | 0x4 | 0x10000 | 0x40000000, {"FA", "FW", "GA", "GW", "WD", "WO", "SD", "DC", "LC"})
}
_WRITES["folder"] = (_CONTROL | 0x40, {"FA", "GA", "WD", "WO", "DT"})
_ADMINISTRATORS = {
    *("BA", "SY", "LA", "DA", "EA", "CO", "OW", "S-1-5-18", "S-1-5-32-544", "S-1-3-4"),
    "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464",  # TrustedInstaller
}
_PUBLIC_TRUSTEES = {
    "WD": "everyone",
    "AU": "every account",
    "BU": "every user",
    "IU": "every user",
    "AN": "everyone",
    "BG": "guests",
}
_PUBLIC_TRUSTEES |= {
    "S-1-1-0": "everyone",
    "S-1-5-11": "every account",
    "S-1-5-32-545": "every user",
    "S-1-5-4": "every user",
}


def judge_descriptor(text: str, own: str, kind: str = "file") -> tuple[Level, str]:
    """Judge a security descriptor in SDDL. own: the SID of the account that runs winhost.

    Unverified: written from Microsoft's documentation of SDDL, and not tested on Windows.
    """
    owner, listed = re.search(r"O:(S-[\d-]+|[A-Z]{2})", text), text.partition("D:")[2].partition("S:(")[0]
    owner_sid = owner[1] if owner else ""
    if "NO_ACCESS_CONTROL" in listed:
        return ("EVERYONE", "has no access list: everyone can write it")
    trusted = {own, *_ADMINISTRATORS}
    found: tuple[Level, str] = ("OWN", "")
    if owner_sid not in trusted:
        found = ("SOME", f"belongs to another account ({owner_sid or 'not told'})")
    for _, flags, rights, who in _ALLOW_ENTRY.findall(listed):
        if who in trusted or "IO" in re.findall("..", flags) or not _writes(rights, kind):
            continue
        if who in _PUBLIC_TRUSTEES:
            return ("EVERYONE", f"can be written by {_PUBLIC_TRUSTEES[who]}")
        found = ("SOME", f"can be written by others ({who})")
    return found


def _writes(rights: str, kind: str) -> bool:
    bits, words = _WRITES[kind]
    if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", rights):
        return bool(int(rights, 0) & bits)
    return bool(words & {*re.findall("..", rights)})


def judge_windows_file(path: Path) -> Iterator[tuple[Path, Level, str]]:
    """Yield the judgement of the file and its folder. Rights of folders above are inherited, so that these two have
    them.
    """
    for each in (path, path.resolve(), path.resolve().parent):
        try:
            yield each, *judge_descriptor(*_descriptor(each), "folder" if each.is_dir() else "file")
        except (OSError, AttributeError):
            yield each, "UNTOLD", "does not tell who can write it"


def _descriptor(path: Path) -> tuple[str, str]:
    """Return the security descriptor of a file in SDDL, and the SID of the account that runs winhost. Raises
    OSError.
    """
    import ctypes

    load = getattr(ctypes, "WinDLL")  # noqa: B009 - only Windows has it
    advapi, kernel = load("advapi32", use_last_error=True), load("kernel32", use_last_error=True)

    def check(succeeded: int) -> None:
        if not succeeded:
            raise OSError(ctypes.get_last_error(), "the access list cannot be read")  # type: ignore[attr-defined,unused-ignore]

    def take_text(text: ctypes.c_wchar_p) -> str:
        value = text.value or ""
        kernel.LocalFree(text)
        return value

    owner_and_list, needed = 1 | 4, ctypes.c_uint32()
    advapi.GetFileSecurityW(str(path), owner_and_list, None, 0, ctypes.byref(needed))
    buffer = ctypes.create_string_buffer(needed.value)
    check(advapi.GetFileSecurityW(str(path), owner_and_list, buffer, needed, ctypes.byref(needed)))
    text = ctypes.c_wchar_p()
    convert = advapi.ConvertSecurityDescriptorToStringSecurityDescriptorW
    check(convert(buffer, 1, owner_and_list, ctypes.byref(text), None))
    descriptor = take_text(text)

    token = ctypes.c_void_p()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    check(advapi.OpenProcessToken(ctypes.c_void_p(kernel.GetCurrentProcess()), 8, ctypes.byref(token)))
    try:
        advapi.GetTokenInformation(token, 1, None, 0, ctypes.byref(needed))
        user = ctypes.create_string_buffer(needed.value)
        check(advapi.GetTokenInformation(token, 1, user, needed, ctypes.byref(needed)))
        sid = ctypes.c_void_p(ctypes.cast(user, ctypes.POINTER(ctypes.c_void_p))[0])
        check(advapi.ConvertSidToStringSidW(sid, ctypes.byref(text)))
        return descriptor, take_text(text)
    finally:
        kernel.CloseHandle(token)
