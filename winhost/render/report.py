"""Render the report on hosts as HTML: one file, or one for each host, without scripts or references to other sites.

Text from hosts and files is data: `_escape_hidden` escapes characters that hide or reorder text, and the templates
escape markup.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from hashlib import sha256
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from winhost import __version__
from winhost.compat.evaluation import Evaluation, Supposed
from winhost.compat.needs import Fit, Needs
from winhost.compat.remedy import Repair
from winhost.core.dataclass import dataclass
from winhost.findings.show import describe_evidence, evidence_lines, format_remedy
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import explain
from winhost.model.errors import WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.once import once
from winhost.model.path import EVERY_PATH, EVERY_VARIANT, PATHS, path_of
from winhost.model.plan import Plan
from winhost.model.reason import Assessment, Finding, PathVerdict, Severity, SubjectVerdict, Verdict
from winhost.model.shipped import shipped
from winhost.render import verdict_text
from winhost.render.fact_text import ORIGINS
from winhost.render.machine_view import MachineView, make_linux_view, make_machine_view
from winhost.render.matrix import MatrixRow, make_matrix, name_variants
from winhost.render.memory_bars import MemoryChart, make_memory_chart
from winhost.render.picture import Picture, draw_machine
from winhost.render.strip import Layout, make_layout
from winhost.resources.host import HostFacts

if TYPE_CHECKING:
    from jinja2 import Environment

CSS_CLASSES: Mapping[str, str] = {"supported": "s", "degraded": "d", "unverified": "q", "unsupported": "u", "note": "n"}
"""CSS classes of verdicts and severities. They are short because a report on hundreds of hosts has many."""

# The diagram keeps this width and scrolls sideways on a phone, because scaled text would be too small to read.
WIDTH, COLUMNS = 744, 3

BY_NAME = "By name"
NO_VARIANT = "none"


@dataclass(frozen=True)
class UnreadHost:
    """A host that could not be read."""

    host: str
    error: WinhostError


@dataclass(frozen=True)
class ReadHost:
    """A host with its evaluation; for a Linux host also its plan, or why there is none."""

    facts: Facts
    evaluation: Evaluation
    plan: Plan | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Subjects:
    """GPUs or VMs with the same verdict and reasons."""

    names: tuple[str, ...]
    verdict: Verdict
    reasons: tuple[Finding, ...]


@dataclass(frozen=True)
class ReportVariant:
    """The best variant of a path. decisive: the first reason that decides its verdict; lacking: required capabilities
    that are not supported.
    """

    fit: Fit
    decisive: Finding | None
    reasons: tuple[Finding, ...]
    subjects: tuple[Subjects, ...]
    lacking: tuple[tuple[str, Verdict], ...]
    grounds: tuple[str, ...]


@dataclass(frozen=True)
class ReportHost:
    """The values of a host's chapter for the templates."""

    id: str
    name: str
    origin: str
    kind: str
    read_at: str
    winhost: str
    machine: MachineView
    picture: Picture
    recommended: bool
    recommendation: tuple[str, ...]
    nearest: tuple[str, ...]
    best: ReportVariant
    others: tuple[ReportVariant, ...]
    changes: str | None
    cheapest: Repair | None
    offers: Mapping[Verdict, tuple[str, ...]]
    columns: tuple[tuple[str, Verdict], ...]
    rows: tuple[MatrixRow, ...]
    layout: Layout | None
    memories: tuple[MemoryChart, ...]
    plan: Plan | None
    refused: str | None


@dataclass(frozen=True)
class ReportLine:
    """A host in the summary. best: the recommended variant, or `none`; decides: the sentence and the code of the first
    reason that decides its verdict.
    """

    href: str
    name: str
    kind: str
    system: str
    gpus: tuple[str, ...]
    variant: str
    best: str
    verdict: Verdict
    decides: tuple[str, str] | None


