"""`wsl --version`: the version of WSL as a package, and of Windows. Its labels are in the language of Windows.

`wsl -l -v` lists the distros of one account; a distro of version 2 that runs shows that WSL 2 works there.
"""

import re

from winhost.imports.observation import FileObservations, Misread, Observation, Worth

LOOKS = re.compile(r"^[ \t]*WSLg[^\n:\uff1a]{0,40}[:\uff1a] *\d+\.\d+", re.MULTILINE)
DISTROS = re.compile(r"^[ \t]*NAME[ \t]+STATE[ \t]+VERSION[ \t\r]*$", re.MULTILINE)
_RUNS = re.compile(r"^[ \t>]*(?:\* )?[ \t]*\S.*?[ \t]+Running[ \t]+2[ \t\r]*$", re.MULTILINE)
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


def read_distros(text: str) -> FileObservations:
    """Raises Misread."""
    head = DISTROS.search(text)
    if head is None or not _RUNS.search(text, head.end()):
        raise Misread("lists no distro of WSL 2 that runs, so it does not show whether WSL 2 works")
    return FileObservations(
        resources={
            "Firmware": {"": {"hypervisor_present": Observation(True, Worth.ROUGH)}},
            "VirtualMachinePlatform": {"": {"feature": Observation("installed", Worth.ROUGH)}},
        }
    )
