"""`wsl --version`: the version of WSL as a package, and of Windows. Its labels are in the language of Windows."""

import re

from winhost.imports.observation import FileObservations, Misread, Observation

LOOKS = re.compile(r"^[ \t]*WSLg[^\n:\uff1a]{0,40}[:\uff1a] *\d+\.\d+", re.MULTILINE)
_PACKAGE = re.compile(
    r"^[ \t]*[^\n:\uff1a]{0,40}WSL\b[^\n:\uff1a]{0,40}[:\uff1a] *(\d{1,3}(?:\.\d{1,5}){2,3})[ \t\r]*$", re.MULTILINE
)
_WINDOWS = re.compile(r"[:\uff1a] *10\.0\.(\d{5})\.(\d{1,6})[ \t\r]*$", re.MULTILINE)


def read(text: str) -> FileObservations:
    """Raises Misread."""
    package, windows = _PACKAGE.search(text), _WINDOWS.search(text)
    if package is None and windows is None:
        raise Misread("names neither a version of WSL nor one of Windows")
    resources = {}
    if package:
        resources["Wsl"] = {"": {"present": Observation(True), "version": Observation(package[1])}}
    if windows:
        build, revision = (Observation(int(part)) for part in windows.groups())
        resources["OperatingSystem"] = {"": {"build": build, "revision": revision}}
    return FileObservations(resources=resources)
