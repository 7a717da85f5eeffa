"""What is said of hosts as one HTML file that needs nothing else: no script, no network, nothing that moves.

All that hosts and files say is data: `_shown` writes what would hide or reorder text as escapes, and the templates
escape what would be markup.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winhost import __version__
from winhost.compat import catalogue
from winhost.compat.answer import Judged, Wish, judge
from winhost.compat.explanation import explain
from winhost.compat.needs import Fit, Needs
from winhost.compat.remedy import Mended
from winhost.model.errors import WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.once import once
from winhost.model.path import path_of
from winhost.model.reason import Assessment, Evidence, Explanation, PathVerdict, Reason, SubjectVerdict, Verdict
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
    best: Way
    others: tuple[Way, ...]
    changes: str | None
    cheapest: Mended | None
    columns: tuple[tuple[str, Verdict], ...]
    rows: tuple[Row, ...]
    layout: Layout | None
    memories: tuple[Memory, ...]


def report(read: Sequence[Facts], unread: Sequence[Unread], wish: Wish) -> str:
    """The file. The same facts and the same wish give the same text."""
    judged = [judge(facts, wish) for facts in read]
    hosts = tuple(
        _host(facts, answer, number, wish.needs)
        for number, (facts, answer) in enumerate(zip(read, judged, strict=True), 1)
    )
    codes = _codes(judged)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            hosts=hosts,
            unread=unread,
            needs=wish.needs,
            codes=codes,
            evidence=_evidence(hosts, codes),
            version=__version__,
        )
    )


# ---- a host


def _host(facts: Facts, judged: Judged, number: int, needs: Needs) -> Host:
    host = HostFacts(facts)
    shown = machine(host)
    ways = [_way(judged.assessment, fit) for fit in judged.fits]
    columns = [way for path in judged.assessment.paths for way in path.ways]
    cards = [f"Card {card.number}: {card.name}" for card in shown.cards if card.cuda]
    return Host(
        id=f"host-{number}",
        name=facts.host,
        origin=ORIGINS.get(facts.origin, facts.origin),
        kind=facts.origin,
        read_at=facts.read_at,
        winhost=facts.winhost,
        machine=shown,
        pictures={name: picture(shown, **size) for name, size in PICTURES.items()},
        recommendation=words.recommendation(judged.fits[0], needs),
        best=ways[0],
        others=tuple(ways[1:]),
        changes=words.changes(judged.fits[0], judged.changes),
        cheapest=judged.changes,
        columns=tuple((way.path, way.verdict) for way in columns),
        rows=matrix(columns, needs),
        layout=layout(host, judged.assessment.path("dda"), {card.location: card.number for card in shown.cards}),
        memories=tuple(found for fit in judged.fits if (found := memory(fit, cards))),
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


def _codes(judged: Iterable[Judged]) -> tuple[Explanation, ...]:
    ways = [way for each in judged for path in each.assessment.paths for way in path.ways]
    offered = [offer for way in ways for offer in way.capabilities]
    lacking = [offer for each in judged for fit in each.fits for offer in fit.lacking]
    denied = (reason for each in judged for fit in each.fits for reason in fit.denied)
    found = [*_reasons(ways), *denied, *(reason for offer in (*offered, *lacking) for reason in offer.reasons)]
    return tuple(explain(code) for code in sorted({reason.code for reason in found}))


def _reasons(ways: Iterable[PathVerdict]) -> Iterable[Reason]:
    return (reason for way in ways for reason in way.every_reason)


def _evidence(hosts: Iterable[Host], codes: Iterable[Explanation]) -> tuple[Evidence, ...]:
    """All that the page cites, by id."""
    cited = {evidence.id for code in codes for evidence in code.evidence}
    for host in hosts:
        cited |= {key for way in (host.best, *host.others) for key in way.grounds}
        cited |= {ground.key for row in host.rows for ground in row.grounds}
        cited |= {key for found in host.memories for bar in found.bars for key in bar.cited}
    return tuple(catalogue.evidence()[key] for key in sorted(cited))


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
