"""Lint .wslconfig and wsl.conf: find settings that WSL silently ignores or misreads."""

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
from winhost.wslconfig.keys import (
    Key,
    Value,
    effective_lines,
    key_of,
    keys_of,
    other_dialect,
    parse_value,
    replacement_of,
    sections_of,
    valid_value,
)


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
    """A file and the WSL that reads it. version: of WSL, None if unknown; host: the machine of this WSL; start: the
    first two bytes of the file.
    """

    file: ConfigFile
    version: Version | None
    host: HostLimits
    start: bytes = b""

    @cached_property
    def keys(self) -> list[tuple[Key, ConfigLine]]:
        """The keys that are set, each with the line that takes effect."""
        return effective_lines(self.file)

    @cached_property
    def values(self) -> Mapping[str, Value | None]:
        """The values by section.key; None if WSL keeps its default."""
        return {str(key): valid_value(key, line) for key, line in self.keys}

    def line(self, name: str) -> ConfigLine | None:
        """Return the line that takes effect for section.key."""
        return next((line for key, line in self.keys if str(key) == name), None)

    def ask(self, question: str) -> tuple[Value | Version | None]:
        """Return the version of WSL, its networking mode, or the value of section.key; the written text if WSL does
        not accept it and keeps its default.
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
        """Make a finding at this line. words: the placeholders of its sentence."""
        return Observation(code, line.position, words)


# --- Single lines: faults, unknown names, and repeated keys ---------------------------------------


def find_unreadable_lines(context: LintContext) -> Iterator[Observation]:
    """Find lines that WSL cannot read."""
    for line in context.file.lines:
        char = line.text[line.at : line.at + (2 if line.kind is LineKind.BAD_ESCAPE else 1)]
        if line.kind is LineKind.BAD_NAME and char == ";":
            yield context.observe(line, "semicolon")
        elif line.kind is LineKind.BAD_NAME and char == "\ufeff" and not context.file.dialect.windows:
            yield context.observe(line, "byte-order-mark")
        elif line.kind not in HARMLESS:
            yield context.observe(line, line.kind, char=f"`{char}`" if char.strip() else "the end of the line")


def check_sections(context: LintContext) -> Iterator[Observation]:
    """Find sections that WSL does not know; each is reported once instead of once per key."""
    dialect = context.file.dialect
    for line in _unknown_sections(context.file):
        elsewhere = line.section.lower() in map(str.lower, sections_of(other_dialect(dialect)))
        near = _location_hint(dialect) if elsewhere else did_you_mean_or_period(line.section, sections_of(dialect))
        yield context.observe(line, "unknown-section", section=line.section, near=near)


def _unknown_sections(file: ConfigFile) -> list[ConfigLine]:
    known = {name.lower() for name in sections_of(file.dialect)}
    return [line for line in file.lines if line.kind is LineKind.SECTION and line.section.lower() not in known]


def check_keys(context: LintContext) -> Iterator[Observation]:
    """Find keys that WSL does not know in their section."""
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
    """Suggest the section or file that has a key of that name, else the most similar name."""
    same_names = [key for key in keys_of(dialect) if key.name.lower() == name.lower()]
    if same_names:
        return f": it belongs in [{same_names[0].section}]."
    other_keys = [key for key in keys_of(other_dialect(dialect)) if key.name.lower() == name.lower()]
    if match := next(
        (key for key in other_keys if key.section.lower() == section.lower()), next(iter(other_keys), None)
    ):
        return _location_hint(dialect, f"[{match.section}] of ")
    if instead := replacement_of(name):
        return f", which no source of WSL has since 2.5.8: {instead}"
    return did_you_mean_or_period(name, [key.name for key in keys_of(dialect)])


def _location_hint(dialect: Dialect, section: str = "") -> str:
    return f": it belongs in {section}{'/etc/wsl.conf of a distro' if dialect.windows else '.wslconfig of Windows'}."


def find_duplicates(context: LintContext) -> Iterator[Observation]:
    """Find keys that are set twice: WSL uses the first."""
    first = {str(key): line for key, line in context.keys}
    for line in context.file.keys:
        key = key_of(context.file.dialect, line.id)
        if key is not None and first[str(key)] is not line:
            yield context.observe(line, "duplicate", key=key, first=first[str(key)].position[0])


# --- Settings: values, versions and policies ---------------------------------------------------------------------


def check_values(context: LintContext) -> Iterator[Observation]:
    """Find values that WSL rejects or misreads."""
    for key, line in context.keys:
        written = line.text[line.raw.start : line.raw.stop]
        if context.file.dialect.narrow and not written.isascii() and key.type != "mac":
            yield context.observe(line, "not-ascii", value=repr(line.value))
            continue
        try:
            value = parse_value(key, line.value)
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


def check_versions(context: LintContext) -> Iterator[Observation]:
    """Find keys and values that this version of WSL does not know yet."""
    for key, line in context.keys:
        word = str(valid_value(key, line))
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


def check_policies(context: LintContext) -> Iterator[Observation]:
    """Find settings that a policy of the machine forbids."""
    for key, line in context.keys:
        if key.policy in context.host.forbidden and not matches(valid_value(key, line), [None, key.allowed]):
            yield context.observe(line, "policy", key=key, policy=key.policy, default=_default(key))


# --- Settings together -----------------------------------------------------------------------------------------------


def check_combinations(context: LintContext) -> Iterator[Observation]:
    """Find settings that have no effect, or do harm, in combination with others."""
    for key, line in context.keys:
        value = valid_value(key, line)
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
    """Check the rows of findings.yaml about a key."""
    for row, key in matching_key_rows(ROWS, context.ask):
        if line := context.line(key):
            yield context.observe(line, row.code, version=context.version)


# --- The file on the host whose WSL reads it -----------------------------------------------------------------------

EXTERNAL = "external"
_DRIVE = re.compile(r"([A-Za-z]):")
_KERNELS = ("wsl2.kernel", "wsl2.kernelModules")
# MicrosoftDocs/WSL #1174: a file in UTF-16, or with a byte order mark before UTF-8, was ignored; not verified since.
_MARKS = {b"\xff\xfe": ("in-box-encoding", "UTF-16"), b"\xef\xbb": ("in-box-mark", "a byte order mark")}


def report_unread_facts(context: LintContext) -> Iterator[Observation]:
    """Report each fact of the host that could not be read: nothing is checked against it."""
    for what in context.host.unknown:
        yield Observation("host-unknown", START, {"what": what})


def check_networking_mode(context: LintContext) -> Iterator[Observation]:
    """Find a networking mode that this host cannot have."""
    line, why = context.line("wsl2.networkingMode"), context.host.no_modes.get(context.networking_mode)
    if line is not None and why is not None:
        yield context.observe(line, "no-bridge" if context.networking_mode == "bridged" else "no-mirror", why=why)


def check_switch(context: LintContext) -> Iterator[Observation]:
    """Find a switch that does not exist, or is not external."""
    line, switches = context.line("wsl2.vmSwitch"), context.host.switches
    name = str(context.values.get("wsl2.vmSwitch") or "")
    if line is None or switches is None or not name or context.networking_mode != "bridged":
        return
    if name not in switches:
        near = did_you_mean(name, switches) or (f"; there is {', '.join(sorted(switches))}" if switches else "")
        yield context.observe(line, "no-such-switch", name=repr(name), near=near)
    elif switches[name] != EXTERNAL:
        yield context.observe(line, "switch-within", name=repr(name), kind=switches[name])


def check_sizes(context: LintContext) -> Iterator[Observation]:
    """Find more memory or processors than the host has."""
    host = context.host
    for name, available, shown in (
        ("wsl2.memory", host.memory, size(host.memory) if host.memory else ""),
        ("wsl2.processors", host.processors, f"{host.processors} logical processors"),
    ):
        line, value = context.line(name), context.values.get(name)
        if line is not None and available is not None and isinstance(value, int) and value > available:
            yield context.observe(line, "more-than-there", key=name, there=shown)
        elif name == "wsl2.memory" and line and available and isinstance(value, int) and value > 0.9 * available:
            yield context.observe(line, "little-left", there=shown)
        elif name == "wsl2.memory" and line is not None and host.vram and isinstance(value, int) and value < host.vram:
            yield context.observe(line, "below-gpus", there=size(host.vram))


def check_drives(context: LintContext) -> Iterator[Observation]:
    """Find paths on a drive that does not exist."""
    letters = context.host.drives
    for key, line in context.keys:
        found = _DRIVE.match(str(context.values.get(str(key)) or ""))
        if key.type != "path" or letters is None or found is None or found[1].upper() in letters:
            continue
        code = "no-drive-of-kernel" if str(key) in _KERNELS else "no-drive"
        yield context.observe(line, code, key=key, drive=f"{found[1].upper()}:", there=", ".join(sorted(letters)))


def check_in_box(context: LintContext) -> Iterator[Observation]:
    """Find keys and encodings that the in-box WSL of Windows does not know or read."""
    if not context.host.in_box:
        return
    if mark := _MARKS.get(context.start):
        yield Observation(mark[0], START, {"encoding": mark[1]})
    for key, line in context.keys:
        if key.since or key.section != "wsl2":
            yield context.observe(line, "in-box-key", key=key)


UNICODE_VALUES = Version("3.0.1")  # the first WSL that reads non-ASCII values of .wslconfig

RULES = (
    *(find_unreadable_lines, check_sections, check_keys, find_duplicates),
    *(check_values, check_versions, check_policies, check_combinations, check_key_rows),
    *(report_unread_facts, check_networking_mode, check_switch, check_sizes, check_drives, check_in_box),
)


def lint(
    data: bytes, dialect: Dialect = WSLCONFIG, *, version: Version | None = None, host: HostLimits = NOTHING_KNOWN
) -> list[FileFinding]:
    """Return all findings of a file, by line and column.

    version: of the WSL that will read it; by default that of the host. host: the machine that the file is on.
    """
    version = version or host.version
    if dialect.narrow and version and version >= UNICODE_VALUES:
        dialect = WSLCONFIG_3
    text, found = _decode(data, dialect)
    context = LintContext(parse(text, dialect), version, host, data[:2])
    return to_findings(ROWS, dialect.name, [*found, *run_rules(RULES, context)])


def _decode(data: bytes, dialect: Dialect) -> tuple[str, list[Observation]]:
    """Decode the file as `_wfopen(…, "rt,ccs=UTF-8")` does (WslCoreConfig.cpp), or by its byte order mark. Return the
    text, and a finding if WSL cannot read this encoding.
    """
    codec = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(data[:2], "utf-8")
    text = data.decode(codec, "replace")
    if codec == "utf-16-be" or "\0" in text or (codec == "utf-16-le" and not dialect.windows):
        text = "" if text.count("\0") * 3 > len(text) else text  # UTF-16 without a mark has no readable line
        return text, [Observation("encoding", START, {"found": "no text" if codec == "utf-8" else codec.upper()})]
    whole = text.encode(codec) == data
    return text, [] if whole else [Observation("not-utf8", START)]
