"""The catalogue is whole: what the rules use is there, and what is there is used."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import date
from enum import EnumType
from functools import cache
from pathlib import Path
from string import Formatter
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import winhost.compat
import winhost.hardware
import winhost.knowledge
import winhost.paths
from tests.cases import read_cases
from tests.errors import raises
from tests.rows import each_row
from tests.symptoms.test_symptoms import is_fact
from winhost.autoinstall.autoinstall_file import ROWS as INSTALLER
from winhost.compat.common import GPU_QUESTIONS, HOST_QUESTIONS, INSTANCE_QUESTIONS, VM_QUESTIONS
from winhost.compat.rule import TARGET, rules
from winhost.compat.target import QUESTIONS
from winhost.compat.workload_rules import MODEL_QUESTIONS, WorkloadOnVariant
from winhost.findings import catalogue as evidence
from winhost.findings.condition import find_mistake
from winhost.hardware.gpus import GpuModel
from winhost.knowledge import catalogue, versions
from winhost.knowledge.catalogue import MAX_RELATED, CatalogueEntry, explain, related, similarity
from winhost.knowledge.versions import windows_builds
from winhost.model.capabilities import CAPABILITIES
from winhost.model.path import EVERY_PATH, PATHS, WINDOWS_VARIANTS
from winhost.model.plan import RISKS
from winhost.model.reason import Confidence, Evidence, Kind, Mender
from winhost.model.workload import Model, Parallel
from winhost.recipes.recipe_rows import ROWS as RECIPES
from winhost.resources.base import State
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.read_only import CLIENT_BUILDS, PartitionableGpu, Vm
from winhost.resources.windows.vms import VmMemory, VmMmio
from winhost.serving import choice
from winhost.serving.profile import NAMES, profile
from winhost.symptoms.table import symptoms
from winhost.wslconfig.rules import ROWS as WSL

SOURCES = list(Path(winhost.compat.__file__).parent.rglob("*.py"))
ARITHMETIC = Path(winhost.knowledge.__file__).parent / "evidence" / "memory.yaml"
TOPICS = (*EVERY_PATH, *CAPABILITIES)
REFUSING = [
    file
    for room in (winhost.hardware, winhost.paths)
    for file in sorted(Path(room.__path__[0]).glob("*.py"))
    if re.search(r"\b(Refusal|Caution|MmioRefused)\(", file.read_text("utf-8"))
]
CODE = re.compile(rf'"((?:{"|".join(TOPICS)})\.[a-z0-9-]+)"')
GAPS_OF_EACH = ("unknown", "later", "unshown", "inferred", "outdated", "remedy-unseen")
GAPS = {f"{topic}.{gap}" for topic in TOPICS for gap in GAPS_OF_EACH}

SEEN = {
    "gpu-memory.does-not-fit",
    "gpu-memory.fit-unknown",
    "gpu-memory.room-unknown",
    "gpu-compute.no-gpu",
    "dda.no-gpu",
    "disk.no-network-card",
    "disk.nobody-logs-on",
    "disk.no-table",
    "disk.not-empty",
    "disk.not-there",
    "disk.windows-unfit",
    "dda.no-vm",
    "vm.address-taken",
    "vm.another-disk",
    "vm.nobody-logs-on",
    "vm.name-taken",
    "vm.no-dns",
    "vm.no-gateway",
    "vm.no-nat-range",
    "vm.no-switch",
    "vm.not-in-nat",
    "vm.other-nat",
    "vm.too-many-processors",
    "vm.numa",
    "vm.which-switch",
    "wsl.controller-outside",
    "wsl.distro-taken",
    "wsl.no-adapter",
    "wsl.no-way-in",
    "wsl.nobody-allowed",
    "wsl.memory-beyond-host",
    "wsl.switch-taken",
    "wsl2.no-gpu",
    "gpu-p.no-gpu",
    "dual-boot.no-gpu",
    "bare-metal.no-gpu",
    "linux.no-apt",
    "linux.no-systemd",
    "linux.no-gpu",
    "linux.driver-restart",
    "linux.docker-snap",
    "linux.driver-kept",
    "linux.gpu-missing",
    "linux.no-engine",
}


def test_each_code_belongs_to_one_rule_and_to_the_catalogue() -> None:
    declared = {rule.code for rule in rules()}
    assert [rule.code for rule in rules() if not callable(rule.judge)] == []
    used = {code for source in SOURCES for code in CODE.findall(source.read_text(encoding="utf-8"))}
    assert used | declared | GAPS == catalogue.entries().keys() - refusals()
    rows = {code: row for code, row in catalogue.reason_entries().items() if row.severity}
    assert [code for code in rows if code not in used | declared] == []
    faults = {code: find_mistake(row.when, lambda asked, row=row: answers(asked, row)) for code, row in rows.items()}
    assert {code: fault for code, fault in faults.items() if fault} == {}
    chosen = [(code, row, each) for code, row in rows.items() for each in (row.which, row.none or {})]
    assert [
        code for code, row, each in chosen if find_mistake(each, lambda asked, row=row: is_chosen(asked, row))
    ] == []


def test_a_condition_names_only_values_that_a_property_can_have() -> None:
    """Where its type tells them: a word that is none would never hold."""
    rows = [(code, {**row.when, **row.which, **(row.none or {})}) for code, row in catalogue.reason_entries().items()]
    rows += [(symptom.id, cause.when) for symptom in symptoms().values() for cause in symptom.causes]
    odd = {(code, asked, word) for code, when in rows for asked, word in never(when)}
    assert odd == set()


def never(when: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for asked, wanted in when.items():
        resource, _, name = asked.partition(".")
        there = values_of(RESOURCE_TYPES[resource].state, name) if resource in RESOURCE_TYPES else set()
        yield from ((asked, word) for word in words_of(wanted) if there and word not in there)


def values_of(state: type[State], name: str) -> set[str]:
    """Nothing where it can have any."""
    found = getattr(state, name, None)
    made = getattr(found, "fget", getattr(found, "func", None))
    kind = get_type_hints(made)["return"] if made else get_type_hints(state).get(name)
    kinds = [each for each in (get_args(kind) if isinstance(kind, UnionType) else (kind,)) if each is not NoneType]
    if not all(isinstance(each, EnumType) or get_origin(each) is Literal for each in kinds):
        return set()
    return {str(value) for each in kinds for value in (each if isinstance(each, EnumType) else get_args(each))}


def words_of(wanted: Any) -> Iterator[str]:
    if isinstance(wanted, list):
        yield from (word for each in wanted for word in words_of(each))
    elif isinstance(wanted, dict):
        yield from (word for how in ("not", "has", "lacks") for word in words_of(wanted.get(how)))
    elif isinstance(wanted, str) and wanted[:1] not in "<>=!":
        yield wanted


def test_a_row_that_repeats_another_differs_from_it_in_what_it_writes_alone(tmp_path: Path) -> None:
    rows = {"one": {"sentence": "This.", "means": "That."}, "other": {"repeats": "one", "means": "More."}}
    (tmp_path / "rows.yaml").write_text(json.dumps(rows), encoding="utf-8")  # JSON is YAML
    read = evidence.Catalogue(tmp_path / "rows.yaml", lambda _, row: row)
    assert read["other"] == {"sentence": "This.", "means": "More."}


def test_each_list_in_a_sentence_has_words_for_an_empty_one() -> None:
    kinds = {**{name: kind.state for name, kind in RESOURCE_TYPES.items()}, **PROPERTIES}
    bare = []
    for code, row in catalogue.reason_entries().items():
        for _, asked, spec, _ in Formatter().parse(row.observed):
            name, _, attribute = (asked or "").partition(".")
            if not spec and "tuple" in str(getattr(kinds.get(name), "__annotations__", {}).get(attribute)):
                bare.append(f"{code}: {asked}")
    assert bare == []


def answers(question: str, row: CatalogueEntry) -> bool:
    """Whether it can be asked of facts, and of the subject, target or workload that the row is about."""
    if row.each == "workload":
        return hasattr(WorkloadOnVariant, question)
    return is_fact(question) or (question in QUESTIONS if is_of_target(row) else is_asked(question, row.each))


def is_of_target(row: CatalogueEntry) -> bool:
    return row.each == "host" and any(row is rule.row for rule in rules() if rule.subject_kind is TARGET)


def is_asked(question: str, each: str) -> bool:
    name, _, attribute = question.partition(".")
    if name == "gpus":
        return is_asked(attribute, "gpu")
    known = {**HOST_QUESTIONS, **{"gpu": GPU_QUESTIONS, "vm": VM_QUESTIONS}.get(each, {})}
    return name in known and (
        not attribute or hasattr(PROPERTIES[name], attribute) or is_of(PROPERTIES[name], attribute)
    )


def is_of(kind: Any, name: str) -> bool:
    return name in kind.__dataclass_fields__ or hasattr(kind, name)


PROPERTIES: dict[str, Any] = {
    "gpu": PciDevice,
    "listed": GpuModel,
    "memory": VmMemory,
    "parts": PartitionableGpu,
    "paravirtual": PartitionableGpu,
    "vm": Vm,
    "windows": VmMmio,
}


def is_chosen(question: str, row: CatalogueEntry) -> bool:
    """Whether it can be asked of those among which a row chooses."""
    if row.among == "gpus":
        return is_fact(question) or is_asked(question, "gpu")
    name, _, attribute = question.partition(".")
    if row.each == "workload":
        return name in MODEL_QUESTIONS or (is_of(Model, name) and (not attribute or is_of(Parallel, attribute)))
    if row.among:
        kind = RESOURCE_TYPES[row.among]
        return is_of(kind.state, question) or question in kind.key or name in INSTANCE_QUESTIONS[row.among]
    return question in ("shows", "peers", "capability") or is_fact(question) or is_of(GpuModel, question)


def refusals() -> set[str]:
    """Codes that no rule finds: the decisions of a path refuse with them (Refusal)."""
    return {code for code in catalogue.reason_entries() if code.startswith(("disk.", "mmio.", "vm.", "wsl."))}


def test_each_refusal_of_the_arithmetic_is_in_the_catalogue_and_each_of_those_is_raised() -> None:
    raised = {
        code
        for file in REFUSING
        for code in re.findall(r'"((?:disk|mmio|vm|wsl)\.[a-z0-9-]+)"', file.read_text("utf-8"))
    }
    assert raised == refusals()


def test_what_may_lack_anywhere_is_told_once_and_of_each_path_and_capability() -> None:
    assert {gap.replace(catalogue.ANY_TOPIC, topic) for gap in catalogue.gaps() for topic in TOPICS} == GAPS
    for gap in catalogue.gaps():
        assert catalogue.entry(gap) == catalogue.entry(gap.replace(catalogue.ANY_TOPIC, "nvlink"))


def test_each_remedy_is_used_and_each_used_one_exists() -> None:
    assert {entry.remedy for entry in catalogue.entries().values()} - {None} == catalogue.remedies().keys()


def test_each_piece_of_evidence_is_used_and_each_used_one_exists() -> None:
    used = {key for entry in catalogue.entries().values() for key in entry.evidence}
    used |= {key for topic in catalogue.topics().values() for keys in topic.grounds.values() for key in keys}
    used |= read_cases(ARITHMETIC).keys()  # tests/sizing/test_budget.py holds these
    used |= {key for name in NAMES for row in (*profile(name).rows, *profile(name).chosen) for key in row.evidence}
    used |= {*choice.EVIDENCE}
    used |= {key for symptom in symptoms().values() for cause in symptom.causes for key in cause.evidence}
    used |= {key for linter in (RECIPES, WSL, INSTALLER) for row in linter.values() for key in row.evidence}
    used |= {row["evidence"] for rows in versions.table().values() for row in _rows(rows) if "evidence" in row}
    assert used == catalogue.evidence().keys()


def _rows(written: Any) -> list[Any]:
    return list(written.values()) if isinstance(written, dict) else written


def test_only_gaps_and_what_the_eye_sees_go_without_evidence() -> None:
    assert {code for code, entry in catalogue.entries().items() if not entry.evidence} == GAPS | SEEN


def test_each_path_and_capability_is_told_and_its_grounds_are_of_a_way() -> None:
    topics = catalogue.topics()
    assert topics.keys() == set(TOPICS)
    assert {variant for topic in topics.values() for variant in topic.grounds} <= {*EVERY_PATH, *WINDOWS_VARIANTS}
    assert all(topics[path].loses for path in PATHS)


def test_every_consent_is_one_that_apply_knows() -> None:
    assert {risk for entry in catalogue.entries().values() for risk in entry.risks} <= RISKS.keys()


def every_piece() -> Mapping[str, Evidence]:
    """Evidence that is written within rows counts once these are read."""
    for rows in (catalogue.reason_entries(), symptoms(), RECIPES, WSL, INSTALLER):
        list(rows)
    return catalogue.evidence()


def test_evidence_that_several_rows_share_is_written_once_and_named() -> None:
    written = Counter((each.source, each.claim, each.holds, each.kind) for each in every_piece().values())
    assert [source for (source, *_), times in written.items() if times > 1] == []


@each_row("key", every_piece)
def test_a_stranger_can_check_the_evidence(key: str) -> None:
    evidence = catalogue.evidence()[key]
    assert evidence.kind in get_args(Kind)
    assert evidence.confidence in get_args(Confidence)
    assert evidence.confidence == "low" or evidence.kind != "inferred", "a conclusion makes nobody sure"
    assert evidence.claim.endswith(".")
    assert evidence.source
    assert evidence.holds
    assert date.fromisoformat(str(evidence.seen))
    assert evidence.settles or evidence.kind != "inferred", "say what would settle it"


@each_row("key", catalogue.remedies())
def test_a_remedy_says_who_does_it(key: str) -> None:
    remedy = catalogue.remedies()[key]
    assert remedy.who in get_args(Mender)
    assert remedy.do.endswith(".")


told = cache(explain)


@each_row("code", catalogue.entries())
def test_a_code_explains_itself(code: str) -> None:
    story = told(code)
    assert story.sentence.endswith(".")
    assert story.means.endswith(".")
    assert [evidence.id for evidence in story.evidence] == list(catalogue.entry(code).evidence)
    assert (story.remedy.id if story.remedy else None) == catalogue.entry(code).remedy
    assert json.loads(json.dumps(asdict(story)))["code"] == code


@each_row("code", [*catalogue.entries(), "*.unknown"])
def test_related_reasons_are_others_that_there_are(code: str) -> None:
    found = told(code).related
    assert set(found) <= catalogue.reason_entries().keys() - {code}
    assert len(set(found)) == len(found) <= MAX_RELATED


@each_row("code", catalogue.reason_entries())
def test_a_relation_holds_from_both_sides_unless_closer_ones_fill_the_other(code: str) -> None:
    entries = catalogue.reason_entries()
    for name in told(code).related:
        strength = similarity((code, entries[code]), (name, entries[name]))
        assert strength == similarity((name, entries[name]), (code, entries[code])) > 0
        back = told(name).related
        assert code in back or all(similarity((name, entries[name]), (n, entries[n])) >= strength for n in back), name


RELATED = {
    "dda.virtualization-off": {"wsl2.virtualization-off", "gpu-p.virtualization-off"},  # the same fact
    "wsl2.tcc-invisible": {"wslc.tcc-invisible", "gpu-compute.tcc"},  # the same evidence and remedy
    "sleep-l1.pageable": {"sleep-l1.pageable-by-default", "pinned-memory.vllm-refuses"},
    "gpu-memory.fit-unknown": {"gpu-memory.does-not-fit", "gpu-memory.room-unknown"},  # the topic alone
}


@pytest.mark.parametrize("code", RELATED)
def test_what_speaks_of_the_same_thing_is_related(code: str) -> None:
    assert set(told(code).related) >= RELATED[code]


def test_what_gpu_partitions_need_is_one_windows_in_remedy_and_evidence() -> None:
    for code in ("gpu-p.client", "gpu-p.before-2025"):
        told = explain(code)
        assert told.remedy is not None
        texts = (told.sentence, told.means, told.remedy.do, *(each.claim for each in told.evidence))
        assert {year for text in texts for year in re.findall(r"Windows Server (20\d\d)", text)} == {"2025"}, code


def test_a_mistyped_code_is_answered_with_the_nearest() -> None:
    with raises("UnknownCode", match=r"did you mean 'dda\.client-sku'"):
        explain("dda.client-sk")


def test_reports_of_many_hosts_look_for_related_reasons_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Counter[str]()

    def counted(code: str, *rest: Any) -> tuple[str, ...]:
        looked[code] += 1
        return related(code, *rest)

    monkeypatch.setattr(catalogue, "related", counted)
    explain.cache_clear()  # type: ignore[attr-defined]  # see `once`
    assert explain("dda.client-sku") == explain("dda.client-sku")
    assert looked == {"dda.client-sku": 1}


def test_one_id_never_names_two_pieces_of_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "INLINE_EVIDENCE", {})
    piece = {"claim": "c", "kind": "source", "source": "s", "seen": date(2026, 11, 29), "holds": "vLLM 0.33.0"}
    assert evidence.cite("a", [{"id": "twice-named", **piece}]) == evidence.cite("b", [{"id": "twice-named", **piece}])
    with pytest.raises(ValueError, match="twice-named"):
        evidence.cite("c", [{"id": "twice-named", **piece, "claim": "another"}])


def test_builds_that_tell_a_client_are_of_no_server() -> None:
    known = {row.build: row for row in windows_builds()}
    assert [build for build in CLIENT_BUILDS if known[build].server or known[build].azure_local] == []
    assert all(known[build].client for build in CLIENT_BUILDS)
