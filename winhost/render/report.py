"""The report on hosts as HTML: one file, or one file for each host, without scripts or references to other sites.

Text from hosts and files is data: `_escaped` writes characters that hide or reorder text as escapes, and the templates
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
from winhost.render.machine_view import MachinePicture, linux_machine, machine
from winhost.render.matrix import MatrixRow, matrix, named
from winhost.render.memory_bars import MemoryChart, memory
from winhost.render.picture import Picture, picture
from winhost.render.strip import Layout, layout
from winhost.resources.host import HostFacts

if TYPE_CHECKING:
    from jinja2 import Environment

SHORT: Mapping[str, str] = {"supported": "s", "degraded": "d", "unverified": "q", "unsupported": "u", "note": "n"}
"""CSS classes of verdicts and severities: short, because a report on hundreds of hosts has tens of thousands."""

# The diagram keeps this width and scrolls sideways on a phone: scaled down, its text would be too small to read.
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
    """A host with its evaluation; of a Linux of its own also its plan, or why there is none."""

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
    that are not supported."""

    fit: Fit
    decisive: Finding | None
    reasons: tuple[Finding, ...]
    subjects: tuple[Subjects, ...]
    lacking: tuple[tuple[str, Verdict], ...]
    grounds: tuple[str, ...]


@dataclass(frozen=True)
class ReportHost:
    """The values of a host's chapter, as the templates use them."""

    id: str
    name: str
    origin: str
    kind: str
    read_at: str
    winhost: str
    machine: MachinePicture
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
    """A host in the summary. best: the recommended variant, or none.

    decides: the sentence and the code of the first reason that decides its verdict.
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
    """A host's chapter as HTML, with the codes and the evidence that it mentions.

    variants: evidence that each works, by id; grounds: evidence that capabilities work, by capability, variant and id.
    """

    line: ReportLine
    html: str
    codes: frozenset[str]
    cited: frozenset[str]
    variants: Mapping[str, tuple[str, ...]]
    grounds: tuple[tuple[str, str, str], ...]


@dataclass
class Contents:
    """The data of all hosts for the summary and the appendices; nothing else is kept once a chapter is written.

    home: on the page of one host, the link to the page of all hosts.
    """

    home: str | None = None
    lines: list[ReportLine] = field(default_factory=list)
    unread: list[UnreadHost] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    cited: set[str] = field(default_factory=set)
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    grounds: dict[str, dict[str, dict[str, None]]] = field(default_factory=dict)

    def add(self, chapter: Chapter) -> None:
        """Keep the chapter's line in the summary, and what it mentions."""
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
        """Count the hosts with each best variant, by verdict."""
        found: dict[str, Counter[Verdict]] = {variant: Counter() for variant in (*EVERY_VARIANT, NO_VARIANT)}
        for line in self.lines:
            found[line.best][line.verdict] += 1
        return [(variant, row) for variant, row in found.items() if row]

    @property
    def sorted(self) -> list[tuple[str, list[tuple[str, list[ReportLine]]]]]:
        """Tables of contents: a title each, and below its headings the hosts by name."""
        lines = sorted(self.lines, key=lambda line: [_natural(part) for part in re.split(r"(\d+)", line.name)])
        return [
            ("By verdict", _grouped(lines, lambda line: (line.verdict,), Verdict)),
            ("By best option", _grouped(lines, lambda line: (line.best,), (*EVERY_VARIANT, NO_VARIANT))),
            (BY_NAME, [("", lines)]),
            ("By system", _grouped(lines, lambda line: (line.system,))),
            (
                "By GPU",
                _grouped(lines, lambda line: {re.sub(r"^\d+x ", "", gpu) for gpu in line.gpus} or (NO_VARIANT,)),
            ),
        ]


def _natural(part: str) -> tuple[int, str]:
    """A part of a name as a sort key: numbers by value, so that gpu-2 comes before gpu-10."""
    return (int(part), "") if part.isdecimal() and len(part) < 20 else (-1, part.casefold())


def _grouped(
    lines: Iterable[ReportLine], keys: Callable[[ReportLine], Iterable[str]], order: Iterable[str] = ()
) -> list[tuple[str, list[ReportLine]]]:
    """Lines by key: the keys in `order` first, the others after them by name."""
    found: dict[str, list[ReportLine]] = {key: [] for key in order}
    for line in lines:
        for key in keys(line):
            found.setdefault(key, []).append(line)
    first = len(tuple(order))
    named = [*found][:first] + sorted([*found][first:])
    return [(key, found[key]) for key in named if found[key]]


_PIECE = 1 << 16  # characters per piece


