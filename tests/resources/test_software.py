"""Rollback, consents and refusals for features, staged files, WSL and driver models."""

import pytest

from winhost.core.answers import Json, Key, MissingFact, Record, Unavailable, Unknown
from winhost.core.answers import RemoteFault as Fault
from winhost.core.conditions import consents_of, irreversible_reason
from winhost.core.dependents import dependents_of
from winhost.core.steps import Change
from winhost.core.undo import Keep, find_undo
from winhost.model.facts import Answer, Facts
from winhost.resources.registry import RULES, WINDOWS, host_answers

PLATFORM, STAGED, WSL, MODEL = (WINDOWS[n] for n in ("VirtualMachinePlatform", "StagedFile", "Wsl", "GpuDriverModel"))
MSI = "db084e536279a59e90a26ec598d8aa8a4dff8309f41d078fd06242953ac1ebcd"
DISTRO = {"account": "winhost", "distro": "Ubuntu-24.04"}


def facts(wsl: Answer, distros: Answer) -> Facts:
    return Facts("here", "synthetic", "2026-01-01T00:00:00Z", "0", {"Wsl": wsl, "WslDistro": distros})


def wsl(version: Json, package: Json) -> dict[str, Json]:
    return {"version": version, "package": package}


# ---- the feature


@pytest.mark.parametrize(
    ("now", "back"),
    [
        ("install-pending", {"feature": "available"}),  # never restarted
        ("installed", {"feature": "available"}),
        ("uninstall-pending", {"feature": "available"}),  # on its way back already
        ("available", {}),
    ],
)
def test_a_feature_goes_back_from_wherever_it_is_between_restarts(now: str, back: dict[str, Json]) -> None:
    assert find_undo(RULES[PLATFORM.name], {"feature": "available"}, {"feature": "installed"}, {"feature": now}) == back


def test_a_feature_that_somebody_took_away_stays_away() -> None:
    kept = find_undo(RULES[PLATFORM.name], {"feature": "available"}, {"feature": "installed"}, {"feature": "removed"})
    assert isinstance(kept, Keep)


def on_the_platform(wsl: Answer, distros: Answer) -> list[tuple[str, Key]]:
    accounts: Answer = (Record({"distros": 0}, {"account": "winhost"}),)
    known = Facts(
        "here", "synthetic", "2026-01-01T00:00:00Z", "0", {**facts(wsl, distros).resources, "LocalAccount": accounts}
    )
    return [
        (user.resource, user.key)
        for _, user in dependents_of("VirtualMachinePlatform", {}, host_answers(known)).values()
    ]


def test_wsl_and_distros_of_whatever_account_rest_on_the_platform() -> None:
    there, gone = (Record({"present": present}) for present in (True, False))
    assert on_the_platform((there,), (Record({}, DISTRO),)) == [("Wsl", {}), ("WslDistro", DISTRO)]
    assert on_the_platform((there,), Unavailable("AccountTasks")) == [("Wsl", {})]
    assert on_the_platform((gone,), Unavailable("Wsl")) == []


@pytest.mark.parametrize("resource", [0, 1])
def test_what_cannot_be_read_may_be_there(resource: int) -> None:
    answers: list[Answer] = [(), ()]
    answers[resource] = Unknown(Fault("PermissionDenied"))
    with pytest.raises(MissingFact):
        on_the_platform(*answers)


# ---- files


@pytest.mark.parametrize(
    ("before", "now", "back"),
    [
        (False, True, {"present": False}),
        (False, None, {"present": False}),  # killed while it was sent
        (False, False, {}),
        (None, True, {"present": False}),  # what lay there in part was used up
        (None, False, {}),
        (True, None, {"present": True}),
    ],
)
def test_a_file_that_is_there_in_part_is_ours_and_never_put_back(
    before: Json, now: Json, back: dict[str, Json]
) -> None:
    after = {"present": before is not True}
    assert find_undo(RULES[STAGED.name], {"present": before}, after, {"present": now}) == back


