"""Lint .wslconfig and wsl.conf: what WSL would silently ignore or misread."""

from packaging.version import Version

from winhost.findings.finding import Finding
from winhost.wslconfig import lint_host, lint_lines, lint_settings
from winhost.wslconfig.format import WSLCONFIG, WSLCONFIG_3, Dialect, parse
from winhost.wslconfig.host_limits import NOTHING_KNOWN, HostLimits
from winhost.wslconfig.lint_context import LintContext, finding

WIDE = Version("3.0.1")  # the first WSL that reads non-ASCII values of .wslconfig

RULES = (
    *(lint_lines.unreadable, lint_lines.sections, lint_lines.keys, lint_lines.duplicates),
    *(lint_settings.values, lint_settings.versions, lint_settings.policies),
    *(lint_settings.without_effect, lint_settings.bridged, lint_settings.lifetime),
    *lint_host.RULES,
)


def lint(
    data: bytes, dialect: Dialect = WSLCONFIG, *, version: Version | None = None, host: HostLimits = NOTHING_KNOWN
) -> list[Finding]:
    """All findings of a file, by line and column.

    version: of the WSL that will read it, else that of the host; host: the machine that it is on.
    """
    version = version or host.version
    if dialect.narrow and version and version >= WIDE:
        dialect = WSLCONFIG_3
    text, found = _decoded(data, dialect)
    context = LintContext(parse(text, dialect), version, host, data[:2])
    found += [each for rule in RULES for each in rule(context)]
    return sorted(found, key=lambda each: (each.line, each.column))


def _decoded(data: bytes, dialect: Dialect) -> tuple[str, list[Finding]]:
    """The text as `_wfopen(…, "rt,ccs=UTF-8")` gives it (WslCoreConfig.cpp), else as its byte order mark says."""
    codec = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(data[:2], "utf-8")
    text = data.decode(codec, "replace")
    if codec == "utf-16-be" or "\0" in text or (codec == "utf-16-le" and not dialect.windows):
        return text, [finding(dialect, "encoding", (1, 1), found="no text" if codec == "utf-8" else codec.upper())]
    whole = text.encode(codec) == data
    return text, [] if whole else [finding(dialect, "not-utf8", (1, 1))]