@dataclass(frozen=True)
class Chapter:
    """A host's chapter as HTML, with the codes and the evidence that it mentions. variants: evidence that each variant
    works; grounds: evidence that capabilities work, as capability, variant and id.
    """

    line: ReportLine
    html: str
    codes: frozenset[str]
    cited: frozenset[str]
    variants: Mapping[str, tuple[str, ...]]
    grounds: tuple[tuple[str, str, str], ...]


@dataclass
class Contents:
    """The data of all hosts for the summary and the appendices: all that is kept of a chapter once it is written. home:
    on the page of one host, the link to the page of all hosts.
    """

    home: str | None = None
    lines: list[ReportLine] = field(default_factory=list)
    unread: list[UnreadHost] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    cited: set[str] = field(default_factory=set)
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    grounds: dict[str, dict[str, dict[str, None]]] = field(default_factory=dict)

    def add(self, chapter: Chapter) -> None:
        """Keep the chapter's line for the summary, and the codes and evidence that it mentions."""
        self.lines.append(chapter.line)
        self.codes |= chapter.codes
        self.cited |= chapter.cited
        self.variants |= {
            variant: tuple(dict.fromkeys((*self.variants.get(variant, ()), *keys)))
            for variant, keys in chapter.variants.items()
        }
        for capability, variant, key in chapter.grounds:
            grounds = self.grounds.setdefault(capability, {})
            if key:
                grounds.setdefault(key, {})[variant] = None

    @property
    def title(self) -> str:
        names = [line.name for line in self.lines]
        return ", ".join(names) if 0 < len(names) <= 5 else f"{len(names)} hosts"

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts that at least one host has, the best first."""
        return [verdict for verdict in Verdict if any(line.verdict is verdict for line in self.lines)]

    @property
    def counts(self) -> list[tuple[str, Counter[Verdict]]]:
        """The number of hosts with each best variant, by verdict."""
        found: dict[str, Counter[Verdict]] = {variant: Counter() for variant in (*EVERY_VARIANT, NO_VARIANT)}
        for line in self.lines:
            found[line.best][line.verdict] += 1
        return [(variant, row) for variant, row in found.items() if row]

    @property
    def tables_of_contents(self) -> list[tuple[str, list[tuple[str, list[ReportLine]]]]]:
        """Tables of contents: the title of each, and its headings with the hosts below them."""
        lines = sorted(self.lines, key=lambda line: [_natural_sort_key(part) for part in re.split(r"(\d+)", line.name)])
        return [
            ("By verdict", _group_lines(lines, lambda line: (line.verdict,), Verdict)),
            ("By best option", _group_lines(lines, lambda line: (line.best,), (*EVERY_VARIANT, NO_VARIANT))),
            (BY_NAME, [("", lines)]),
            ("By system", _group_lines(lines, lambda line: (line.system,))),
            (
                "By GPU",
                _group_lines(lines, lambda line: {re.sub(r"^\d+x ", "", gpu) for gpu in line.gpus} or (NO_VARIANT,)),
            ),
        ]


def _natural_sort_key(part: str) -> tuple[int, str]:
    """Return a part of a name as a sort key: numbers by value, so that gpu-2 comes before gpu-10."""
    return (int(part), "") if part.isdecimal() and len(part) < 20 else (-1, part.casefold())


def _group_lines(
    lines: Iterable[ReportLine], keys: Callable[[ReportLine], Iterable[str]], order: Iterable[str] = ()
) -> list[tuple[str, list[ReportLine]]]:
    """Group lines by key: first the keys in `order`, then the others by name."""
    groups: dict[str, list[ReportLine]] = {key: [] for key in order}
    for line in lines:
        for key in keys(line):
            groups.setdefault(key, []).append(line)
    count = len(tuple(order))
    keys_in_order = [*groups][:count] + sorted([*groups][count:])
    return [(key, groups[key]) for key in keys_in_order if groups[key]]


_PIECE_SIZE = 1 << 16  # characters per piece


def render_report(
    hosts: Iterable[ReadHost | UnreadHost], needs: Needs, supposed: Supposed | None = None, *, brief: bool = False
) -> Iterator[str]:
    """Render one file, in pieces. The same facts and the same request give the same text. brief: one printed page per
    host.

    Reads hosts one by one. The summary precedes the chapters but needs all of them, so chapters are written to a
    temporary file first. Raises OSError if the disk is full.
    """
    contents, sections = Contents(), Sections()
    with TemporaryFile("w+", encoding="utf-8", newline="\n") as chapters_file:
        for host in hosts:
            if isinstance(host, UnreadHost):
                contents.unread.append(host)
                continue
            id_ = f"host-{len(contents.lines) + 1}"
            chapter = render_chapter(host, id_, f"#{id_}", needs, sections, brief=brief)
            chapters_file.write(chapter.html)
            contents.add(chapter)
        chapters_file.seek(0)
        yield from render_page(
            contents, iter(partial(chapters_file.read, _PIECE_SIZE), ""), needs, supposed, brief=brief
        )


def render_reports(
    hosts: Iterable[ReadHost | UnreadHost], needs: Needs, supposed: Supposed | None = None, *, brief: bool = False
) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield file names and their text: one for each host, then `index.html` with links to them and the appendices of
    all hosts: reasons, options, capabilities and evidence.
    """
    all_contents = Contents()
    used_names: set[str] = set()
    for host in hosts:
        if isinstance(host, UnreadHost):
            all_contents.unread.append(host)
            continue
        file = _make_file_name(host.facts.host, used_names)
        chapter = render_chapter(host, "host-1", file, needs, Sections(), brief=brief)
        html = _APPENDIX_HREF.sub(rf"\g<0>{INDEX}", chapter.html)
        host_contents = Contents(home=INDEX, lines=[chapter.line])
        yield file, render_page(host_contents, (html,), needs, supposed, brief=brief)
        all_contents.add(replace(chapter, html=""))
    yield INDEX, render_page(all_contents, (), needs, supposed, brief=brief)


