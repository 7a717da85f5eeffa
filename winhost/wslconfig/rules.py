"""Lint .wslconfig and wsl.conf: what WSL would silently ignore or misread."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.findings.condition import evaluate, matches
from winhost.findings.finding import FileFinding, Observation, matching_key_rows, rows_of, run_rules, to_findings
from winhost.model.errors import did_you_mean, did_you_mean_or_period
from winhost.model.units import Bytes, size
from winhost.wslconfig.format import HARMLESS, WSLCONFIG, WSLCONFIG_3, ConfigFile, ConfigLine, Dialect, LineKind, parse
from winhost.wslconfig.keys import Key, Value, counted, key_of, keys_of, other, read, replacement_of, sections_of, valid


@dataclass(frozen=True)
class HostLimits:
    """The limits of a host for .wslconfig; None: not known. version: of WSL; in_box: Windows' own, which has none;
    forbidden: the WSL policies that are 0; no_modes: networking modes that this host cannot have, each with why;
    switches: the kind of each by its name; processors: logical ones; vram: of all GPUs that WSL can use; drives:
    letters; unknown: what could not be read.
    """

    version: Version | None = None
    in_box: bool | None = None
    forbidden: frozenset[str] = frozenset()
    no_modes: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] | None = None
    memory: Bytes | None = None
    processors: int | None = None
    vram: Bytes | None = None
    drives: frozenset[str] | None = None
    unknown: tuple[str, ...] = ()


NOTHING_KNOWN = HostLimits()
START = (1, 1)
ROWS = rows_of(__package__)


@dataclass(frozen=True)
class LintContext:
    """version: None where it is not known; host: the machine whose WSL reads it; start: the first two bytes."""

    file: ConfigFile
    version: Version | None
    host: HostLimits
    start: bytes = b""

    @cached_property
    def keys(self) -> list[tuple[Key, ConfigLine]]:
        """Each key with the line that counts."""
        return counted(self.file)

    @cached_property
    def values(self) -> Mapping[str, Value | None]:
        """The values by section.key; None where WSL keeps its default."""
        return {str(key): valid(key, line) for key, line in self.keys}

    def line(self, name: str) -> ConfigLine | None:
        """The line that counts for section.key."""
        return next((line for key, line in self.keys if str(key) == name), None)

    def ask(self, question: str) -> tuple[Value | Version | None]:
        """The version of WSL, its networking mode, or the value of section.key: where WSL keeps its default, what is
        written there.
        """
        if question in ("version", "networking_mode"):
            return (getattr(self, question),)
        value, line = self.values.get(question), self.line(question)
        return (line.value if value is None and line else value,)

    @property
    def networking_mode(self) -> str:
        """The networking mode that the file sets; WSL defaults to NAT."""
        return str(self.values.get("wsl2.networkingMode") or "nat")

    def observe(self, line: ConfigLine, code: str, **words: object) -> Observation:
        """A finding at this line."""
        return Observation(code, line.position, words)


# --- Single lines: what WSL cannot read, does not know, or has read already ---------------------------------------


def unreadable(context: LintContext) -> Iterator[Observation]:
    """Lines that WSL cannot read."""
    for line in context.file.lines:
        char = line.text[line.at : line.at + (2 if line.kind is LineKind.BAD_ESCAPE else 1)]
        if line.kind is LineKind.BAD_NAME and char == ";":
            yield context.observe(line, "semicolon")
        elif line.kind is LineKind.BAD_NAME and char == "\ufeff" and not context.file.dialect.windows:
            yield context.observe(line, "byte-order-mark")
        elif line.kind not in HARMLESS:
            yield context.observe(line, line.kind, char=f"`{char}`" if char.strip() else "the end of the line")


def sections(context: LintContext) -> Iterator[Observation]:
    """Sections that WSL does not know, each reported once instead of once per key."""
    dialect = context.file.dialect
    for line in _unknown_sections(context.file):
        elsewhere = line.section.lower() in map(str.lower, sections_of(other(dialect)))
        near = _belongs(dialect) if elsewhere else did_you_mean_or_period(line.section, sections_of(dialect))
        yield context.observe(line, "unknown-section", section=line.section, near=near)


def _unknown_sections(file: ConfigFile) -> list[ConfigLine]:
    known = {name.lower() for name in sections_of(file.dialect)}
    return [line for line in file.lines if line.kind is LineKind.SECTION and line.section.lower() not in known]


def keys(context: LintContext) -> Iterator[Observation]:
    """Keys that WSL does not know in their section."""
    dialect = context.file.dialect
    reported = {line.section.lower() for line in _unknown_sections(context.file)}
    for line in context.file.keys:
        section = line.section.split("\0")[0]
        if key_of(dialect, line.id) is not None:
            continue
        if not section:
            yield context.observe(line, "no-section", key=line.key, near=_suggestion(dialect, section, line.key))
        elif line.section.lower() not in reported:
            near = _suggestion(dialect, section, line.key)
            yield context.observe(line, "unknown-key", section=section, key=line.key, near=near)


def _suggestion(dialect: Dialect, section: str, name: str) -> str:
    """The section or file that has a key of that name, else the most similar name."""
    homes = [key for key in keys_of(dialect) if key.name.lower() == name.lower()]
    if homes:
        return f": it belongs in [{homes[0].section}]."
    theirs = [key for key in keys_of(other(dialect)) if key.name.lower() == name.lower()]
    if here := next((key for key in theirs if key.section.lower() == section.lower()), next(iter(theirs), None)):
        return _belongs(dialect, f"[{here.section}] of ")
    if instead := replacement_of(name):
        return f", which no source of WSL has since 2.5.8: {instead}"
    return did_you_mean_or_period(name, [key.name for key in keys_of(dialect)])


def _belongs(dialect: Dialect, section: str = "") -> str:
    return f": it belongs in {section}{'/etc/wsl.conf of a distro' if dialect.windows else '.wslconfig of Windows'}."


def duplicates(context: LintContext) -> Iterator[Observation]:
    """Keys that are set twice: WSL takes the first."""
    first = {str(key): line for key, line in context.keys}
    for line in context.file.keys:
        key = key_of(context.file.dialect, line.id)
        if key is not None and first[str(key)] is not line:
            yield context.observe(line, "duplicate", key=key, first=first[str(key)].position[0])


# --- Settings: values, versions and policies ---------------------------------------------------------------------


def values(context: LintContext) -> Iterator[Observation]:
    """Values that WSL rejects or misreads."""
    for key, line in context.keys:
        written = line.text[line.raw.start : line.raw.stop]
        if context.file.dialect.narrow and not written.isascii() and key.type != "mac":
            yield context.observe(line, "not-ascii", value=repr(line.value))
            continue
        try:
            value = read(key, line.value)
        except ValueError as error:
            code = "bad-mac" if key.type == "mac" else "bad-value"
            right = f"{error} ({key.note})" if key.note else error
            yield context.observe(line, code, key=key, value=repr(line.value), right=right, default=_default(key))
            continue
        slips = [char for char in line.value if char in "\n\t\b"]
        if key.type == "path" and slips:
            yield context.observe(line, "escaped-path", char=f"`{slips[0]}`")
        if key.type == "mac" and int(str(value)[:2], 16) & 1:
            yield context.observe(line, "group-mac", value=value)


def _default(key: Key) -> str:
    return f" ({key.default})" if key.default else ""


def versions(context: LintContext) -> Iterator[Observation]:
    """Keys and values that this version of WSL does not know yet."""
    for key, line in context.keys:
        word = str(valid(key, line))
        what, since = (f"{key}={word}", key.values_since.get(word)) if word in key.values_since else (key, key.since)
        if since is None:
            if context.version is not None and context.version < Version(key.told_from):
                yield context.observe(line, "untold", what=what, since=key.told_from, version=context.version)
            continue
        since_text = f"{since} ({key.since_doubt})" if key.since_doubt else since
        if context.version is None:
            yield context.observe(line, "needs-version", what=what, since=since_text)
        elif context.version < Version(since):
            yield context.observe(line, "too-new", what=what, since=since_text, version=context.version)


def policies(context: LintContext) -> Iterator[Observation]:
    """Settings that a policy of the machine forbids."""
    for key, line in context.keys:
        if key.policy in context.host.forbidden and not matches(valid(key, line), [None, key.allowed]):
            yield context.observe(line, "policy", key=key, policy=key.policy, default=_default(key))


# --- Settings together -----------------------------------------------------------------------------------------------


def check_combinations(context: LintContext) -> Iterator[Observation]:
    """Settings that have no effect, or do harm, in combination with others."""
    for key, line in context.keys:
        value = valid(key, line)
        shown = str(value).lower() if isinstance(value, bool) else value
        effect = evaluate(key.when, context.ask)
        for question, (answer,) in effect.seen.items() if effect.holds is False else ():
            if question == "networking_mode":
                code = "other-mode-anyway" if shown == key.default else "other-mode"
                modes = " or ".join(key.when[question])
                yield context.observe(line, code, key=key, mode=answer, modes=modes, value=shown)
            else:
                yield context.observe(line, "idle", key=key, other=question, value=str(answer).lower())
        if value in key.beware:
            yield context.observe(line, "beware", key=key, value=shown, what=key.beware[value])


def check_key_rows(context: LintContext) -> Iterator[Observation]:
    """Yield the findings of rows about a key."""
    for row, key in matching_key_rows(ROWS, context.ask):
        if line := context.line(key):
            yield context.observe(line, row.code, version=context.version)


# --- The file on the host whose WSL reads it -----------------------------------------------------------------------

EXTERNAL = "external"
_DRIVE = re.compile(r"([A-Za-z]):")
_KERNELS = ("wsl2.kernel", "wsl2.kernelModules")
# MicrosoftDocs/WSL #1174: a file in UTF-16 was ignored. Of a mark before UTF-8 it says the same; nobody tried it since.
_MARKS = {b"\xff\xfe": ("in-box-encoding", "UTF-16"), b"\xef\xbb": ("in-box-mark", "a byte order mark")}


def unknown(context: LintContext) -> Iterator[Observation]:
    """Report each fact that could not be read, because nothing is checked against it."""
    for what in context.host.unknown:
        yield Observation("host-unknown", START, {"what": what})


def mode(context: LintContext) -> Iterator[Observation]:
    """A networking mode that this host cannot have."""
    line, why = context.line("wsl2.networkingMode"), context.host.no_modes.get(context.networking_mode)
    if line is not None and why is not None:
        yield context.observe(line, "no-bridge" if context.networking_mode == "bridged" else "no-mirror", why=why)


def switch(context: LintContext) -> Iterator[Observation]:
    """A switch that is not there, or that leads nowhere."""
    line, switches = context.line("wsl2.vmSwitch"), context.host.switches
    name = str(context.values.get("wsl2.vmSwitch") or "")
    if line is None or switches is None or not name or context.networking_mode != "bridged":
        return
    if name not in switches:
        near = did_you_mean(name, switches) or (f"; there is {', '.join(sorted(switches))}" if switches else "")
        yield context.observe(line, "no-such-switch", name=repr(name), near=near)
    elif switches[name] != EXTERNAL:
        yield context.observe(line, "switch-within", name=repr(name), kind=switches[name])


def sizes(context: LintContext) -> Iterator[Observation]:
    """More memory or processors than there are."""
    host = context.host
    for name, there, shown in (
        ("wsl2.memory", host.memory, size(host.memory) if host.memory else ""),
        ("wsl2.processors", host.processors, f"{host.processors} logical processors"),
    ):
        line, value = context.line(name), context.values.get(name)
        if line is not None and there is not None and isinstance(value, int) and value > there:
            yield context.observe(line, "more-than-there", key=name, there=shown)
        elif name == "wsl2.memory" and line is not None and there and isinstance(value, int) and value > 0.9 * there:
            yield context.observe(line, "little-left", there=shown)
        elif name == "wsl2.memory" and line is not None and host.vram and isinstance(value, int) and value < host.vram:
            yield context.observe(line, "below-gpus", there=size(host.vram))


def drives(context: LintContext) -> Iterator[Observation]:
    """Files on a drive that is not there."""
    letters = context.host.drives
    for key, line in context.keys:
        found = _DRIVE.match(str(context.values.get(str(key)) or ""))
        if key.type != "path" or letters is None or found is None or found[1].upper() in letters:
            continue
        code = "no-drive-of-kernel" if str(key) in _KERNELS else "no-drive"
        yield context.observe(line, code, key=key, drive=f"{found[1].upper()}:", there=", ".join(sorted(letters)))


def check_in_box(context: LintContext) -> Iterator[Observation]:
    """Report keys and encodings that the WSL of Windows itself does not know or read."""
    if not context.host.in_box:
        return
    if mark := _MARKS.get(context.start):
        yield Observation(mark[0], START, {"encoding": mark[1]})
    for key, line in context.keys:
        if key.since or key.section != "wsl2":
            yield context.observe(line, "in-box-key", key=key)


UNICODE_VALUES = Version("3.0.1")  # the first WSL that reads non-ASCII values of .wslconfig

RULES = (
    *(unreadable, sections, keys, duplicates),
    *(values, versions, policies, check_combinations, check_key_rows),
    *(unknown, mode, switch, sizes, drives, check_in_box),
)


def lint(
    data: bytes, dialect: Dialect = WSLCONFIG, *, version: Version | None = None, host: HostLimits = NOTHING_KNOWN
) -> list[FileFinding]:
    """All findings of a file, by line and column.

    version: of the WSL that will read it, else that of the host; host: the machine that it is on.
    """
    version = version or host.version
    if dialect.narrow and version and version >= UNICODE_VALUES:
        dialect = WSLCONFIG_3
    text, found = _decoded(data, dialect)
    context = LintContext(parse(text, dialect), version, host, data[:2])
    return to_findings(ROWS, dialect.name, [*found, *run_rules(RULES, context)])


def _decoded(data: bytes, dialect: Dialect) -> tuple[str, list[Observation]]:
    """The text as `_wfopen(…, "rt,ccs=UTF-8")` gives it (WslCoreConfig.cpp), else as its byte order mark says."""
    codec = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(data[:2], "utf-8")
    text = data.decode(codec, "replace")
    if codec == "utf-16-be" or "\0" in text or (codec == "utf-16-le" and not dialect.windows):
        text = "" if text.count("\0") * 3 > len(text) else text  # UTF-16 without a mark: no line of it is one
        return text, [Observation("encoding", START, {"found": "no text" if codec == "utf-8" else codec.upper()})]
    whole = text.encode(codec) == data
    return text, [] if whole else [Observation("not-utf8", START)]