# ---- WSL


def test_wsl_that_was_not_there_is_uninstalled() -> None:
    found, ours = wsl(None, None), wsl("2.7.14.0", MSI)
    assert find_undo(RULES[WSL.name], found, ours, ours) == found


def test_wsl_that_updated_itself_since_is_kept() -> None:
    kept = find_undo(RULES[WSL.name], wsl(None, None), wsl("2.7.14.0", MSI), wsl("2.8.1.0", None))
    assert isinstance(kept, Keep)
    assert kept.still_restored == {}


def test_an_upgrade_does_not_come_back_and_says_so_before() -> None:
    found, ours = wsl("2.6.1.0", None), wsl("2.7.14.0", MSI)
    said = irreversible_reason(WSL.irreversible, Change({}, found, ours))
    assert said is not None
    assert "2.6.1.0" in said
    assert find_undo(RULES[WSL.name], found, ours, ours) == Keep("winhost never downgrades WSL")


def test_an_upgrade_that_failed_has_nothing_to_keep() -> None:
    found = wsl("2.6.1.0", None)
    assert find_undo(RULES[WSL.name], found, wsl("2.7.14.0", MSI), found) == {}


def test_the_first_wsl_can_be_taken_back() -> None:
    assert irreversible_reason(WSL.irreversible, Change({}, wsl(None, None), wsl("2.7.14.0", MSI))) is None


@pytest.mark.parametrize("version", ["latest", "2.7", "2.7.14.0 ", "2.7.14.0.1", "2.7.14.0\n", "-2.7.1", 2.7, None])
def test_a_version_is_numbers_and_dots(version: Json) -> None:
    assert WSL.check_values({"version": version})


@pytest.mark.parametrize("package", [MSI.upper(), MSI[1:], f"{MSI}\n", "C:\\wsl.msi", None])
def test_a_package_is_a_sum(package: Json) -> None:
    assert WSL.check_values({"package": package})


def test_what_runs_on_wsl_waits_for_the_feature_and_the_file() -> None:
    assert set(WSL.after) == {"VirtualMachinePlatform", "StagedFile"}


# ---- files and driver models


def test_a_file_that_was_brought_goes_again() -> None:
    assert find_undo(RULES[STAGED.name], {"present": False}, {"present": True}, {"present": True}) == {"present": False}
    assert find_undo(RULES[STAGED.name], {"present": False}, {"present": True}, {"present": False}) == {}
    assert STAGED.absent == {"present": False}


@pytest.mark.parametrize("found", ["TCC", "WDDM"])
def test_a_gpu_goes_back_to_the_model_that_it_had(found: str) -> None:
    assert find_undo(
        RULES[MODEL.name], {"pending": found}, {"pending": "MCDM"}, {"current": "MCDM", "pending": "MCDM"}
    ) == {"pending": found}


@pytest.mark.parametrize("model", ["TCC", "mcdm", "", None, 2])
def test_tcc_is_never_wanted(model: Json) -> None:
    assert MODEL.check_values({"pending": model})


def test_a_model_without_a_picture_may_need_a_consent() -> None:
    assert consents_of(MODEL.may_need, Change({}, {"pending": "WDDM"}, {"pending": "MCDM"})) == ("headless",)
    assert consents_of(MODEL.may_need, Change({}, {"pending": "TCC"}, {"pending": "WDDM"})) == ()


@pytest.mark.parametrize("resource", [PLATFORM, WSL, MODEL], ids=lambda resource: resource.name)
def test_what_takes_a_restart_asks_for_it(resource: object) -> None:
    change = Change({}, {}, {"feature": "installed", "pending": "MCDM", "version": "2.7.14.0"})
    assert consents_of(WINDOWS[resource.name].risks, change) == ("restart",)  # type: ignore[attr-defined]
    assert "restart" in WINDOWS[resource.name].asks  # type: ignore[attr-defined]