def report(
    hosts: Iterable[ReadHost | UnreadHost],
    needs: Needs,
    supposed: Supposed | None = None,
    *,
    brief: bool = False,
) -> Iterator[str]:
    """One file, in pieces. The same facts and the same request give the same text. brief: one printed page per host.

    Hosts are read one by one. The summary comes before their chapters but is known only after them, so chapters are
    written to a temporary file first. Raises OSError where the disk is full.
    """
    contents, sections = Contents(), Sections()
    with TemporaryFile("w+", encoding="utf-8", newline="\n") as waiting:
        for host in hosts:
            if isinstance(host, UnreadHost):
                contents.unread.append(host)
                continue
            id_ = f"host-{len(contents.lines) + 1}"
            chapter = chapter_of(host, id_, f"#{id_}", needs, sections, brief=brief)
            waiting.write(chapter.html)
            contents.add(chapter)
        waiting.seek(0)
        yield from page(contents, iter(partial(waiting.read, _PIECE), ""), needs, supposed, brief=brief)


def reports(
    hosts: Iterable[ReadHost | UnreadHost],
    needs: Needs,
    supposed: Supposed | None = None,
    *,
    brief: bool = False,
) -> Iterator[tuple[str, Iterator[str]]]:
    """File names and their text: one for each host, then `index.html` with links to them and what all of them mention:
    reasons, options, capabilities and evidence.
    """
    every = Contents()
    taken: set[str] = set()
    for host in hosts:
        if isinstance(host, UnreadHost):
            every.unread.append(host)
            continue
        file = _file_name(host.facts.host, taken)
        chapter = chapter_of(host, "host-1", file, needs, Sections(), brief=brief)
        html = _TO_APPENDIX.sub(rf"\g<0>{INDEX}", chapter.html)
        own = Contents(home=INDEX, lines=[chapter.line])
        yield file, page(own, (html,), needs, supposed, brief=brief)
        every.add(replace(chapter, html=""))
    yield INDEX, page(every, (), needs, supposed, brief=brief)


INDEX = "index.html"
_TO_APPENDIX = re.compile(r'href="(?=#[rce]-)')  # no text of a host looks like it: its quotes are escaped
# Line ends that HTML ignores; without them, the chapters of hundreds of hosts are a tenth smaller.
_BEFORE_BLOCKS = re.compile(
    r"\n+(?=</?(?:p|[ou]l|li|div|details|summary|section|h\d|t[dhr]|g|rect|text|path|figure)\b)"
)


def _file_name(host: str, taken: set[str]) -> str:
    """The file name of a host's page: valid on every file system, and unique."""
    base = "host-" + re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100]
    names = (base, *(f"{base}-{number}" for number in range(2, len(taken) + 3)))
    name = next(name for name in names if name.lower() not in taken)
    taken.add(name.lower())
    return f"{name}.html"


def page(
    contents: Contents, chapters: Iterable[str], needs: Needs, supposed: Supposed | None = None, *, brief: bool = False
) -> Iterator[str]:
    """Summary, chapters and appendices, in pieces."""
    codes = tuple(explain(code) for code in sorted(contents.codes))
    # The paths of Windows all or none, because each Windows host has all of them.
    there = {path_of(variant) for variant in contents.variants}
    paths = [path for path in EVERY_PATH if path in there or (path in PATHS and there & {*PATHS})]
    cited = contents.cited | {evidence.id for code in codes for evidence in code.evidence}
    made = (
        _environment()
        .get_template("page.html.j2")
        .stream(
            contents=contents,
            chapters=chapters,
            needs=needs,
            supposed=verdict_text.supposed(supposed) if supposed else None,
            codes=codes,
            evidence=[] if brief else [catalogue.evidence()[key] for key in sorted(cited)],
            topics=catalogue.topics(),
            paths=paths,
            version=__version__,
        )
    )
    made.enable_buffering(100)
    return made