INDEX = "index.html"
_APPENDIX_HREF = re.compile(r'href="(?=#[rce]-)')  # the text of a host cannot match, because its quotes are escaped
# Line ends that HTML ignores. Without them, the chapters of hundreds of hosts are a tenth smaller.
_IGNORED_LINE_ENDS = re.compile(
    r"\n+(?=</?(?:p|[ou]l|li|div|details|summary|section|h\d|t[dhr]|g|rect|text|path|figure)\b)"
)


def _make_file_name(host: str, used_names: set[str]) -> str:
    """Make the file name of a host's page: valid on every file system, and unique. Adds it to used_names."""
    base = "host-" + re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100]
    names = (base, *(f"{base}-{number}" for number in range(2, len(used_names) + 3)))
    name = next(name for name in names if name.lower() not in used_names)
    used_names.add(name.lower())
    return f"{name}.html"


def render_page(
    contents: Contents, chapters: Iterable[str], needs: Needs, supposed: Supposed | None = None, *, brief: bool = False
) -> Iterator[str]:
    """Render summary, chapters and appendices, in pieces."""
    codes = tuple(explain(code) for code in sorted(contents.codes))
    # If there is a Windows host, list all paths of Windows.
    present_paths = {path_of(variant) for variant in contents.variants}
    paths = [path for path in EVERY_PATH if path in present_paths or (path in PATHS and present_paths & {*PATHS})]
    cited = contents.cited | {evidence.id for code in codes for evidence in code.evidence}
    stream = (
        _environment()
        .get_template("page.html.j2")
        .stream(
            contents=contents,
            chapters=chapters,
            needs=needs,
            supposed=verdict_text.describe_assumptions(supposed) if supposed else None,
            codes=codes,
            evidence=[] if brief else [catalogue.evidence()[key] for key in sorted(cited)],
            topics=catalogue.topics(),
            paths=paths,
            version=__version__,
        )
    )
    stream.enable_buffering(100)
    return stream


