"""The versions of Windows and WSL: the line of `ver`, the About page, the form of WSL's bug reports, `wsl --version`.

The words are English, apart from `ver` and the labels of `wsl --version`, which are in the language of Windows. What a
tool tells better counts more. `wsl -l -v` lists the distros of one account; a distro of version 2 that runs shows that
WSL 2 works there.
"""

import re

from winhost.imports.observation import FileObservations, Misread, Observation, State, Value, Worth
from winhost.imports.systeminfo import system_by_name
from winhost.model.units import GiB

_VER = r"\[\S{1,12} 10\.0\.\d{5}\.\d{1,6}\]"
_FORM = r"^#{1,4} Windows (?:Version|build number:?)"
_ABOUT = r"^(?:OS build|OS Build)[ \t]*[:\t][ \t]*\d{5}\.\d"
_ROW = r"^Microsoft (?P<row_name>Windows \S[^\n]{2,60}?) {2,}(?:\S+ +)??(?P<row>\d{5})\b"
_WSL_PLATFORM = r"^Python platform *: Linux-\S*-microsoft-standard-WSL2"
PATTERN = re.compile(
    rf"{_VER}|{_FORM}|{_ABOUT}|^BuildNumber +: \d{{5}}|{_ROW}|{_WSL_PLATFORM}[\s\S]*^Model name *:",
    re.MULTILINE | re.IGNORECASE,
)
_BUILD = re.compile(
    r"\[\S{1,12} 10\.0\.(?P<ver>\d{5}\.\d{1,6})\]"
    rf"|{_FORM}\s{{1,4}}(?:[^\n]{{0,40}}?\b)?(?:10\.0\.)?(?P<form>\d{{5}}\.\d{{1,6}})\b"
    r"|^OS build[ \t]*[:\t][ \t]*(?P<about>\d{5}\.\d{1,6})"
    rf"|^BuildNumber +: (?P<list>\d{{5}})|{_ROW}",
    re.MULTILINE | re.IGNORECASE,
)
_EDITION = re.compile(r"^(?:Edition[ \t]*[:\t]|Caption +:)[ \t]*(?:Microsoft )?(Windows [^\n\r]{2,60}?)[ \t\r]*$", re.M)
_RELEASE = re.compile(r"^Version[ \t]*[:\t][ \t]*(\d\dH[12])\b", re.MULTILINE)
_WSL = re.compile(
    r"^#{1,4} (?:Your )?WSL versions?:?\s{1,4}(?:WSL version: ?)?(\d{1,2}(?:\.\d{1,3}){2,3})\b", re.I | re.M
)
_RAM = re.compile(r"^Installed RAM[ \t]*[:\t][ \t]*[\d.]+ GB \((\d{1,5}(?:\.\d{1,2})?) GB usable\)", re.MULTILINE)
_PROCESSOR = re.compile(r"^Processor[ \t]*[:\t][ \t]*(\S[^\n\r]{5,100}?)(?: {2,}| *\t|[ \t\r]*$)", re.MULTILINE)
_MODEL = re.compile(r"^Model name *: +(\S[^\n\r]{5,100}?)[ \t\r]*$", re.MULTILINE)


def read_words(text: str) -> FileObservations:
    """Raises Misread."""
    resources: dict[str, dict[str, State]] = {}
    if system := _system(text):
        resources["OperatingSystem"] = {"": system}
    if wsl := _WSL.search(text):
        resources["Wsl"] = {"": {"present": Observation(True), "version": Observation(wsl[1])}}
    if ram := _RAM.search(text):
        resources["Memory"] = {"": {"total": Observation(round(float(ram[1]) * GiB), Worth.ROUNDED)}}
    # The VM of WSL has the processor of its host.
    processor = _PROCESSOR.search(text) or (
        _MODEL.search(text) if re.search(_WSL_PLATFORM, text, re.MULTILINE) else None
    )
    if processor:
        resources["Processor"] = {"CPU0": {"name": Observation(processor[1], Worth.ROUGH)}}
    if not resources:
        raise Misread("tells neither a build of Windows nor a version of WSL")
    return FileObservations(resources=resources)


def _system(text: str) -> State:
    build, edition, release = (each.search(text) for each in (_BUILD, _EDITION, _RELEASE))
    state: dict[str, Value] = {}
    called = (build and build["row_name"]) or (edition and edition[1])
    if called:
        named = system_by_name(f"Microsoft {called}", "", None)
        state |= {name: value for name, value in named.items() if isinstance(value, Observation)}
    if build:
        number, _, revision = (build[build.lastgroup] if build.lastgroup else "").partition(".")
        state["build"] = Observation(int(number))
        if revision:
            state["revision"] = Observation(int(revision))
    if release and state:
        state["display_version"] = Observation(release[1])
    return state


# ---- wsl.exe


PACKAGE = re.compile(r"^[ \t]*WSLg[^\n:\uff1a]{0,40}[:\uff1a] *\d+\.\d+", re.MULTILINE)
DISTROS = re.compile(r"^[ \t]*NAME[ \t]+STATE[ \t]+VERSION[ \t\r]*$", re.MULTILINE)
_RUNS = re.compile(r"^[ \t>]*(?:\* )?[ \t]*\S.*?[ \t]+Running[ \t]+2[ \t\r]*$", re.MULTILINE)
_PACKAGE = re.compile(
    r"^[ \t]*[^\n:\uff1a]{0,40}WSL\b[^\n:\uff1a]{0,40}[:\uff1a] *(\d{1,3}(?:\.\d{1,5}){2,3})[ \t\r]*$", re.MULTILINE
)
_WINDOWS = re.compile(r"[:\uff1a] *10\.0\.(\d{5})\.(\d{1,6})[ \t\r]*$", re.MULTILINE)


def read_package(text: str) -> FileObservations:
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
