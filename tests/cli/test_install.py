"""`winhost install`: from facts to media, and to the machine that shows the key that was made for it."""

import io
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.autoinstall.made_disk import missing_tools
from tests.autoinstall.made_media import made_image, signed_program
from tests.autoinstall.stand_in_bmc import CD, PASSWORD, S1, StandInBmc, served_bmc, system, things
from tests.cli.conftest import Line, Said
from tests.images.mirror import signer
from tests.rows import each_row
from tests.schemas import faults
from winhost.autoinstall.install_plan import read_install_plan
from winhost.autoinstall.lint import lint_autoinstall
from winhost.autoinstall.medium_files import read_from_image
from winhost.cli.formats import schema_of
from winhost.cli.install import install
from winhost.connect.own_key import public_key_line
from winhost.images import signed_sums
from winhost.lab.running_lab import Lab
from winhost.model.secrets import SecretRef
from winhost.model.units import GiB

HOST = "win11-pro-1gpu"
CA = "Microsoft Corporation UEFI CA 2011"
ISO = "ubuntu-24.04.4-live-server-amd64.iso"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ada"
MACHINE = ("--hostname", "gpu-01", "--ssh-key", "my.pub", "--mac", "00:15:5d:01:02:03", "--allow-unverified")
needs_xorriso = pytest.mark.skipif(bool(missing_tools(["xorriso"])), reason="no xorriso")
LINUX = "0fc63daf-8483-4772-8e79-3d69d8477de4"
TARGET = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def disk(line: Line) -> dict[str, Any]:
    """The facts file of a host whose Windows has cut a partition for Ubuntu from its end; its disk."""
    Path("my.pub").write_text(KEY)
    file = line.facts(HOST)
    document = json.loads(file.read_text())
    resources = document["resources"]
    found: dict[str, Any] = resources["Disk"][0]["state"]
    windows = next(each["state"] for each in resources["Partition"] if each["state"]["boot"])
    windows["size"] -= 200 * GiB
    offset = windows["offset"] + windows["size"]
    common = {"disk": found["guid"], "offset": offset, "size": 200 * GiB}
    plain = {"number": 9, "letter": None, "boot": False, "system": False, "hidden": False, "no_letter": True}
    resources["Partition"].append({"key": {"partition": TARGET}, "state": {**common, **plain, "type": LINUX}})
    own = {"made": True, "ours": True, "label": "WINHOST-00c0ffee", "partition": TARGET, **common}
    resources["OwnPartition"] = [{"key": {"name": "linux"}, "state": own}]
    file.write_text(json.dumps(document))
    return found


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an image and its signed sums."""
    key, folder = signer("canonical"), tmp_path / "mirror/24.04.4"
    monkeypatch.setattr(signed_sums, "media_key", lambda: key.public)
    monkeypatch.setattr(signed_sums, "MEDIA_KEY", key.fingerprint)
    folder.mkdir(parents=True)
    made_image(tmp_path, folder / ISO, signed_program(CA))
    sums = f"{sha256((folder / ISO).read_bytes()).hexdigest()} *{ISO}\n".encode()
    (folder / "SHA256SUMS").write_bytes(sums)
    (folder / "SHA256SUMS.gpg").write_bytes(key.sign(sums))
    return folder.parent


def assert_published(line: Line, kind: str, said: Said) -> None:
    """It is as `winhost schema` says."""
    schema = line("schema", kind).json
    assert said.json["schema"] == schema_of(kind)
    assert list(faults(said.json, schema, schema)) == []


@needs_xorriso
def test_beside_windows_from_facts_to_an_image(line: Line, disk: dict[str, Any], mirror: Path) -> None:
    said = line("install", "plan", f"{HOST}.json", *MACHINE, "--with", "criu", "-o", "install.json", "--json")
    assert said.code == 0, said.err
    assert_published(line, "install-plan", said)
    assert TARGET in said.result["writes"][0]
    assert any("criu" in step for step in said.result["then"])
    plan = read_install_plan(Path("install.json"))
    assert plan.beside is not None
    roles = {each.guid: (each.role, each.filesystem) for each in plan.beside.partitions}
    assert roles[TARGET] == ("target", None)
    assert ("windows", "BitLocker") in roles.values()
    made = line("install", "media", "install.json", "--mirror", mirror, "-o", "ubuntu.iso", "--json")
    assert made.code == 0, made.err
    assert_published(line, "install-media", made)
    document = read_from_image(Path("ubuntu.iso"), "autoinstall.yaml")
    order = json.loads(read_from_image(Path("ubuntu.iso"), "winhost/guard.json"))
    assert json.loads(document)["user-data"]["ssh_keys"]["ed25519_public"] == made.result["host_key"]
    assert made.result["installed"] is None
    assert order["disks"][0]["label"] == "WINHOST-00c0ffee"
    Path("written.yaml").write_bytes(document)
    assert line("lint", "autoinstall", "written.yaml", f"{HOST}.json").out.count("autoinstall.") == 1  # its own key
    assert {each.code for each in lint_autoinstall(document)} == {"autoinstall.secret"}
    assert line("install", "media", "install.json", "--mirror", mirror, "-o", "ubuntu.iso").code == 2  # it is there


def test_where_no_key_is_named_winhost_gives_its_own(line: Line, disk: dict[str, Any]) -> None:
    machine = [word for word in MACHINE if word not in ("--ssh-key", "my.pub")]
    words = ("install", "plan", f"{HOST}.json", *machine, "-o", "install.json")
    assert line(*words).code == 0
    kept = line.folder / "state/keys"
    public = public_key_line("x", SecretRef("file", str(kept / "desk-01.ssh")), None)
    assert read_install_plan(Path("install.json")).system.keys == (f"{public} winhost",)
    said = line(*words, "--disk", disk["guid"], "--force", "--json")
    assert said.code == 0, said.err
    assert said.result["then"][0].endswith(f"the key for SSH that winhost made: key: file:{kept / 'gpu-01.ssh'}")
    Path("own").write_text((kept / "gpu-01.ssh").read_text("utf-8"), encoding="utf-8")
    Path("own").chmod(0o600)
    text = f"schema: winhost.fleet/1\nhosts: {{desk-01: {{ssh: {{key: 'file:{Path('own').absolute()}'}}}}}}\n"
    Path("fleet.yaml").write_text(text, encoding="utf-8")
    assert line(*words, "--force").code == 0
    (given,) = read_install_plan(Path("install.json")).system.keys
    assert given == public_key_line("x", SecretRef("file", str(Path("own").absolute())), None) != public


def test_beside_windows_the_key_of_fleet_yaml_is_one_of_those_given(line: Line, disk: dict[str, Any]) -> None:
    Path("own").write_text("kept elsewhere", encoding="utf-8")
    Path("own").chmod(0o600)
    Path("own.pub").write_text(KEY.replace("OMqq", "OMqr"), encoding="utf-8")
    text = f"schema: winhost.fleet/1\nhosts: {{desk-01: {{ssh: {{key: 'file:{Path('own').absolute()}'}}}}}}\n"
    Path("fleet.yaml").write_text(text, encoding="utf-8")
    words = ("install", "plan", f"{HOST}.json", *MACHINE, "-o", "install.json")
    refused = line(*words)
    assert (refused.code, "(--ssh-key)" in refused.err, Path("install.json").exists()) == (2, True, False), refused.err
    assert line(*words, "--ssh-key", "own.pub").code == 0, "of several one is enough"
    assert line(*words, "--disk", disk["guid"], "--force").code == 0, "its Linux gets a name of its own in fleet.yaml"


@needs_xorriso
def test_a_folder_has_all_files_and_a_list_of_them(line: Line, disk: dict[str, Any], mirror: Path) -> None:
    assert line("install", "plan", f"{HOST}.json", *MACHINE, "-o", "install.json").code == 0
    assert line("install", "media", "install.json", "--mirror", mirror, "-o", "staged/").code == 0
    listed = json.loads(Path("staged/files.json").read_text())
    for entry in listed["files"]:
        assert sha256((Path("staged") / entry["path"]).read_bytes()).hexdigest() == entry["sha256"]
    there = {path.relative_to("staged").as_posix() for path in Path("staged").rglob("*") if path.is_file()}
    assert there == {entry["path"] for entry in listed["files"]} | {"files.json"}
    assert "winhost/guard.py" in listed["ours"]
    assert listed["partition"] == 4 * GiB
    modes = {each: each.stat().st_mode & 0o777 for each in (Path("staged"), *Path("staged").rglob("*"))}
    assert {path for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == set()


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def plan_whole(line: Line, *disks: str) -> Said:
    named = [word for disk in disks for word in ("--disk", disk)]
    return line("install", "plan", f"{HOST}.json", *MACHINE, *named, "-o", "install.json", "--force")


@needs_xorriso
def test_whole_disks_are_wiped_for_whoever_types_them(
    line: Line, disk: dict[str, Any], mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = plan_whole(line, disk["guid"])
    assert said.code == 0, said.err
    assert "Lost: esp partition" in " ".join(said.out.split())
    assert "Windows starts from it" in " ".join(said.out.split())
    named = f"{disk['model']}, 1,863.02 GiB, {disk['guid']}"
    for typed, code in ((disk["model"], 3), ("", 3), ("yes", 3), (disk["guid"][:-1], 3), (disk["guid"], 0)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{typed}\n"))
        made = line("install", "media", "install.json", "--mirror", mirror, "-o", f"{code}.iso")
        assert made.code == code, made.err
        assert Path(f"{code}.iso").exists() == (code == 0)
        assert named in made.err
        assert "Windows starts from it" in made.err
    order = json.loads(read_from_image(Path("0.iso"), "winhost/guard.json"))
    (told,) = order["disks"]
    assert (told["wipe"], told["model"]) == (disk["guid"], disk["model"])
    assert "windows_esp" not in order


@needs_xorriso
def test_a_pipe_consents_to_nothing_and_a_file_only_to_what_it_quotes(
    line: Line, disk: dict[str, Any], mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan_whole(line, disk["guid"]).code == 0
    media = ("install", "media", "install.json", "--mirror", mirror)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{disk['guid']}\n"))
    piped = line(*media, "-o", "piped.iso")
    assert (piped.code, "--consent-file" in piped.err) == (3, True)
    quoted = read_install_plan(Path("install.json")).whole[0].line
    assert quoted in piped.err
    another = quoted.replace(disk["guid"], TARGET)
    for text, code in (
        ("", 3),
        (f"# {quoted}\n", 3),
        (f"{another}\n", 3),
        (f"{quoted}\n{another}\n", 3),
        (f"{quoted.replace(disk['model'], 'EMPTY DISK')}\n", 3),
        (f"# spare machine, ticket 4711\n\n{quoted}\n", 0),
        (f"{disk['guid']}\n", 0),
    ):
        Path("consent.txt").write_text(text)
        made = line(*media, "--consent-file", "consent.txt", "-o", "quoted.iso", "--force")
        assert (made.code, Path("quoted.iso").exists()) == (code, code == 0), made.err
        Path("quoted.iso").unlink(missing_ok=True)
    assert line(*media, "--consent-file", "nowhere.txt", "-o", "quoted.iso").code == 2
    Path("consent.txt").write_bytes(b"\xff\xfe\0")
    assert line(*media, "--consent-file", "consent.txt", "-o", "quoted.iso").code == 2
    assert not Path("piped.iso").exists()


BLANK = "eui.0025385B71B0C0DE"


def second_disk(key: str = BLANK, **changes: Any) -> None:
    """The host has one without a table beside its own."""
    document = json.loads(Path(f"{HOST}.json").read_text())
    first = document["resources"]["Disk"][0]
    other = {**first["state"], "guid": None, "style": "RAW", "boot": False, "system": False, "number": 1, **changes}
    document["resources"]["Disk"] = [first, {"key": {"disk": key}, "state": other}]
    Path(f"{HOST}.json").write_text(json.dumps(document))


def test_each_of_several_disks_is_consented_to(
    line: Line, disk: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    second_disk()
    words = ("--disk", disk["guid"], "--disk", BLANK, "--raid", "1")
    assert line("install", "plan", f"{HOST}.json", *MACHINE, *words, "-o", "install.json").code == 0
    lines = [each.line for each in read_install_plan(Path("install.json")).whole]
    media = ("install", "media", "install.json", "--mirror", "nowhere/", "-o", "x.iso")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    piped = line(*media).err
    assert all(piped.count(each) == 2 for each in lines), piped
    for typed, consents in (
        (f"{disk['guid']}\n", False),
        (f"{disk['guid']}\n{disk['guid']}", False),
        (f"{BLANK}\n{disk['guid']}", False),
        (f"{disk['guid']}\n{BLANK}", True),
    ):
        monkeypatch.setattr("sys.stdin", Terminal(f"{typed}\n"))
        assert ("that is not the disk" not in line(*media).err) is consents, typed
    Path("consent.txt").write_text(f"{lines[1]}\n")
    said = line(*media, "--consent-file", "consent.txt")
    assert (said.code, f"does not name the disk {disk['guid']}" in " ".join(said.err.split())) == (3, True), said.err
    Path("consent.txt").write_text("\n".join(lines))
    assert "does not name" not in line(*media, "--consent-file", "consent.txt").err
    assert (
        line("install", "plan", f"{HOST}.json", *MACHINE, *("--disk", BLANK) * 2, "--raid", "1", "-o", "y.json").code
        == 2
    )


@needs_xorriso
def test_a_blank_disk_is_consented_to_as_well(
    line: Line, disk: dict[str, Any], mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_disk()
    assert plan_whole(line, BLANK).code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert line("install", "media", "install.json", "--mirror", mirror, "-o", "nobody.iso").code == 3
    monkeypatch.setattr("sys.stdin", Terminal(f"{BLANK}\n"))
    made = line("install", "media", "install.json", "--mirror", mirror, "-o", "blank.iso")
    assert made.code == 0, made.err
    assert "LUKS, ZFS or RAID looks so, too" in " ".join(made.err.split())
    (told,) = json.loads(read_from_image(Path("blank.iso"), "winhost/guard.json"))["disks"]
    assert (told["serial"], told["wipe"]) == (BLANK, BLANK)


@each_row(
    "key, changes, why",
    [
        *((key, {}, "no serial number") for key in ("_", " ", ".", "", "0000_0000_0000_0000.", "eui.0000000000000000")),
        (BLANK, {"style": "MBR"}, "Clear-Disk -Number 1"),
        (BLANK, {"style": "MBR", "system": True}, "its partition table is MBR"),
        (BLANK, {"style": "Unknown"}, "its partition table is Unknown"),
        *(
            (BLANK, {"bus": bus}, why)
            for bus, why in {
                "USB": "on USB",
                "SD": "memory card",
                "MMC": "memory card",
                "iSCSI": "on iSCSI",
                "Fibre Channel": "Fibre Channel",
                "Spaces": "Storage Spaces",
                "Storage Spaces": "Storage Spaces",
                "File Backed Virtual": "a file of Windows",
                "Virtual": "a file of Windows",
            }.items()
        ),
        (BLANK, {"health": "unhealthy"}, "unhealthy"),
        (BLANK, {"read_only": True}, "read-only"),
        (BLANK, {"model": " "}, "no model"),
    ],
)
def test_a_disk_that_is_none_for_ubuntu_is_refused(
    key: str, changes: dict[str, Any], why: str, line: Line, disk: dict[str, Any]
) -> None:
    second_disk(key, **changes)
    said = plan_whole(line, key)
    assert (said.code, why in " ".join(said.err.split())) == (3, True), said.err
    assert not Path("install.json").exists()


@each_row(
    "changes, why",
    [
        ({"bus": "RAID"}, "behind a RAID controller"),
        ({"bus": "SCSI"}, "nobody has seen how Linux shows a disk on SCSI"),
        ({"model": "Msft Virtual Disk", "bus": "SAS"}, "it is a virtual disk"),
        ({"health": "warning"}, "warning"),
        ({"health": "unknown"}, "unknown"),
        ({"offline": True}, "offline"),
    ],
)
def test_what_speaks_against_a_disk_is_named_where_its_loss_is_consented_to(
    changes: dict[str, Any], why: str, line: Line, disk: dict[str, Any]
) -> None:
    second_disk(**changes)
    assert plan_whole(line, BLANK).code == 0
    assert why in " ".join(read_install_plan(Path("install.json")).whole[0].heed)
    assert why in " ".join(line("install", "media", "install.json", "-o", "x.iso").err.split())


def test_a_plan_that_names_fewer_models_than_disks_is_refused(line: Line, disk: dict[str, Any]) -> None:
    assert plan_whole(line, disk["guid"]).code == 0
    good = json.loads(Path("install.json").read_text())
    (whole,) = good["whole"]
    for change, why in (
        ({"whole": [{key: value for key, value in whole.items() if key != "model"}]}, "model"),
        ({"whole": [{**whole, "model": "_"}]}, "has no model"),
        ({"whole": [{**whole, "choice": {**whole["choice"], "guid": None, "serial": "_"}}]}, "nothing names it"),
        ({"whole": [whole, whole]}, "it names a disk twice"),
    ):
        Path("install.json").write_text(json.dumps({**good, **change}))
        said = line("install", "media", "install.json", "-o", "x.iso")
        assert (said.code, why in " ".join(said.err.split())) == (2, True), said.err
        assert "ValueError" not in said.err


def test_a_disk_without_a_table_is_called_by_its_unique_id(line: Line, disk: dict[str, Any]) -> None:
    second_disk()
    said = plan_whole(line, BLANK)
    assert said.code == 0, said.err
    (wanted,) = read_install_plan(Path("install.json")).order()["disks"]
    assert (wanted["serial"], wanted["partitions"], "guid" in wanted) == (BLANK, [], False)


def test_a_consent_in_the_file_was_typed_by_nobody(line: Line, disk: dict[str, Any]) -> None:
    assert line("install", "plan", f"{HOST}.json", *MACHINE, "--disk", disk["guid"], "-o", "install.json").code == 0
    document = json.loads(Path("install.json").read_text())
    document["whole"][0]["wipe"] = disk["guid"]
    Path("install.json").write_text(json.dumps(document))
    order = read_install_plan(Path("install.json")).order()
    assert [each.get("wipe") for each in order["disks"]] == [None]


@needs_xorriso
def test_settings_stay_here_and_the_system_is_known_by_its_key(
    line: Line, disk: dict[str, Any], mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str | None] = [None, "ssh-ed25519 AAAAanother"]
    asked: list[str] = []

    def show(address: str, port: int) -> str | None:
        asked.append(address)
        if shown:
            return shown.pop(0)
        said = line.capture.readouterr().err
        return str(said[said.index("ssh-ed25519") :].splitlines()[0])

    monkeypatch.setattr(install, "fetch_host_key", show)
    monkeypatch.setattr(install, "_PAUSE_S", 0.01)
    monkeypatch.setattr(install.InstallationWait.wait_for_host_key, "__defaults__", (22, 0.01))
    assert line("install", "plan", f"{HOST}.json", *MACHINE, "-o", "install.json").code == 0
    words = ("--serve", "127.0.0.1", "--report", "127.0.0.1", "--reach", "192.0.2.7")
    made = line("install", "media", "install.json", "--mirror", mirror, "-o", "ubuntu.iso", *words, "--json")
    assert (made.code, made.result["installed"]) == (0, True)
    assert asked == ["192.0.2.7"] * 3
    assert b"PRIVATE KEY" not in Path("ubuntu.iso").read_bytes()


@needs_xorriso
def test_media_that_would_not_start_are_not_made(line: Line, disk: dict[str, Any], mirror: Path) -> None:
    document = json.loads(Path(f"{HOST}.json").read_text())
    document["resources"]["SecureBoot"][0]["state"]["authorities"] = ["Microsoft UEFI CA 2023"]
    Path(f"{HOST}.json").write_text(json.dumps(document))
    assert line("install", "plan", f"{HOST}.json", *MACHINE, "-o", "install.json").code == 0
    made = line("install", "media", "install.json", "--mirror", mirror, "-o", "ubuntu.iso")
    assert (made.code, "none of those who signed" in " ".join(made.err.split())) == (3, True)


def test_what_is_not_ready_is_refused_by_name(line: Line, disk: dict[str, Any]) -> None:
    for words, code, said in (
        (("--disk", "11111111-0000-4000-8000-000000000000"), 3, "0 disks of"),
        (("--raid", "1"), 2, "--disk"),
        (("--disk", disk["guid"], "--raid", "1"), 3, "RAID 1"),
        (("--installer", "24.04.1"), 3, "too old"),
        (("--address", "192.0.2.9/24"), 2, "gateway"),
    ):
        answered = line("install", "plan", f"{HOST}.json", *MACHINE, *words, "-o", "install.json")
        assert (answered.code, said in " ".join(answered.err.split())) == (code, True), answered.err
    unproven = line("install", "plan", f"{HOST}.json", *MACHINE[:-1], "-o", "install.json")
    assert (unproven.code, "--allow-unverified" in unproven.err, "dual-boot." in unproven.err) == (3, True, True)
    line.facts(HOST)
    answered = line("install", "plan", f"{HOST}.json", *MACHINE, "-o", "install.json")
    assert (answered.code, "--path dual-boot" in answered.err) == (3, True)


def test_a_host_that_cannot_take_it_is_refused_with_its_reasons(line: Line, disk: dict[str, Any]) -> None:
    document = json.loads(Path(f"{HOST}.json").read_text())
    document["resources"]["Disk"][0]["state"]["style"] = "MBR"
    Path(f"{HOST}.json").write_text(json.dumps(document))
    said = line("install", "plan", f"{HOST}.json", *MACHINE, "-o", "install.json")
    assert (said.code, "dual-boot is unsupported" in said.err, "[dual-boot." in said.err) == (3, True, True), said.err


# --- Through a BMC ---------------------------------------------------------------------------------------------------


@pytest.mark.costly
def test_a_bmc_that_is_the_hosts_gets_the_media(
    line: Line, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("redfish", reason="winhost[redfish] is not installed")
    monkeypatch.setenv("BMC_PASSWORD", PASSWORD)
    assert line("detect", "gpu-03", "-o", "seen/").code == 0
    resources = json.loads(Path("seen/gpu-03.json").read_text())["resources"]
    uuid = resources["OperatingSystem"][0]["state"]["machine_id"]
    serial = resources["Firmware"][0]["state"]["serial"]
    with served_bmc(StandInBmc(things(system(S1, uuid, serial))), tmp_path) as served:
        words = [
            "--bmc",
            served.url,
            "--bmc-user",
            "admin",
            "--bmc-password",
            "env:BMC_PASSWORD",
            "--bmc-ca",
            served.ca,
        ]
        image = "https://192.0.2.1/ubuntu.iso"
        for more, restarts in (
            (("--image", image), 0),
            (("--take-back",), 0),
            (("--image", image, "--accept", "restart"), 1),
        ):
            said = line("install", "bmc", "gpu-03", *words, *more, "--json")
            assert said.code == 0, said.err
            assert_published(line, "install-bmc", said)
            assert bool(served.things[CD]["Inserted"]) is ("--image" in more)
            assert sum(path.endswith("Reset") for _, path, _ in served.asked) == restarts
        line("install", "bmc", "gpu-03", *words, "--take-back")
        served.asked.clear()
        served.things[S1]["SerialNumber"] = "another"
        said = line("install", "bmc", "gpu-03", *words, "--image", image)
        assert (said.code, served.asked) == (3, [])
    assert PASSWORD not in said.err
    assert line("install", "bmc", "gpu-03", *words).code == 2
    words[5] = PASSWORD
    refused = line("install", "bmc", "gpu-03", *words, "--take-back")
    assert (refused.code, PASSWORD in refused.err) == (2, False)
