"""Judge who can write a file of Windows, by its security descriptor."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["OWN", "SOME", "UNTOLD", "EVERYONE"]
"""The name of an Openness of `winhost.model.files`."""

_ALLOW_ENTRY = re.compile(r"\((A|XA|OA);([A-Z]*);([^;]*);[^;]*;[^;]*;([^;)]+)")
_CONTROL = 0x40000 | 0x80000 | 0x10000000  # change its rights or owner, all
# By kind: the bits of access that let somebody change it, and their abbreviations in SDDL. In a folder, removing what
# others made is one of them.
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
    """Judge a security descriptor in SDDL. own: the SID of whoever runs winhost.

    Unverified: written from Microsoft's documentation of SDDL, and not tried on a Windows.
    """
    owner, listed = re.search(r"O:(S-[\d-]+|[A-Z]{2})", text), text.partition("D:")[2].partition("S:(")[0]
    belongs = owner[1] if owner else ""
    if "NO_ACCESS_CONTROL" in listed:
        return ("EVERYONE", "has no access list: everyone can write it")
    trusted = {own, *_ADMINISTRATORS}
    found: tuple[Level, str] = ("OWN", "")
    if belongs not in trusted:
        found = ("SOME", f"belongs to another account ({belongs or 'not told'})")
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
    """The file and its folder. Folders above need no look: what they pass on stands in the lists of these two."""
    for each in (path, path.resolve(), path.resolve().parent):
        try:
            yield each, *judge_descriptor(*_descriptor(each), "folder" if each.is_dir() else "file")
        except (OSError, AttributeError):
            yield each, "UNTOLD", "does not tell who can write it"


def _descriptor(path: Path) -> tuple[str, str]:
    """The security descriptor of a file in SDDL, and the SID of whoever runs winhost. Raises OSError."""
    import ctypes

    load = getattr(ctypes, "WinDLL")  # noqa: B009 - Windows has it alone
    advapi, kernel = load("advapi32", use_last_error=True), load("kernel32", use_last_error=True)

    def done(worked: int) -> None:
        if not worked:
            raise OSError(ctypes.get_last_error(), "the access list cannot be read")  # type: ignore[attr-defined,unused-ignore]

    def taken(text: ctypes.c_wchar_p) -> str:
        said = text.value or ""
        kernel.LocalFree(text)
        return said

    owner_and_list, needed = 1 | 4, ctypes.c_uint32()
    advapi.GetFileSecurityW(str(path), owner_and_list, None, 0, ctypes.byref(needed))
    room = ctypes.create_string_buffer(needed.value)
    done(advapi.GetFileSecurityW(str(path), owner_and_list, room, needed, ctypes.byref(needed)))
    text = ctypes.c_wchar_p()
    convert = advapi.ConvertSecurityDescriptorToStringSecurityDescriptorW
    done(convert(room, 1, owner_and_list, ctypes.byref(text), None))
    said = taken(text)

    token = ctypes.c_void_p()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    done(advapi.OpenProcessToken(ctypes.c_void_p(kernel.GetCurrentProcess()), 8, ctypes.byref(token)))
    try:
        advapi.GetTokenInformation(token, 1, None, 0, ctypes.byref(needed))
        user = ctypes.create_string_buffer(needed.value)
        done(advapi.GetTokenInformation(token, 1, user, needed, ctypes.byref(needed)))
        sid = ctypes.c_void_p(ctypes.cast(user, ctypes.POINTER(ctypes.c_void_p))[0])
        done(advapi.ConvertSidToStringSidW(sid, ctypes.byref(text)))
        return said, taken(text)
    finally:
        kernel.CloseHandle(token)