class Sections:
    """The sections that a page holds, so that hosts of which the same is to be told share it: of a thousand hosts in a
    fleet, most are alike.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[str, str]] = {}

    def twin(self, host: ReportHost, html: str, section: str) -> tuple[str, str] | None:
        """The id and the host of a section with the same text; None for the first of them."""
        own = (f"{host.id}-{section}", host.name)
        first = self._first.setdefault(sha256(html.encode()).digest(), own)
        return None if first == own else first


def chapter_of(
    read: ReadHost, id_: str, href: str, needs: Needs, sections: Sections, *, brief: bool = False
) -> Chapter:
    """The chapter of one host. brief: only the verdicts and the reasons that decide them."""
    host = _host(read, id_, needs)
    template = _environment().get_template("brief.html.j2" if brief else "host.html.j2")
    html = template.render(host=host, twin=partial(sections.twin, host))
    html = _BEFORE_BLOCKS.sub("", html)
    if brief:
        decisive = (variant.decisive.code for variant in (host.best, *host.others) if variant.decisive)
        return Chapter(_line(host, href), html, frozenset(decisive), frozenset(), {}, ())
    grounds = (
        (row.capability, variant, ground.key)
        for row in host.rows
        for ground in row.grounds
        for variant in ground.variants
    )
    every = (*((row.capability, "", "") for row in host.rows), *grounds)
    of_variants = {variant.fit.variant: variant.grounds for variant in (host.best, *host.others)}
    of_variants = {variant: of_variants[variant] for variant in EVERY_VARIANT if variant in of_variants}
    return Chapter(_line(host, href), html, _codes(host), _cited(host), of_variants, every)


# ---- a host


def _host(read: ReadHost, id_: str, needs: Needs) -> ReportHost:
    facts, evaluation = read.facts, read.evaluation
    host = HostFacts(facts)
    view = linux_machine(host) if host.is_linux else machine(host)
    variants = [_variant(evaluation.assessment, fit) for fit in evaluation.fits]
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
        picture=picture(view, width=WIDTH, columns=COLUMNS),
        recommended=evaluation.assessment.recommended is not None
        and evaluation.fits[0].verdict is not Verdict.UNSUPPORTED,
        recommendation=(
            *verdict_text.recommendation(evaluation, evaluation.fits[0], needs),
            *verdict_text.settling(evaluation),
        ),
        nearest=verdict_text.nearest(evaluation.nearest) if evaluation.nearest else (),
        best=variants[0],
        others=tuple(variants[1:]),
        changes=verdict_text.changes(evaluation.fits[0], evaluation.changes),
        cheapest=evaluation.changes,
        offers={verdict: names for verdict, names in offers.items() if names},
        columns=tuple((variant.path, variant.verdict) for variant in columns),
        rows=matrix(columns, needs),
        layout=None
        if host.is_linux
        else layout(host, evaluation.assessment.path("dda"), {gpu.location: gpu.number for gpu in view.gpus}),
        memories=tuple(found for fit in evaluation.fits if (found := memory(fit, gpus))),
        plan=read.plan,
        refused=read.refused,
    )


def _line(host: ReportHost, href: str) -> ReportLine:
    reason = host.best.decisive
    return ReportLine(
        href=href,
        name=host.name,
        kind=host.kind,
        system=host.machine.system,
        gpus=host.machine.counted,
        variant=host.best.fit.variant,
        best=host.best.fit.variant if host.recommended else NO_VARIANT,
        verdict=host.best.fit.verdict,
        decides=(reason.sentence, reason.code) if reason else None,
    )


def _variant(assessment: Assessment, fit: Fit) -> ReportVariant:
    (variant,) = (variant for path in assessment.paths for variant in path.every_variant if variant.path == fit.variant)
    return ReportVariant(
        fit=fit,
        decisive=verdict_text.decisive(variant, fit),
        reasons=_telling(variant, variant.reasons),
        subjects=tuple(each for each in _alike(variant) if each.reasons or variant.verdict is not Verdict.UNSUPPORTED),
        lacking=tuple((verdict_text.named(offered), offered.verdict) for offered in fit.lacking),
        grounds=variant.grounds,
    )


def _telling(variant: PathVerdict, reasons: Iterable[Finding]) -> tuple[Finding, ...]:
    """The reasons to show, the heaviest first; for an unsupported variant only those that make it so."""
    ruled_out = variant.verdict is Verdict.UNSUPPORTED
    return tuple(r for r in verdict_text.heaviest_first(reasons) if not ruled_out or r.severity is Severity.UNSUPPORTED)


def _alike(variant: PathVerdict) -> Iterable[Subjects]:
    """GPUs and VMs with the same verdict and reasons as one entry, so that eight equal GPUs take one line."""
    groups: dict[object, list[SubjectVerdict]] = {}
    for subject in (*variant.gpus, *variant.vms):
        found = tuple((reason.code, reason.observed) for reason in subject.reasons)
        groups.setdefault((subject.kind, subject.verdict, found), []).append(subject)
    for alike in groups.values():
        first = alike[0]
        yield Subjects(tuple(each.name for each in alike), first.verdict, _telling(variant, first.reasons))


# ---- codes and evidence


def _codes(host: ReportHost) -> frozenset[str]:
    """Codes of all reasons that a chapter shows: of variants, of capabilities, and those that rule out the request."""
    variants = (host.best, *host.others)
    own = (reason for variant in variants for reason in (*variant.reasons, *variant.fit.denied))
    subjects = (reason for variant in variants for each in variant.subjects for reason in each.reasons)
    offered = (each.reason for row in host.rows for each in row.reasons)
    decisive = (variant.decisive for variant in variants if variant.decisive)
    return frozenset(reason.code for reason in (*own, *subjects, *offered, *decisive))


def _cited(host: ReportHost) -> frozenset[str]:
    """Ids of the evidence that a chapter mentions itself; the evidence of its codes is added with the codes."""
    variants = {key for variant in (host.best, *host.others) for key in variant.grounds}
    rows = {ground.key for row in host.rows for ground in row.grounds}
    return frozenset(variants | rows | {key for found in host.memories for bar in found.bars for key in bar.cited})


# ---- the page


@once
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(shipped("templates") / "report", encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_escaped,
    )
    made.globals |= {"short": SHORT, "named": named}
    made.globals |= {"remedy_words": format_remedy, "evidence_lines": evidence_lines, "standing": describe_evidence}
    return made


def _escaped(value: Any) -> Any:
    """Text with the characters that hide or reorder it as escapes; the output of a template is left as it is."""
    return visible(value) if type(value) is str else value