class Sections:
    """The sections of a page, to replace a section that another host has already by a link: most of a thousand hosts in
    a fleet are alike.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[str, str]] = {}

    def find_duplicate(self, host: ReportHost, html: str, section: str) -> tuple[str, str] | None:
        """Return the id and the host of the first section with the same text; None if this is the first one."""
        current = (f"{host.id}-{section}", host.name)
        first = self._first.setdefault(sha256(html.encode()).digest(), current)
        return None if first == current else first


def render_chapter(
    read: ReadHost, id_: str, href: str, needs: Needs, sections: Sections, *, brief: bool = False
) -> Chapter:
    """Render the chapter of one host. brief: only the verdicts and the reasons that decide them."""
    host = _make_host(read, id_, needs)
    template = _environment().get_template("brief.html.j2" if brief else "host.html.j2")
    html = template.render(host=host, find_duplicate=partial(sections.find_duplicate, host))
    html = _IGNORED_LINE_ENDS.sub("", html)
    if brief:
        decisive = (variant.decisive.code for variant in (host.best, *host.others) if variant.decisive)
        return Chapter(_make_line(host, href), html, frozenset(decisive), frozenset(), {}, ())
    grounds = (
        (row.capability, variant, ground.key)
        for row in host.rows
        for ground in row.grounds
        for variant in ground.variants
    )
    capability_grounds = (*((row.capability, "", "") for row in host.rows), *grounds)
    variant_grounds = {variant.fit.variant: variant.grounds for variant in (host.best, *host.others)}
    variant_grounds = {variant: variant_grounds[variant] for variant in EVERY_VARIANT if variant in variant_grounds}
    return Chapter(
        _make_line(host, href), html, _reason_codes(host), _cited_evidence(host), variant_grounds, capability_grounds
    )


# ---- a host


def _make_host(read: ReadHost, id_: str, needs: Needs) -> ReportHost:
    facts, evaluation = read.facts, read.evaluation
    host = HostFacts(facts)
    view = make_linux_view(host) if host.is_linux else make_machine_view(host)
    variants = [_make_variant(evaluation.assessment, fit) for fit in evaluation.fits]
    columns = [variant for path in evaluation.assessment.paths for variant in path.every_variant]
    gpus = [f"GPU {gpu.number}: {gpu.name}" for gpu in view.gpus if gpu.cuda]
    best = next(variant for variant in columns if variant.path == evaluation.fits[0].variant)
    offers = {each: tuple(o.capability for o in best.capabilities if o.verdict is each) for each in Verdict}
    return ReportHost(
        id=id_,
        name=facts.host,
        origin=ORIGINS.get(facts.origin, facts.origin),
        kind=facts.origin,
        read_at=facts.read_at,
        winhost=facts.winhost,
        machine=view,
        picture=draw_machine(view, width=WIDTH, columns=COLUMNS),
        recommended=evaluation.assessment.recommended is not None
        and evaluation.fits[0].verdict is not Verdict.UNSUPPORTED,
        recommendation=(
            *verdict_text.describe_recommendation(evaluation, evaluation.fits[0], needs),
            *verdict_text.describe_settling_commands(evaluation),
        ),
        nearest=verdict_text.describe_smaller_workload(evaluation.nearest) if evaluation.nearest else (),
        best=variants[0],
        others=tuple(variants[1:]),
        changes=verdict_text.changes_heading(evaluation.fits[0], evaluation.changes),
        cheapest=evaluation.changes,
        offers={verdict: names for verdict, names in offers.items() if names},
        columns=tuple((variant.path, variant.verdict) for variant in columns),
        rows=make_matrix(columns, needs),
        layout=None
        if host.is_linux
        else make_layout(host, evaluation.assessment.path("dda"), {gpu.location: gpu.number for gpu in view.gpus}),
        memories=tuple(chart for fit in evaluation.fits if (chart := make_memory_chart(fit, gpus))),
        plan=read.plan,
        refused=read.refused,
    )


def _make_line(host: ReportHost, href: str) -> ReportLine:
    reason = host.best.decisive
    return ReportLine(
        href=href,
        name=host.name,
        kind=host.kind,
        system=host.machine.system,
        gpus=host.machine.gpu_counts,
        variant=host.best.fit.variant,
        best=host.best.fit.variant if host.recommended else NO_VARIANT,
        verdict=host.best.fit.verdict,
        decides=(reason.sentence, reason.code) if reason else None,
    )


def _make_variant(assessment: Assessment, fit: Fit) -> ReportVariant:
    (variant,) = (variant for path in assessment.paths for variant in path.every_variant if variant.path == fit.variant)
    return ReportVariant(
        fit=fit,
        decisive=verdict_text.find_decisive_reason(variant, fit),
        reasons=_relevant_reasons(variant, variant.reasons),
        subjects=tuple(
            each for each in _group_subjects(variant) if each.reasons or variant.verdict is not Verdict.UNSUPPORTED
        ),
        lacking=tuple((verdict_text.name_capability(offered), offered.verdict) for offered in fit.lacking),
        grounds=variant.grounds,
    )


def _relevant_reasons(variant: PathVerdict, reasons: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the reasons to show, the most severe first; for an unsupported variant only those that rule it out."""
    is_unsupported = variant.verdict is Verdict.UNSUPPORTED
    return tuple(
        r for r in verdict_text.sort_by_severity(reasons) if not is_unsupported or r.severity is Severity.UNSUPPORTED
    )


