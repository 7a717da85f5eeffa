"""Reports of shipped hosts, and a parser of their HTML."""

from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from winhost.compat.evaluation import Requirements, evaluate
from winhost.compat.needs import merge_needs
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.facts import Facts
from winhost.model.workload import Workload
from winhost.model.workloadfile import load_workload
from winhost.render.report import ReadHost, render_report

WORKLOADS = Path(__file__).parents[2] / "examples" / "workloads"
VOID = {"meta", "link", "br", "hr", "img", "input"}


@cache
def read(host: str) -> Facts:
    """Read a host as a session does: before the role there are no VMs."""
    facts, section = expand(find(host))
    return Machine(facts, section, LabClock(0)).facts()


def request(workload: Workload | None = None, must: tuple[str, ...] = ()) -> Requirements:
    return Requirements(merge_needs(must, workload), workload=workload)


def page_of(*facts: Facts, workload: str | None = None, must: tuple[str, ...] = ()) -> str:
    meant = load_workload(WORKLOADS / f"{workload}.yaml") if workload else None
    meaning = request(meant, must)
    return "".join(render_report((ReadHost(each, evaluate(each, meaning)) for each in facts), meaning.needs))


@dataclass(eq=False)
class Element:
    tag: str
    attributes: dict[str, str]
    children: "list[Element | str]" = field(default_factory=list)

    def every(self, tag: str = "", **attributes: str) -> "list[Element]":
        """Return the elements below, in order. kind: one of the names in `class`."""
        kind = attributes.pop("kind", None)
        found = []
        for child in self.children:
            if isinstance(child, Element):
                fitting = child.tag == (tag or child.tag) and attributes.items() <= child.attributes.items()
                if fitting and (kind is None or kind in child.attributes.get("class", "").split()):
                    found.append(child)
                found += child.every(tag, **attributes, **({"kind": kind} if kind else {}))
        return found

    @property
    def text(self) -> str:
        return " ".join("".join(self._texts()).split())

    def _texts(self) -> list[str]:
        return [text for child in self.children for text in ([child] if isinstance(child, str) else child._texts())]


class _Builder(HTMLParser):
    """A strict parser: elements have to be closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> says one thing twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(page: str) -> Element:
    """Parse a document in which every element is closed."""
    builder = _Builder()
    builder.feed(page)
    builder.close()
    (root,) = builder.open
    return root
