"""What is said of hosts as one HTML file that needs nothing else: no script, no network, nothing that moves.

All that hosts and files say is data: `_shown` writes what would hide or reorder text as escapes, and the templates
escape what would be markup.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from winhost import __version__
from winhost.compat import catalogue
from winhost.compat.answer import Judged, Supposed
from winhost.compat.explanation import explain
from winhost.compat.needs import Fit, Needs
from winhost.compat.remedy import Mended
from winhost.model.errors import WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.once import once
from winhost.model.path import path_of
from winhost.model.reason import Assessment, Reason, SubjectVerdict, Verdict
from winhost.model.shipped import shipped
from winhost.render import words
from winhost.render.machine import Machine, machine
from winhost.render.matrix import Row, matrix
from winhost.render.memory import Memory, memory
from winhost.render.picture import Picture, picture
from winhost.render.said import ORIGINS
from winhost.render.strip import Layout, layout
from winhost.resources.host import HostFacts

if TYPE_CHECKING:
    from jinja2 import Environment

MARKS: Mapping[str, str] = {"supported": "✓", "degraded": "≈", "unverified": "?", "unsupported": "✕", "note": "i"}
"""Of verdicts and severities: a colour alone is no sign."""

PICTURES: Mapping[str, Mapping[str, int]] = {
    "narrow": {"width": 344, "columns": 1},
    "middle": {"width": 744, "columns": 3},
    "wide": {"width": 1040, "columns": 4},
}
"""One picture is shown, by the room there is: text that shrinks with a picture cannot be read on a phone."""


@dataclass(frozen=True)
class Unread:
    """A host that could not be read."""

    host: str
    error: WinhostError


@dataclass(frozen=True)
class Subjects:
    """Cards or VMs of which the same is said."""

    names: tuple[str, ...]
    verdict: Verdict
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Way:
    """A path by the best of its ways. decisive: the first reason that its verdict rests on; lacking: what must be
    and is not supported."""

    fit: Fit
    title: str
    means: str
    loses: str
    decisive: Reason | None
    reasons: tuple[Reason, ...]
    subjects: tuple[Subjects, ...]
    lacking: tuple[tuple[str, Verdict], ...]
    grounds: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """A chapter of the report."""

    id: str
    name: str
    origin: str
    kind: str
    read_at: str
    winhost: str
    machine: Machine
    pictures: Mapping[str, Picture]
    recommendation: tuple[str, ...]
    nearest: tuple[str, ...]
    best: Way
    others: tuple[Way, ...]
    changes: str | None
    cheapest: Mended | None
    columns: tuple[tuple[str, Verdict], ...]
    rows: tuple[Row, ...]
    layout: Layout | None
    memories: tuple[Memory, ...]


@dataclass(frozen=True)
class Line:
    """A host in the summary. decides: the sentence of the first reason that its verdict rests on, and its code."""

    id: str
    name: str
    kind: str
    system: str
    cards: tuple[str, ...]
    way: str
    verdict: Verdict
    decides: tuple[str, str] | None


@dataclass(frozen=True)
class Chapter:
    """A host as it stands in the report, with the codes and the evidence that it names."""

    line: Line
    html: str
    codes: frozenset[str]
    cited: frozenset[str]


@dataclass
class Contents:
    """What summary and appendices say of all hosts. It is all that is kept of one whose chapter is written."""

    lines: list[Line] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    cited: set[str] = field(default_factory=set)

    def add(self, chapter: Chapter) -> None:
        """Its line, and what it names."""
        self.lines.append(chapter.line)
        self.codes |= chapter.codes
        self.cited |= chapter.cited


_PIECE = 1 << 16  # characters that are handed on at once


def report(
    hosts: Iterable[tuple[Facts, Judged] | Unread], needs: Needs, supposed: Supposed | None = None
) -> Iterator[str]:
    """The file, in pieces. The same facts and the same wish give the same text.

    Hosts are taken one by one. The summary stands before their chapters and is known after them, so they wait in a
    temporary file. Raises OSError where there is no room for that.
    """
    contents = Contents()
    with TemporaryFile("w+", encoding="utf-8", newline="\n") as waiting:
        for host in hosts:
            if isinstance(host, Unread):
                contents.unread.append(host)
                continue
            chapter = chapter_of(*host, f"host-{len(contents.lines) + 1}", needs)
            waiting.write(chapter.html)
            contents.add(chapter)
        waiting.seek(0)
        yield from page(contents, iter(partial(waiting.read, _PIECE), ""), needs, supposed)


def page(contents: Contents, chapters: Iterable[str], needs: Needs, supposed: Supposed | None) -> Iterator[str]:
    """Summary, chapters and appendices, in pieces."""
    codes = tuple(explain(code) for code in sorted(contents.codes))
    cited = contents.cited | {evidence.id for code in codes for evidence in code.evidence}
    made = (
        _environment()
        .get_template("page.html.j2")
        .stream(
            contents=contents,
            chapters=chapters,
            needs=needs,
            supposed=words.supposed(supposed) if supposed else None,
            codes=codes,
            evidence=[catalogue.evidence()[key] for key in sorted(cited)],
            version=__version__,
        )
    )
    made.enable_buffering(100)
    return made


def chapter_of(facts: Facts, judged: Judged, id_: str, needs: Needs) -> Chapter:
    """One host, told to the end."""
    host = _host(facts, judged, id_, needs)
    html = _environment().get_template("host.html.j2").render(host=host)
    return Chapter(_line(host), html, _codes(judged), _cited(host))


# ---- a host


def _host(facts: Facts, judged: Judged, id_: str, needs: Needs) -> Host:
    host = HostFacts(facts)
    shown = machine(host)
    ways = [_way(judged.assessment, fit) for fit in judged.fits]
    columns = [way for path in judged.assessment.paths for way in path.ways]
    cards = [f"Card {card.number}: {card.name}" for card in shown.cards if card.cuda]
    return Host(
        id=id_,
        name=facts.host,
        origin=ORIGINS.get(facts.origin, facts.origin),
        kind=facts.origin,
        read_at=facts.read_at,
        winhost=facts.winhost,
        machine=shown,
        pictures={name: picture(shown, **size) for name, size in PICTURES.items()},
        recommendation=(*words.recommendation(judged, judged.fits[0], needs), *words.settling(judged)),
        nearest=words.nearest(judged.nearest) if judged.nearest else (),
        best=ways[0],
        others=tuple(ways[1:]),
        changes=words.changes(judged.fits[0], judged.changes),
        cheapest=judged.changes,
        columns=tuple((way.path, way.verdict) for way in columns),
        rows=matrix(columns, needs),
        layout=layout(host, judged.assessment.path("dda"), {card.location: card.number for card in shown.cards}),
        memories=tuple(found for fit in judged.fits if (found := memory(fit, cards))),
    )


def _line(host: Host) -> Line:
    reason = host.best.decisive
    return Line(
        id=host.id,
        name=host.name,
        kind=host.kind,
        system=host.machine.system,
        cards=host.machine.counted,
        way=host.best.fit.way,
        verdict=host.best.fit.verdict,
        decides=(reason.sentence, reason.code) if reason else None,
    )


def _way(assessment: Assessment, fit: Fit) -> Way:
    (way,) = (way for path in assessment.paths for way in path.ways if way.path == fit.way)
    topic = catalogue.topics()[path_of(fit.way)]
    return Way(
        fit=fit,
        title=topic.title,
        means=topic.means,
        loses=topic.loses or "",
        decisive=words.decisive(way, fit),
        reasons=tuple(words.heaviest_first(way.reasons)),
        subjects=tuple(_alike((*way.cards, *way.vms))),
        lacking=tuple((words.named(offered), offered.verdict) for offered in fit.lacking),
        grounds=way.grounds,
    )


def _alike(subjects: Iterable[SubjectVerdict]) -> Iterable[Subjects]:
    """Eight cards of one kind are said once."""
    groups: dict[object, list[SubjectVerdict]] = {}
    for subject in subjects:
        found = tuple((reason.code, reason.observed) for reason in subject.reasons)
        groups.setdefault((subject.kind, subject.verdict, found), []).append(subject)
    for alike in groups.values():
        first = alike[0]
        yield Subjects(tuple(each.name for each in alike), first.verdict, tuple(words.heaviest_first(first.reasons)))


# ---- what it rests on


def _codes(judged: Judged) -> frozenset[str]:
    """All that a chapter names: by paths, by what they offer, and by what speaks against the wish."""
    ways = [way for path in judged.assessment.paths for way in path.ways]
    offered = [offer for way in ways for offer in way.capabilities]
    lacking = [offer for fit in judged.fits for offer in fit.lacking]
    own = (reason for way in ways for reason in way.every_reason)
    denied = (reason for fit in judged.fits for reason in fit.denied)
    found = [*own, *denied, *(reason for offer in (*offered, *lacking) for reason in offer.reasons)]
    return frozenset(reason.code for reason in found)


def _cited(host: Host) -> frozenset[str]:
    """The evidence that a chapter names itself, by id; what its codes rest on comes with them."""
    ways = {key for way in (host.best, *host.others) for key in way.grounds}
    rows = {ground.key for row in host.rows for ground in row.grounds}
    return frozenset(ways | rows | {key for found in host.memories for bar in found.bars for key in bar.cited})


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
        finalize=_shown,
    )
    made.globals |= {"marks": MARKS, "remedy": words.remedy}
    return made


def _shown(value: Any) -> Any:
    """Text from hosts, with all that would hide or reorder it as escapes; what a template made is markup already."""
    return visible(value) if type(value) is str else value