def _group_subjects(variant: PathVerdict) -> Iterable[Subjects]:
    """Join GPUs and VMs with the same verdict and reasons to one entry, so that eight equal GPUs take one line."""
    groups: dict[object, list[SubjectVerdict]] = {}
    for subject in (*variant.gpus, *variant.vms):
        reason_keys = tuple((reason.code, reason.observed) for reason in subject.reasons)
        groups.setdefault((subject.kind, subject.verdict, reason_keys), []).append(subject)
    for equal_subjects in groups.values():
        first = equal_subjects[0]
        yield Subjects(
            tuple(each.name for each in equal_subjects), first.verdict, _relevant_reasons(variant, first.reasons)
        )


# ---- codes and evidence


def _reason_codes(host: ReportHost) -> frozenset[str]:
    """Return the codes of all reasons that a chapter shows: of variants and capabilities, and conflicts."""
    variants = (host.best, *host.others)
    variant_reasons = (reason for variant in variants for reason in (*variant.reasons, *variant.fit.denied))
    subjects = (reason for variant in variants for each in variant.subjects for reason in each.reasons)
    offered = (each.reason for row in host.rows for each in row.reasons)
    decisive = (variant.decisive for variant in variants if variant.decisive)
    return frozenset(reason.code for reason in (*variant_reasons, *subjects, *offered, *decisive))


def _cited_evidence(host: ReportHost) -> frozenset[str]:
    """Return the ids of the evidence that a chapter cites, except that of its codes, which `render_page` adds."""
    variants = {key for variant in (host.best, *host.others) for key in variant.grounds}
    rows = {ground.key for row in host.rows for ground in row.grounds}
    return frozenset(variants | rows | {key for found in host.memories for bar in found.bars for key in bar.cited})


# ---- the page


@once
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(shipped("templates") / "report", encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_escape_hidden,
    )
    environment.globals |= {"short": CSS_CLASSES, "name_variants": name_variants}
    environment.globals |= {
        "remedy_words": format_remedy,
        "evidence_lines": evidence_lines,
        "standing": describe_evidence,
    }
    return environment


def _escape_hidden(value: Any) -> Any:
    """Escape the characters of a text that hide or reorder it. Returns the output of a template unchanged."""
    return visible(value) if type(value) is str else value
