"""Facts that a user states: they fill in what was not read, and all that rests on them says so."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.compat.test_rules import HOSTS
from tests.errors import raises
from tests.imports.brought import DATA, imported
from tests.rows import each_row
from winhost.compat.evaluation import Evaluation, Requirements, evaluate
from winhost.compat.stated import SYSTEMS, apply_statements, parse_statements
from winhost.core.answers import RemoteFault, Unknown
from winhost.model.facts import Facts
from winhost.render import verdict_text
from winhost.resources.host import HostFacts
from winhost.resources.windows.read_only import OsFamily

UNREAD = Unknown(RemoteFault("AccessDenied", message="Access is denied."))
H200 = DATA / "recorded" / "nvidia-smi-2xH200-linux.xml"


def unread(facts: Facts, *resources: str) -> Facts:
    return replace(facts, resources={**facts.resources, **dict.fromkeys(resources, UNREAD)})


def answer(facts: Facts, text: str) -> Evaluation:
    return evaluate(facts, Requirements(assumed=parse_statements(text)))


@each_row("system", SYSTEMS)
def test_a_system_by_its_name_is_of_its_family(system: str) -> None:
    facts = HostFacts(apply_statements(imported([H200]), parse_statements(f"os={system}")))
    assert facts.os.family is (OsFamily.SERVER if system.startswith("server") else OsFamily.CLIENT)


def test_with_windows_stated_something_is_recommended_and_says_by_what() -> None:
    found = answer(imported([H200]), "os=win11-pro,ram=512GiB")
    assert found.assessment.recommended is not None
    assert found.assessment.stated == ("os=win11-pro", "ram=512GiB")
    dda = found.assessment.path("dda")
    assert (str(dda.verdict), dda.stated) == ("unsupported", ("os=win11-pro",))
    (client,) = (reason for reason in dda.reasons if reason.code == "dda.client-sku")
    assert client.stated == ("os=win11-pro",)
    assert client.observed.endswith("(stated: os=win11-pro)")
    assert verdict_text.describe_recommendation(found, found.fits[0], Requirements().needs)[-1].startswith(
        "Stated, not read: os=win11-pro"
    )


def test_what_rests_on_no_statement_is_not_marked() -> None:
    facts = unread(HOSTS["win11-pro-1gpu"], "Memory")
    found = answer(facts, "ram=64GiB")
    plain = evaluate(facts, Requirements())
    for path, before in zip(found.assessment.paths, plain.assessment.paths, strict=True):
        for reason in path.every_reason:
            assert bool(reason.stated) is (reason not in before.every_reason and reason.lacks is None)
    assert any(offered.stated for path in found.assessment.paths for offered in path.capabilities)


def test_stating_what_was_read_changes_nothing() -> None:
    facts = HOSTS["win11-pro-1gpu"]
    total = HostFacts(facts).memory.total
    found = answer(facts, f"ram={total},OperatingSystem.sku=48")
    plain = evaluate(facts, Requirements())
    assert [path.reasons for path in found.assessment.paths] == [path.reasons for path in plain.assessment.paths]


def test_what_was_read_is_never_overridden() -> None:
    with raises("Contradicted", match="ram=1GiB is stated, but"):
        answer(HOSTS["win11-pro-1gpu"], "ram=1GiB")


def test_what_is_said_of_each_gpu_is_filled_in_where_it_lacks() -> None:
    facts = apply_statements(imported([H200]), parse_statements("driver-model=wddm,PciDevice.rmrr=false"))
    for gpu in HostFacts(facts).gpus:
        assert (gpu.pci.state.driver_model, gpu.pci.state.rmrr) == ("WDDM", False)


def test_nothing_can_be_stated_of_gpus_that_nobody_lists() -> None:
    with raises("NobodyThere"):
        apply_statements(unread(HOSTS["win11-pro-1gpu"], "PciDevice"), parse_statements("driver-model=wddm"))


@pytest.mark.costly
@each_row(
    ("text", "wrong"),
    [
        ("os", "'os' is not NAME=VALUE"),
        ("os=", "'os=' is not NAME=VALUE"),
        ("os=win11-prof", "did you mean 'win11-pro'"),
        ("ram=much", "size"),
        ("build=new", "'new' is not a whole number"),
        ("Memory.size=1", "'Memory.size' cannot be stated"),
        ("PciDevice.rmrr=maybe", "rmrr: Input should be a valid boolean"),
        ("Nothing.x=1", "'Nothing.x' cannot be stated"),
        ("os=win11-pro\x1b[2J", "is none of"),
        ("PciDevice.acs=[1", "acs: "),
        (f"PciDevice.acs={'[' * 5000}", "acs: "),
        ("PciDevice.acs=2026-13-45", "acs: "),
    ],
)
def test_what_cannot_be_stated_is_one_sentence(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)) as refused:
        parse_statements(text)

    assert "\x1b" not in str(refused.value)


def test_a_value_may_hold_commas() -> None:
    (one, other) = parse_statements("Firmware.security_properties=[1,2,3],ram=1GiB")
    assert one.values == {"security_properties": [1, 2, 3]}
    assert other.values == {"total": 1 << 30}


def test_facts_that_are_written_hold_nothing_stated(tmp_path: Any) -> None:
    facts = imported([H200])
    evaluate(facts, Requirements(assumed=parse_statements("os=win11-pro")))
    assert facts.stated == ()
