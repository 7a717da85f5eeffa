"""`compare` finds the changes between two readings, and the verdicts that changed with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.rows import each_row
from winhost.compat.compare import Diff, compare
from winhost.core.answers import RemoteFault, Unavailable, Unknown
from winhost.lab.hostfile import expand, find, host_files
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.reason import Verdict
from winhost.model.yamlfile import adapter


def facts(name: str) -> Facts:
    return expand(find(name))[0]


def altered(reading: Facts, change: Callable[[Any], None]) -> Facts:
    document = plain(reading)
    change(document["resources"])
    return adapter(Facts).validate_python(document)


def is_nvidia(record: Any) -> bool:
    return bool(record["state"]["kind"] == "display" and record["key"]["device"].startswith("VEN_10DE"))


def codes(compared: Diff, path: str) -> tuple[set[str], set[str]]:
    (change,) = [each for each in compared.verdicts if each.path == path]
    return {reason.code for reason in change.gone}, {reason.code for reason in change.new}


@pytest.mark.costly
@pytest.mark.parametrize("path", host_files(), ids=lambda path: path.stem)
def test_a_reading_equals_itself_whenever_it_was_read(path: Any) -> None:
    reading = expand(path)[0]
    again = replace(adapter(Facts).validate_python(plain(reading)), read_at="2027-01-01T00:00:00+00:00", winhost="9.9")
    compared = compare(reading, again)
    assert compared.differences == ()
    assert compared.verdicts == ()


def test_every_difference_is_seen_from_both_sides() -> None:
    one, other = facts("server2025-3gpu"), facts("win11-pro-1gpu")
    there, back = compare(one, other), compare(other, one)
    turned = {(d.resource, str(d.key), d.property, str(d.after), str(d.before)) for d in back.differences}
    assert {(d.resource, str(d.key), d.property, str(d.before), str(d.after)) for d in there.differences} == turned
    assert {(v.path, v.after, v.before) for v in back.verdicts} == {(v.path, v.before, v.after) for v in there.verdicts}


def test_a_changed_fact_has_its_place_and_the_verdict_it_cost() -> None:
    before = facts("server2025-3gpu")
    after = altered(before, lambda resources: resources["OperatingSystem"][0]["state"].update(edition_id="ServerRdsh"))
    compared = compare(before, after)
    (difference,) = compared.differences
    assert (difference.what, difference.resource, difference.property) == ("changed", "OperatingSystem", "edition_id")
    assert (difference.before, difference.after) == (
        before.resources["OperatingSystem"][0].state["edition_id"],  # type: ignore[index]
        "ServerRdsh",
    )
    gone, new = codes(compared, "dda")
    assert "dda.multi-session" in new
    assert "dda.multi-session" not in gone
    (dda,) = [each for each in compared.verdicts if each.path == "dda"]
    assert dda.after is Verdict.UNSUPPORTED
    assert compared.recommended[0] == "dda"
    assert compared.recommended[1] != "dda"


def test_free_memory_and_the_boot_move_by_themselves() -> None:
    before = facts("server2025-3gpu")

    def later(resources: Any) -> None:
        resources["Memory"][0]["state"]["free"] -= 4096
        resources["Boot"][0]["state"]["boot_id"] = "another"

    compared = compare(before, altered(before, later))
    assert {(d.resource, d.property) for d in compared.differences} == {("Memory", "free"), ("Boot", "boot_id")}
    assert compared.lasting == ()
    assert compared.verdicts == ()


def test_what_came_and_went_is_whole() -> None:
    before = facts("server2025-3gpu")
    gpu = before.resources["PciDevice"][0]  # type: ignore[index]
    after = altered(before, lambda resources: resources["PciDevice"].pop(0))
    (gone,) = [each for each in compare(before, after).differences if each.resource == "PciDevice"]
    assert (gone.what, gone.key, gone.property, gone.before, gone.after) == (
        "gone",
        gpu.key,
        None,
        dict(gpu.state),
        None,
    )
    (new,) = [each for each in compare(after, before).differences if each.resource == "PciDevice"]
    assert (new.what, new.before, new.after) == ("new", None, dict(gpu.state))


def test_a_fact_that_could_not_be_read_is_a_difference_but_its_wording_is_none() -> None:
    before = facts("server2025-3gpu")

    def lost(message: str) -> Facts:
        gap = {
            "unknown": {"category": "PermissionDenied", "code": "E", "hresults": [], "cmdlet": "", "message": message}
        }
        return altered(
            before, lambda resources: next(filter(is_nvidia, resources["PciDevice"]))["state"].update(acs=gap)
        )

    compared = compare(before, lost("Access denied"))
    assert [(d.resource, d.property) for d in compared.differences] == [("PciDevice", "acs")]
    assert "dda.unknown" in codes(compared, "dda")[1]
    again = compare(lost("Access denied"), lost("Zugriff verweigert"))
    assert again.differences == ()


@each_row("answer", [Unknown(RemoteFault("Denied")), Unavailable("HyperVRole")])
def test_a_resource_that_could_not_be_read_is_one_difference(answer: Unknown | Unavailable) -> None:
    before = facts("server2025-3gpu")
    after = replace(before, resources={**before.resources, "Wsl": answer})
    (difference,) = compare(before, after).differences
    assert (difference.resource, difference.key, difference.property) == ("Wsl", None, None)
    assert plain(difference.after) == plain(answer)


def test_a_resource_that_an_older_winhost_did_not_know_was_not_read() -> None:
    before = facts("server2025-3gpu")
    older = replace(
        before, resources={resource: answer for resource, answer in before.resources.items() if resource != "Wsl"}
    )
    (difference,) = compare(older, before).differences
    assert difference.resource == "Wsl"


def test_a_gpu_that_went_is_told_where_the_path_rested_on_it() -> None:
    before = facts("server2025-3gpu")
    gone = next(record for record in plain(before)["resources"]["PciDevice"] if is_nvidia(record))
    after = altered(before, lambda resources: resources["PciDevice"].remove(gone))
    (dda,) = [each for each in compare(before, after).verdicts if each.path == "dda"]
    (gpu,) = [each for each in dda.subjects if gone["key"]["location"] in each.name]
    assert gpu.before is not None
    assert gpu.after is None
