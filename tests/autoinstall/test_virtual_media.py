"""Media through a BMC that is shown to be the host's, with DMTF's own client against a stand-in on loopback."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.autoinstall.layouts import MACHINE, guid_of
from tests.autoinstall.stand_in_bmc import CD, MEDIA, PASSWORD, S1, S2, StandInBmc, served_bmc, system, things
from tests.errors import raises
from winhost.autoinstall.manifest import MachineIdentity
from winhost.autoinstall.virtual_media import Bmc, bmc_session
from winhost.model.secrets import Secret

pytest.importorskip("redfish", reason="winhost[redfish] is not installed")
IMAGE = "https://controller.example.org/winhost.iso"
SERIAL = str(MACHINE.serial)


@pytest.fixture
def bmc(tmp_path: Path) -> Iterator[StandInBmc]:
    with served_bmc(
        StandInBmc(things(system(S1, MACHINE.uuid.upper(), SERIAL), system(S2, guid_of(7), "B5RN13"))), tmp_path
    ) as served:
        yield served


def of(bmc: StandInBmc, password: str = PASSWORD, ca: str | None = "its own") -> Bmc:
    return Bmc(bmc.url, "admin", Secret(password), bmc.ca if ca == "its own" else ca)


def test_media_are_inserted_started_from_once_and_taken_back(bmc: StandInBmc) -> None:
    with bmc_session(of(bmc)) as session:
        found = session.system(MACHINE)
        assert (found.path, found.drive) == (S1, CD)
        session.insert(found, IMAGE)
        session.start_once(found)
        assert bmc.things[CD]["Image"] == IMAGE
        assert bmc.things[S1]["Boot"] == {
            "BootSourceOverrideEnabled": "Once",
            "BootSourceOverrideTarget": "Cd",
            "BootSourceOverrideMode": "UEFI",
        }
        session.restart(found)
        session.take_back(found)
    assert bmc.things[CD]["Inserted"] is False
    assert bmc.things[S1]["Boot"]["BootSourceOverrideEnabled"] == "Disabled"
    assert bmc.things[S2]["Boot"]["BootSourceOverrideEnabled"] == "Disabled"
    assert [path.rpartition("/")[2] for kind, path, _ in bmc.asked if kind == "POST"] == [
        "VirtualMedia.InsertMedia",
        "ComputerSystem.Reset",
        "VirtualMedia.EjectMedia",
    ]
    assert not bmc.sessions


@pytest.mark.parametrize(
    "identity",
    [
        MachineIdentity(guid_of(8), SERIAL),
        MachineIdentity(MACHINE.uuid, "B5RN13"),
        MachineIdentity(MACHINE.uuid),
        MachineIdentity("03000200-0400-0500-0006-000700080009", SERIAL),
    ],
)
def test_a_bmc_of_another_machine_gets_nothing(bmc: StandInBmc, identity: MachineIdentity) -> None:
    with bmc_session(of(bmc)) as session, raises("OtherMachine"):
        session.system(identity)
    assert bmc.asked == []


def test_two_that_say_they_are_the_machine_are_none(bmc: StandInBmc) -> None:
    bmc.things[S2] |= {"UUID": MACHINE.uuid, "SerialNumber": SERIAL}
    with bmc_session(of(bmc)) as session, raises("OtherMachine"):
        session.system(MACHINE)


@pytest.mark.parametrize("change", [{"Inserted": True}, {"MediaTypes": ["USBStick"]}])
def test_a_drive_that_somebody_uses_is_left_alone(bmc: StandInBmc, change: dict[str, Any]) -> None:
    bmc.things[CD] |= change
    with bmc_session(of(bmc)) as session, raises("NoDrive"):
        session.system(MACHINE)
    assert bmc.asked == []


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (f"{MEDIA}/USB1", {"MediaTypes": None}),
        (f"{MEDIA}/USB1", {"MediaTypes": 5}),
        (MEDIA, {"Members": [None, {"@odata.id": CD}]}),
        (S2, {"Links": None}),
    ],
)
def test_null_in_an_answer_is_as_if_nothing_was_there(bmc: StandInBmc, place: str, change: dict[str, Any]) -> None:
    bmc.things[place] |= change
    with bmc_session(of(bmc)) as session:
        assert session.system(MACHINE).drive == CD


@pytest.mark.parametrize("change", [{"Members": None}, {"Members": {}}])
def test_a_bmc_that_lists_no_drives_has_none(bmc: StandInBmc, change: dict[str, Any]) -> None:
    bmc.things[MEDIA] |= change
    with bmc_session(of(bmc)) as session, raises("NoDrive"):
        session.system(MACHINE)


@pytest.mark.parametrize("change", [{"Boot": None}, {"Actions": None}, {"Actions": {"#ComputerSystem.Reset": None}}])
def test_a_machine_that_offers_nothing_fails_by_name(bmc: StandInBmc, change: dict[str, Any]) -> None:
    with bmc_session(of(bmc)) as session:
        found = session.system(MACHINE)
        bmc.forgets.add("boot")
        bmc.things[S1] |= change
        with raises("BmcFailed"):
            session.start_once(found) if "Boot" in change else session.restart(found)


@pytest.mark.parametrize("forgets", ["media", "boot"])
def test_what_it_takes_and_forgets_is_an_error(bmc: StandInBmc, forgets: str) -> None:
    bmc.forgets.add(forgets)
    with bmc_session(of(bmc)) as session:
        found = session.system(MACHINE)
        with raises("BmcFailed"):
            session.insert(found, IMAGE)
            session.start_once(found)


def test_media_go_over_https_and_logons_to_whom_is_trusted(bmc: StandInBmc) -> None:
    with bmc_session(of(bmc)) as session, raises("MediaAddress"):
        session.insert(session.system(MACHINE), IMAGE.replace("https", "http"))
    for wrong in (
        of(bmc, "another"),
        of(bmc, ca=None),
        replace(of(bmc), url=bmc.url.replace("127.0.0.1", "127.0.0.2")),
    ):
        with raises("BmcFailed") as error, bmc_session(wrong):
            pass
        assert PASSWORD not in str(error.value)
    for address in ("http://bmc", "bmc", "https://admin:secret@bmc"):
        with raises("BmcUnusable"):
            Bmc(address, "admin", Secret(PASSWORD))
