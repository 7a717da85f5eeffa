"""A measured fact beats a document, both ways: what a probe settles, what it leaves open, and how it is cited."""

from collections.abc import Mapping
from typing import Any

from tests.cases import read_cases
from tests.compat.test_rules import DATA, FILES, facts_of, merged
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.knowledge.catalogue import reason_entries
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.reason import CapabilityVerdict
from winhost.model.yamlfile import adapter
from winhost.resources.host import HostFacts

PATH = FILES["host"].parents[1] / "measured.yaml"
CASES: Mapping[str, Any] = read_cases(PATH)


def offered(case: Mapping[str, Any], variant: str = "wsl2/nat") -> CapabilityVerdict:
    """Of the plain host, or of one with four GPUs."""
    assert case.keys() <= {"capability", "measured", "gpus", "driver", "tcc", "verdict", "because", "variant"}, case
    resources = merged(DATA["host"], DATA["with"]["three-more"]) if case.get("gpus") else DATA["host"]
    change = {"driver_version": case.get("driver"), "driver_model": "TCC" if case.get("tcc") else None}
    state = {name: value for name, value in change.items() if value}
    resources = merged(resources, {"PciDevice": {"gpu": {"state": state}}})
    facts = facts_of(resources, case["measured"])
    variants = {each.path: each for each in assess(facts).every_variant}
    return variants[case.get("variant", variant)].offers(case["capability"])


@each_row("name", CASES)
def test_the_verdict_is_what_was_measured(name: str) -> None:
    case = CASES[name]
    found = offered(case)
    assert (str(found.verdict), list(found.because)) == (case["verdict"], case.get("because", [])), found


@each_row("name", [name for name in CASES if "because" not in CASES[name]])
def test_what_works_as_measured_cites_the_measurement_and_its_date(name: str) -> None:
    found = offered(CASES[name])
    assert found.grounds == ("probe-measured",)
    (reason,) = (reason for reason in found.reasons if reason.evidence == ("probe-measured",))
    driver = CASES[name]["measured"].get("driver", "unknown")
    cited = f"(measured 2026-11-23, driver {driver}, kernel 6.18.33.2-microsoft-standard-WSL2)"
    assert reason.observed.endswith(cited)


@each_row("name", CASES)
def test_where_nothing_was_measured_documents_decide(name: str) -> None:
    measured = CASES[name] | {"measured": None}
    found = offered(measured)
    assert all("probe-measured" not in (*reason.evidence, *found.grounds) for reason in found.reasons)


def test_of_two_measurements_the_newest_counts() -> None:
    old = facts_of(DATA["host"], {"ipc_legacy": True, "ipc_fd": True}).document
    new = facts_of(DATA["host"], {"ipc_legacy": False, "ipc_fd": False}).document
    told = plain(old)
    told["measured"] += [plain(new)["measured"][0] | {"at": "2026-11-24T10:00:00+00:00"}]
    both = adapter(Facts).validate_python(told)
    assert [each.at[:10] for each in both.measured] == ["2026-11-23", "2026-11-24"]
    wsl2 = assess(HostFacts(both)).path("wsl2").every_variant[0]
    assert wsl2.offers("cuda-ipc").because == ("cuda-ipc.measured-none",)


def test_what_is_named_measured_rests_on_the_probe_alone() -> None:
    """No version of evidence limits such a finding, so the probe has to be all of it."""
    named = {code: row for code, row in reason_entries().items() if code.partition(".")[2].startswith("measured")}
    assert named
    assert {code for code, row in named.items() if row.evidence[:1] != ("probe-measured",)} == set()
