"""Tests of the report: it contains the whole evaluation, no markup from a host, and is the same each time."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Line, line
from tests.hostile.hosts import TAKEN, called, with_taken
from tests.processes import PATIENCE_S
from tests.render.pages import WORKLOADS, Element, page_of, parsed, read, request
from winhost.compat.evaluation import evaluate
from winhost.findings.show import describe_evidence
from winhost.hardware.processors import with_address_width
from winhost.knowledge import catalogue
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import visible
from winhost.model.path import WINDOWS_VARIANTS
from winhost.model.reason import Severity, Verdict
from winhost.model.shipped import example_hosts
from winhost.model.units import GiB
from winhost.model.workloadfile import load_workload
from winhost.render.fact_text import text_width, truncate
from winhost.render.machine_view import make_machine_view
from winhost.render.memory_bars import make_memory_chart
from winhost.render.picture import HEADING, LETTER, Box, draw_machine
from winhost.render.report import COLUMNS, CSS_CLASSES, INDEX, NO_VARIANT, WIDTH
from winhost.render.strip import Layout, make_layout
from winhost.resources.host import HostFacts

__all__ = ["line"]

HOSTS = ("server2025-3gpu", "server2025-8gpu", "win11-pro-1gpu", "hostile-vm-names", "gpu-assigned-elsewhere")
some_hosts = pytest.mark.parametrize("host", HOSTS)


def one(found: list[Element]) -> Element:
    (element,) = found
    return element


# ---- the file


@pytest.mark.costly
@some_hosts
def test_it_is_one_sound_file_that_loads_nothing_and_runs_nothing(host: str) -> None:
    page = page_of(read(host), workload="three-share-a-gpu")
    root = parsed(page)
    ids = [element.attributes["id"] for element in root.every() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for element in root.every():
        assert element.tag not in ("script", "link", "img", "iframe", "object", "base", "form")
        assert not [name for name in element.attributes if name.startswith("on") or name == "src"]
        assert element.attributes.get("href", "#")[0] == "#"
        named = element.attributes.get("aria-labelledby", "")
        assert {element.attributes.get("href", "#")[1:], *named.split()} - {""} <= set(ids)
    assert not re.search(r"url\(|@import", page)


def test_headings_leave_out_no_level() -> None:
    root = parsed(page_of(read("server2025-3gpu"), read("win11-pro-1gpu"), workload="70b-awq-on-2x48gb"))
    levels = [int(element.tag[1]) for element in root.every() if re.fullmatch(r"h[1-6]", element.tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.costly
def test_the_same_facts_give_the_same_file(line: Line) -> None:
    """The order of sets differs between processes."""
    facts = line.facts("server2025-3gpu")
    made = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "winhost", "report", facts, "-o", f"{seed}.html"]
        subprocess.run(
            command, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, timeout=PATIENCE_S
        )
        made.append(Path(f"{seed}.html").read_bytes())
    assert made[0] == made[1]


# ---- what is said


@pytest.mark.costly
@some_hosts
def test_every_cell_of_the_matrix_is_the_verdict_and_its_reasons_are_behind_it(host: str) -> None:
    evaluation = evaluate(read(host), request())
    variants = {variant.path: variant for variant in evaluation.assessment.every_variant}
    root = parsed(page_of(read(host)))
    grid = one(root.every("div", kind="matrix"))
    itself = one(grid.every("div", kind="itself"))
    assert classes(itself) == [CSS_CLASSES[variant.verdict] for variant in variants.values()]
    rows = grid.every("details")
    assert len(rows) == len(CAPABILITIES)
    possible = [variant for variant in variants.values() if variant.verdict is not Verdict.UNSUPPORTED]
    for name, row in zip(CAPABILITIES, rows, strict=True):
        assert catalogue.topics()[name].title in one(row.every("summary")).text
        assert classes(row) == [
            CSS_CLASSES[variant.offers(name).verdict] + "m" * (variant not in possible) for variant in variants.values()
        ]  # what an unsupported way would offer is not green
        linked = {link.attributes["href"] for link in row.every("a")}
        assert linked == {f"#c-{name}", *(f"#r-{r.code}" for variant in possible for r in variant.offers(name).reasons)}
        about = one(root.every("details", id=f"c-{name}"))
        assert {f"#e-{key}" for variant in possible for key in variant.offers(name).grounds} == {
            link.attributes["href"] for link in about.every("a")
        }
    assert set(variants) == set(WINDOWS_VARIANTS)


def classes(root: Element) -> list[str]:
    return [cell.attributes["class"] for cell in root.every("i")]


@some_hosts
def test_every_way_stands_with_all_of_its_reasons_or_with_what_rules_it_out(host: str) -> None:
    evaluation = evaluate(read(host), request())
    root = parsed(page_of(read(host)))
    told = root.every("details", kind="variant")
    assert [one(variant.every("summary")).text.split()[0] for variant in told] == [
        fit.variant for fit in evaluation.fits
    ]
    variants = {variant.path: variant for variant in evaluation.assessment.every_variant}
    for fit, shown in zip(evaluation.fits, told, strict=True):
        variant = variants[fit.variant]
        codes = [link.text for link in shown.every("a", kind="code")]
        for reason in variant.every_reason:
            if variant.verdict is not Verdict.UNSUPPORTED or reason.severity is Severity.UNSUPPORTED:
                assert " ".join(visible(reason.observed).split()) in shown.text
                assert reason.code in codes
        assert codes


def test_what_is_recommended_is_three_sentences_of_the_terminal(line: Line) -> None:
    said = line("assess", "--facts", line.facts("server2025-role-installed"))
    page = parsed(page_of(read("server2025-role-installed")))
    sentences = [paragraph.text for paragraph in one(page.every("section", kind="recommended")).every("p")]
    assert len(sentences) == 3
    assert [sentence for sentence in sentences if sentence not in said.out] == []


def test_the_cheapest_changes_stand_where_no_way_works() -> None:
    page = parsed(page_of(read("only-display"), must=("nvlink", "kubernetes-per-gpu")))
    told = one(page.every("section", kind="recommended")).text
    assert "No option works here as it is and meets the requirements" in told
    assert "No known change would make any option verified here." in told
    rows = one(page.every("div", kind="matrix")).every("details")
    assert ["needed" in one(row.every("summary")).text for row in rows[:3]] == [True, True, False]


@pytest.mark.parametrize("origin", ["synthetic", "imported", "recorded"])
def test_from_where_the_facts_are_is_said_in_the_summary_and_with_the_host(origin: str) -> None:
    page = parsed(page_of(replace(read("win11-pro-1gpu"), origin=origin)))
    assert [badge.text.split(":")[0] for badge in page.every(kind="origin")] == [origin, origin]
    assert all(origin in badge.attributes["class"].split() for badge in page.every(kind="origin"))


def test_all_evidence_has_its_kind_and_its_date() -> None:
    page = parsed(page_of(read("server2025-3gpu")))
    entries = [entry for entry in page.every("details", kind="entry") if entry.attributes["id"].startswith("e-")]
    assert len(entries) > 20
    for entry in entries:
        known = catalogue.evidence()[entry.attributes["id"].removeprefix("e-")]
        assert describe_evidence(known) in entry.text
        assert " ".join(known.claim.split()) in entry.text


# ---- names


def tags(root: Element) -> list[tuple[str, tuple[str, ...]]]:
    return [(element.tag, tuple(element.attributes)) for element in root.every()]


@cache
def tags_without_harm() -> list[tuple[str, tuple[str, ...]]]:
    return tags(parsed(page_of(called("a-name-without-harm").facts())))


@pytest.mark.costly
@with_taken
def test_a_name_is_shown_and_none_of_it_is_markup(value: str) -> None:
    page = page_of(called(value).facts())
    assert all(text.isprintable() for text in page.split("\n"))
    root = parsed(page)
    assert tags(root) == tags_without_harm()
    assert " ".join(visible(value).split()) in root.text


def test_markup_in_a_name_would_be_seen_by_these_tests() -> None:
    page = page_of(called("a-name-without-harm").facts())
    assert tags(parsed(page.replace("a-name-without-harm", TAKEN["html"]))) != tags_without_harm()


def test_reversed_text_stands_as_its_escape() -> None:
    page = page_of(read("hostile-vm-names"))
    assert "\u202e" not in page
    assert "\\u202e" in page


# ---- drawn to scale


@pytest.mark.parametrize(("width", "columns"), [(WIDTH, COLUMNS), (344, 1)])
@some_hosts
def test_nothing_of_a_picture_overlaps_or_leaves_its_frame(host: str, width: int, columns: int) -> None:
    shown = make_machine_view(HostFacts(read(host)))
    made = draw_machine(shown, width=width, columns=columns)
    frame, *boxes = made.boxes
    assert (frame.width, frame.height) == (made.width, made.height) == (width, frame.height)
    assert len(boxes) == len(shown.sockets) + 1 + len(shown.gpus) + len(shown.vms)
    assert [(a, b) for a, b in combinations(boxes, 2) if overlap(a, b)] == []
    for box in boxes:
        assert box.x >= 0
        assert box.x + box.width <= frame.width
        assert box.y >= 0
        assert box.y + box.height <= frame.height
        for text in box.texts:
            room = (box.x + box.width - text.x) / (HEADING if text.style == "heading" else LETTER)
            assert text_width(text.text) <= room
            assert box.y < text.y <= box.y + box.height
        if box.bar:
            assert box.bar.filled <= box.bar.width
            assert max(text.y for text in box.texts) < box.bar.y < box.bar.y + 8 <= box.y + box.height


def overlap(one: Box, other: Box) -> bool:
    apart = one.x + one.width <= other.x or other.x + other.width <= one.x
    return not (apart or one.y + one.height <= other.y or other.y + other.height <= one.y)


def test_a_gpu_that_a_vm_has_is_drawn_as_given_and_listed_with_the_vm() -> None:
    shown = make_machine_view(HostFacts(read("gpu-assigned-elsewhere")))
    boxes = draw_machine(shown, width=WIDTH, columns=COLUMNS).boxes
    given = [box for box in boxes if box.kind == "given"]
    assert [box.texts[0].text for box in given] == ["4 NVIDIA L40S"]
    assert any("→ files-01" in text.text for text in given[0].texts)
    (has,) = (box for box in boxes if box.texts[0].text == "VM files-01")
    assert has.texts[-1].text == "■ 4 NVIDIA L40S"


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [("name", 4, "name"), ("names", 4, "nam…"), ("日本語", 5, "日本…"), ("a\x1bb", 6, "a\\x1bb")],
)
def test_text_is_cut_by_what_is_seen_of_it(text: str, room: int, shown: str) -> None:
    assert truncate(text, room) == shown


def layout_of(host: str, address_width: int | None = None) -> Layout:
    facts = with_address_width(HostFacts(read(host)), address_width).document
    numbers = {gpu.location: number for number, gpu in enumerate(HostFacts(facts).gpus, 1)}
    made = make_layout(HostFacts(facts), evaluate(facts, request()).assessment.path("dda"), numbers)
    assert made is not None
    return made


def test_windows_are_to_scale_and_numbered_as_the_gpus() -> None:
    high, low = layout_of("server2025-role-installed").strips
    assert [(piece.number, piece.what) for piece in high.pieces] == [
        (2, "NVIDIA GeForce RTX 5060 Ti"),
        (3, "NVIDIA GeForce RTX 4090"),
        (4, "NVIDIA L40S"),
    ]
    # From 63.5 GiB on: the GPUs begin at 64, 96 and 192 GiB, and the window is 194 GiB long.
    assert [piece.left for piece in high.pieces] == [
        pytest.approx(100 * at / 194, abs=0.01) for at in (0.5, 32.5, 128.5)
    ]
    assert [piece.kind for piece in low.pieces] == ["reserved", "gpu", "gpu", "gpu", "reserved"]
    assert low.pieces[-1].left + low.pieces[-1].width == pytest.approx(100, abs=0.01)
    for strip in (high, low):
        for before, after in zip(strip.pieces, strip.pieces[1:], strict=False):
            assert before.left + before.width <= after.left + 0.01


def test_as_many_gpus_as_one_vm_can_have_are_drawn_and_why_not_all() -> None:
    made = layout_of("server2025-role-installed", address_width=38)
    assert made.refused is not None
    assert "38 physical address bits" in made.refused
    assert made.gpus == len([piece for piece in made.strips[0].pieces if piece.kind == "gpu"]) == 2


def test_a_window_above_what_one_tool_reports_is_drawn_whole_with_that_doubt() -> None:
    made = layout_of("server2025-8gpu")
    assert made.refused is None
    assert made.gpus == len([piece for piece in made.strips[0].pieces if piece.kind == "gpu"]) == 8
    assert "262,656 MiB" in made.doubts[-1]


def test_bars_of_memory_hold_every_line_of_the_budget() -> None:
    workload = load_workload(WORKLOADS / "70b-awq-on-2x48gb.yaml")
    evaluation = evaluate(read("server2025-3gpu"), request(workload))
    (fit,) = (fit for fit in evaluation.fits if fit.variant == "dda")
    made = make_memory_chart(fit, ["GPU 2", "GPU 3", "GPU 4"])
    assert made is not None
    assert fit.budget is not None
    assert sum(len(bar.shares) for bar in made.bars) == len(fit.budget.lines)
    full = {bar.title: bar for bar in made.bars}
    assert full["GPU 3"].verdict == "may fit"
    assert full["GPU 3"].limit is not None
    assert full["GPU 3"].limit < 100
    for bar in made.bars:
        ends = [share.left + share.width for share in bar.shares]
        assert ends == sorted(ends)
        assert ends[-1] <= 100.01
        largest = max(bar.shares, key=lambda share: share.line.bytes)
        whole = largest.line.bytes / largest.width * 100
        assert whole == pytest.approx(
            max(sum(s.line.bytes for s in bar.shares), float(bar_capacity(bar.capacity))), rel=0.01
        )
    assert made.fixes


def bar_capacity(shown: str) -> float:
    return 0 if shown == "unknown" else float(shown.removesuffix(" GiB")) * GiB


# ---- the command


def test_the_command_writes_the_file_and_names_it(line: Line) -> None:
    facts = [line.facts(host) for host in ("server2025-3gpu", "win11-pro-1gpu")]
    said = line("report", *facts, "-o", "report.html")
    assert (said.code, said.out) == (0, "Written to report.html: 2 hosts\n")
    page = parsed(Path("report.html").read_text("utf-8"))
    rows = one(page.every("section", **{"aria-labelledby": "summary"})).every("tbody")[-1].every("tr")
    assert [one(row.every("a", href=f"#host-{number}")).text for number, row in enumerate(rows, 1)] == [
        "gpu-01",
        "desk-01",
    ]
    assert line("report", *facts, "-o", "report.html", "--json").results == [
        {"host": host, "file": "report.html"} for host in ("gpu-01", "desk-01")
    ]


def test_what_speaks_against_a_workloads_wishes_stands_with_its_way() -> None:
    page = parsed(page_of(read("win11-pro-1gpu"), workload="one-7b-on-24gb"))
    wslc, _ = [each for each in page.every("details", kind="variant") if each.text.split()[0] == "wslc"]  # and memory
    assert "wslc.loopback" in [link.text for link in wslc.every("a", kind="code")]
    assert "r-wslc.loopback" in [entry.attributes["id"] for entry in page.every("details", kind="entry")]


def test_a_workload_is_judged_and_its_memory_shown(line: Line) -> None:
    facts = line.facts("server2025-3gpu")
    workload = WORKLOADS / "three-share-a-gpu.yaml"
    assert line("report", facts, "--workload", workload, "-o", "report.html").code == 0
    page = parsed(Path("report.html").read_text("utf-8"))
    assert "Memory of the workload" in [heading.text for heading in page.every("h3")]
    assert "sleep backup of general" in page.text


def test_a_host_that_does_not_answer_is_in_the_report_too(line: Line) -> None:
    fleet = {
        "schema": "winhost.fleet/1",
        "hosts": {
            "gone": {
                "address": "127.0.0.1",
                "transport": {"port": 9, "tls": False, "user": "u", "password": "env:NOBODY"},
            }
        },
    }
    Path("fleet.yaml").write_text(yaml.safe_dump(fleet), encoding="utf-8")
    said = line("report", line.facts("win11-pro-1gpu"), "gone", "-o", "report.html")
    assert said.code > 0
    assert "error: " in said.err
    page = parsed(Path("report.html").read_text("utf-8"))
    assert "gone Could not be read: " in page.text


def test_without_a_host_or_a_file_it_is_wrong_usage(line: Line) -> None:
    assert line("report", "-o", "report.html").code == 2
    assert line("report", line.facts("win11-pro-1gpu")).code == 2
    assert line("report", line.facts("win11-pro-1gpu"), "--need", "nvlnk", "-o", "report.html").code == 2
    assert not Path("report.html").exists()


# ---- many hosts


def test_counts_and_tables_of_contents_say_where_each_host_is(line: Line) -> None:
    hosts = ("server2025-3gpu", "server2025-8gpu", "win11-pro-1gpu", "win11-no-gpu")
    facts = [line.facts(host) for host in hosts]
    line("report", *facts, "-o", "report.html")
    page = parsed(Path("report.html").read_text("utf-8"))
    counts = {
        row.every("th")[0].text: row.every("td")[-1].text for row in one(page.every(kind="counts")).every("tr")[1:]
    }
    assert sum(map(int, counts.values())) == len(hosts)
    assert counts[NO_VARIANT] == "1"
    lists = one(page.every("nav")).every("details")
    assert [one(each.every("summary")).text for each in lists] == [
        "By verdict",
        "By best option",
        "By name",
        "By system",
        "By GPU",
    ]
    for each in lists:
        assert {link.attributes["href"] for link in each.every("a")} == {f"#host-{number}" for number in (1, 2, 3, 4)}
    assert [link.text for link in lists[2].every("a")] == ["desk-01", "desk-09", "gpu-01", "gpu-08"]
    assert not parsed(page_of(read("win11-pro-1gpu"))).every("nav")  # one host needs none


@pytest.mark.costly
def test_a_folder_gets_a_page_per_host_and_an_index(line: Line) -> None:
    facts = [line.facts(host) for host in ("server2025-3gpu", "win11-pro-1gpu", "server2025-core")]
    again = facts[0].with_name("again.json")
    again.write_text(facts[0].read_text().replace('"host": "gpu-01"', '"host": "GPU-01"', 1))
    strange = facts[0].with_name("strange.json")
    strange.write_text(facts[0].read_text().replace('"host": "gpu-01"', '"host": "../a b"', 1))
    said = line("report", *facts, again, strange, "torn.json", "-o", "pages/", "--json")
    files = {"host-gpu-01.html", "host-desk-01.html", "host-gpu-07.html", "host-GPU-01-2.html", "host-.._a_b.html"}
    assert {path.name for path in Path("pages").iterdir()} == {*files, INDEX}
    assert next(Path(result["file"]).name for result in said.results if "file" in result) == "host-gpu-01.html"
    index = parsed((Path("pages") / INDEX).read_text("utf-8"))
    assert {link.attributes["href"] for link in one(index.every("nav")).every("a")} == files
    assert "torn.json Could not be read: " in index.text
    pages = {file: parsed((Path("pages") / file).read_text("utf-8")) for file in (*files, INDEX)}
    ids = {file: {e.attributes["id"] for e in page.every() if "id" in e.attributes} for file, page in pages.items()}
    for file, page in pages.items():
        for link in page.every("a"):
            to, _, id_ = link.attributes["href"].partition("#")
            assert not id_ or id_ in ids[to or file]
            assert (to or file) in pages
    # What all hosts mention stands once, in the index.
    for heading in ("reasons", "variants", "capabilities", "evidence"):
        assert [file for file in pages if heading in ids[file]] == [INDEX]
    assert line("report", facts[0], "-o", "pages").code == 0  # it is a folder now


def test_in_brief_stands_what_decides_and_no_more(line: Line) -> None:
    facts = line.facts("server2025-role-installed")
    line("report", facts, "--brief", "-o", "brief.html")
    page = parsed(Path("brief.html").read_text("utf-8"))
    chapter = one(page.every("article"))
    evaluation = evaluate(read("server2025-role-installed"), request())
    (table, _) = chapter.every("table")
    assert [row.every("th")[0].text for row in table.every("tr")[1:]] == [fit.variant for fit in evaluation.fits]
    assert not chapter.every("div", kind="matrix")
    ids = {element.attributes["id"] for element in page.every() if "id" in element.attributes}
    assert {link.attributes["href"][1:] for link in page.every("a")} <= ids
    assert len(Path("brief.html").read_text("utf-8")) < 40_000


def test_a_host_like_another_says_so(line: Line) -> None:
    facts = line.facts("server2025-3gpu")
    again = facts.with_name("again.json")
    again.write_text(facts.read_text().replace('"host": "gpu-01"', '"host": "GPU-<01>"', 1))
    line("report", facts, again, line.facts("win11-pro-1gpu"), "-o", "page.html")
    first, like, other = parsed(Path("page.html").read_text("utf-8")).every("article")
    assert len(first.every("div", kind="matrix")) == len(other.every("div", kind="matrix")) == 1
    assert not like.every("div", kind="matrix")
    assert "GPU-<01>" in like.text
    ids = {element.attributes["id"] for element in first.every() if "id" in element.attributes}
    links = [link for link in like.every("a") if link.attributes["href"][1:] in ids]
    assert [(link.attributes["href"], link.text) for link in links] == [
        ("#host-1-options", "gpu-01"),
        ("#host-1-offers", "gpu-01"),
    ]


@pytest.mark.costly
def test_all_shipped_hosts_in_one_file_take_no_more_than_they_did() -> None:
    """It was three megabytes for 71 hosts when the limit was set."""
    hosts = [read(host) for host in example_hosts()]
    assert len(hosts) >= 71
    assert len(page_of(*hosts).encode()) < 3 * 2**20 * len(hosts) / 71
