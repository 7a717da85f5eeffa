"""The guard: it lets the machine pass that it was told of, and stops at anything else before the first write."""

import ast
import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.autoinstall.layouts import OWN_DISK, SMALL, WITH_BITLOCKER, manifest_of
from tests.autoinstall.made_disk import made_by_hand, made_by_tools, missing_tools, ntfs, put, tool, write_table
from tests.autoinstall.mutations import DISK, Edit, Mutation, file_edits, mutations, wrapped_in
from tests.autoinstall.rig import Maker, Rig, bare_rig, digest, outside, rig_of, told
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.autoinstall import fetch_settings, installer_boot, installer_guard, installer_storage
from winhost.autoinstall.guard_order import order_beside, storage_beside_windows
from winhost.autoinstall.install_plan import FETCHED, SCRIPTS
from winhost.autoinstall.installer_storage import SECOND_RUN, guard_commands
from winhost.autoinstall.manifest import DiskManifest, PartitionRole
from winhost.autoinstall.medium_files import script
from winhost.lab.ubuntu_installer import settings_match_order

needs_blkid = pytest.mark.skipif(bool(missing_tools(["blkid"])), reason="no blkid (Debian: util-linux)")
BY_HAND = {f"{sector}": manifest_of(SMALL, sector) for sector in (512, 4096)}
BY_TOOLS = {f"{sector}": manifest_of(WITH_BITLOCKER, sector) for sector in (512, 4096)}


@pytest.fixture(autouse=True)
def _sbin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")


def stops(rig: Rig, capsys: pytest.CaptureFixture[str], *, again: bool = False) -> str:
    """The code with which it stopped; nothing of the disk and of the installer's file is other than before."""
    file = rig.root / "autoinstall.yaml"
    before = file.read_bytes() if file.exists() else b""
    disks = [rig.device(name) for name in (DISK, "sdb") if rig.device(name).exists()]
    digests = [digest(disk) for disk in disks]
    assert rig.guard(again=again) == 1
    assert [digest(disk) for disk in disks] == digests
    assert (file.read_bytes() if file.exists() else b"") == before
    words = capsys.readouterr().err.splitlines()[-1]
    return words.removeprefix("winhost guard: stopped before the first write: ").partition(":")[0]


CASES = {
    f"{sector}: {each.name}": (manifest, each)
    for sector, manifest in BY_HAND.items()
    for each in (mutations(manifest) if sector == "512" else ())  # the other sectors with make real
}


@pytest.mark.costly
@needs_blkid
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whatever_is_not_as_it_was_told_stops_it(
    case: tuple[DiskManifest, Mutation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, mutation = case
    rig = rig_of(tmp_path, manifest, made_by_hand)
    mutation.change(rig, manifest)
    assert stops(rig, capsys) == mutation.code


def test_there_are_as_many_mutations_as_the_docs_say() -> None:
    assert len(CASES) >= 40
    assert len({each.name for _, each in CASES.values()}) == len(CASES)
    codes = {each.code for _, each in CASES.values()}
    raised = {
        node.args[0].value
        for module in (installer_guard, installer_storage)
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text("utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "GuardStop"
        and isinstance(node.args[0], ast.Constant)
    }
    assert raised - codes == OTHERS


# Stops that these cases do not meet: of whole disks, which have their own below, and of programs that fail.
OTHERS = {"no-blkid", "ambiguous", "partition-twice", "sector-size", "no-consent", "disk-model", "not-blank", "order"}


@needs_blkid
@pytest.mark.parametrize("manifest", BY_HAND.values(), ids=BY_HAND)
def test_the_machine_that_it_was_told_of_passes(manifest: DiskManifest, tmp_path: Path) -> None:
    rig = rig_of(tmp_path, manifest, made_by_hand)
    before = digest(rig.device(DISK))
    assert rig.guard() == 0
    assert digest(rig.device(DISK)) == before
    check_resolved(rig, manifest)


def check_resolved(rig: Rig, manifest: DiskManifest, numbers: list[int] | None = None) -> None:
    disk, *others = rig.resolved["config"]
    assert disk == {"type": "disk", "id": "disk-0", "ptable": "gpt", "preserve": True, "path": f"/dev/{DISK}"}
    parts = [each for each in others if each["type"] == "partition"]
    assert [(each["offset"], each["size"]) for each in parts] == [(e.offset, e.size) for e in manifest.partitions]
    assert [each["number"] for each in parts] == (numbers or list(range(1, len(parts) + 1)))
    assert all(each["preserve"] is True for each in parts)
    formats = {each["volume"]: each.get("preserve", False) for each in others if each["type"] == "format"}
    target, esp = manifest.with_role(PartitionRole.TARGET), manifest.with_role(PartitionRole.ESP)
    assert formats == {f"partition-{esp.guid}": True, f"partition-{target.guid}": False}


@needs_blkid
@pytest.mark.parametrize("swapped", [False, True])
def test_on_a_disk_of_its_own_that_of_windows_is_no_part_of_it(
    tmp_path: Path, swapped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel may find either first. Where the other disk is the one that is missing, it stops."""
    windows, own = BY_HAND["512"], manifest_of(OWN_DISK, first=40)
    rig, names = bare_rig(tmp_path, own.machine), (DISK, "sdb")
    for name, manifest in zip(names, (windows, own) if swapped else (own, windows), strict=True):
        made_by_hand(tmp_path / name, manifest)
        rig.attach(name, tmp_path / name, serial=f"S5XNNG0{name}")
    rig.order(order_beside(own, windows_esp=windows.with_role(PartitionRole.ESP).guid), storage_beside_windows(own))
    before = [digest(rig.device(name)) for name in names]
    assert rig.guard() == 0
    assert [digest(rig.device(name)) for name in names] == before
    (disk,) = [each for each in rig.resolved["config"] if each["type"] == "disk"]
    assert disk["path"] == f"/dev/{'sdb' if swapped else DISK}"
    rig.order(order_beside(manifest_of(OWN_DISK, first=80)), storage_beside_windows(own))
    assert stops(rig, capsys) == "disk-absent"


@needs_blkid
def test_numbers_are_those_of_the_table_and_not_of_windows(tmp_path: Path) -> None:
    """Windows numbers by place; in the table what was made last has the last entry."""
    manifest = BY_HAND["512"]
    slots = [0, 1, 2, 4, 3]

    def make(image: Path, wanted: DiskManifest) -> None:
        made_by_hand(image, wanted)
        write_table(image, wanted, slots=slots)

    rig = rig_of(tmp_path, manifest, make)
    assert rig.guard() == 0
    check_resolved(rig, manifest, [slot + 1 for slot in slots])


@needs_blkid
def test_a_target_with_its_label_passes_with_whatever_else_it_holds(tmp_path: Path) -> None:
    """What Windows cut from C: holds what was there before; the quick format says that it may go."""
    manifest = BY_HAND["512"]
    target = manifest.with_role(PartitionRole.TARGET)
    rig = rig_of(tmp_path, manifest, made_by_hand)
    put(rig.device(DISK), target.end - 4096, b"an old cluster")
    put(rig.device(DISK), target.offset, ntfs(manifest.label, target.size, manifest.sector))
    assert rig.guard() == 0


@needs_blkid
def test_two_partitions_with_one_guid_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = BY_HAND["512"]
    rig = rig_of(tmp_path, manifest, made_by_hand)
    first, second, *rest = manifest.partitions
    both = manifest.__class__.__new__(manifest.__class__)
    for name, value in vars(replace(manifest)).items():
        object.__setattr__(both, name, value)
    object.__setattr__(both, "partitions", (first, replace(second, guid=first.guid), *rest))
    write_table(rig.device(DISK), both)
    assert stops(rig, capsys) == "partition-twice"


def test_without_blkid_nothing_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(tmp_path, BY_HAND["512"], made_by_hand)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stops(rig, capsys) == "no-blkid"


def test_the_scripts_of_the_installer_stand_alone(tmp_path: Path) -> None:
    for module in (installer_guard, installer_storage, installer_boot, fetch_settings):
        source = Path(str(module.__file__)).read_text("utf-8")
        tree = ast.parse(source, feature_version=(3, 10))
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        others = {str(name) for name in names if str(name).split(".")[0] not in sys.stdlib_module_names}
        assert {name for name in others if not name.startswith("winhost.autoinstall.installer_")} <= {"yaml"}
    for name in SCRIPTS:
        (tmp_path / name).write_text(script(name))
    ran = subprocess.run(
        [sys.executable, "-I", tmp_path / "guard.py", SECOND_RUN], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ran.returncode, "unreadable: " in ran.stderr) == (1, True), ran.stderr  # there is no order beside it


@needs_blkid
def test_the_guard_of_the_medium_is_one_text_that_does_the_same(tmp_path: Path) -> None:
    """No module of it takes a name of another."""
    tree = ast.parse(script("guard.py"))
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    names += [ast.unparse(each) for node in tree.body if isinstance(node, ast.Assign) for each in node.targets]
    assert len(set(names)) == len(names)
    rig = rig_of(tmp_path, BY_HAND["512"], made_by_hand)
    told(rig.folder / "guard.py", script("guard.py"))
    run = runpy.run_path(str(rig.folder / "guard.py"))["main"]
    assert [run(rig.folder, rig.root), run(rig.folder, rig.root, again=True)] == [0, 0]
    check_resolved(rig, BY_HAND["512"])


# --- The installer's file ---------------------------------------------------------------------------------------------


EDITS = list(file_edits(BY_HAND["512"]))


@needs_blkid
@pytest.mark.costly
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit[0])
def test_an_edit_of_the_file_stops_each_check(
    edit: tuple[str, str, Edit], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the medium; and by an early command, after the guard has completed the file."""
    rig = rig_of(tmp_path, BY_HAND["512"], made_by_hand)
    file = rig.root / "autoinstall.yaml"
    good = file.read_text()
    rig.edit(edit[2])
    assert stops(rig, capsys) == edit[1]
    file.write_text(good)
    assert rig.guard() == 0
    rig.edit(edit[2])
    assert stops(rig, capsys, again=True) == edit[1]


@needs_blkid
def test_the_last_check_compares_everything_once_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = BY_HAND["512"]
    rig = rig_of(tmp_path, manifest, made_by_hand)
    assert stops(rig, capsys, again=True) == "storage"  # nothing has put the disks in
    assert rig.guard() == 0
    good = rig.resolved
    assert rig.guard(again=True) == 0
    assert rig.resolved == good
    put(rig.device(DISK), manifest.with_role(PartitionRole.ESP).offset, bytes(4096))
    assert stops(rig, capsys, again=True) == "filesystem"


def same(_: dict[str, Any]) -> None:
    pass


def other_words(document: dict[str, Any]) -> None:
    """The same section as somebody else may write it."""
    for each in document["storage"]["config"]:
        each.setdefault("preserve", False)
        each.setdefault("wipe", None)
        if "partition_type" in each:
            each["partition_type"] = each["partition_type"].upper()


def as_yaml(rig: Rig) -> None:
    """As the installer writes what cloud-init has merged."""
    file = rig.root / "autoinstall.yaml"
    told(file, "# a comment\n" + yaml.safe_dump(json.loads(file.read_text())))


@needs_blkid
@pytest.mark.parametrize("yaml_too", [False, True])
@each_row("change", [same, other_words, wrapped_in(same), wrapped_in(other_words)])
def test_each_form_that_the_installer_takes_passes(change: Edit, yaml_too: bool, tmp_path: Path) -> None:
    rig = rig_of(tmp_path, BY_HAND["512"], made_by_hand)
    rig.edit(change)
    if yaml_too:
        as_yaml(rig)
    assert rig.guard() == 0
    check_resolved(rig, BY_HAND["512"])
    assert rig.guard(again=True) == 0


@needs_blkid
@each_row("edit", EDITS[::7])
def test_an_edit_stops_it_in_each_of_these_forms(
    edit: tuple[str, str, Edit], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = rig_of(tmp_path, BY_HAND["512"], made_by_hand)
    rig.edit(wrapped_in(edit[2]))
    as_yaml(rig)
    assert stops(rig, capsys) == edit[1]


def test_the_simulated_installer_stops_at_the_same_edits() -> None:
    manifest = BY_HAND["512"]

    def settings() -> dict[str, Any]:
        document = {"early-commands": guard_commands(FETCHED), "storage": storage_beside_windows(manifest)}
        return {"autoinstall": document, "guard": order_beside(manifest)}

    assert settings_match_order(settings())
    for name, _, edit in EDITS:
        edited = settings()
        edit(edited["autoinstall"])
        assert not settings_match_order(edited), name


@needs_blkid
def test_commands_of_others_may_stand_between(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, BY_HAND["512"], made_by_hand)
    rig.edit(lambda document: document["early-commands"].insert(1, "date > /run/began"))
    assert rig.guard() == 0
    assert rig.guard(again=True) == 0


# --- With real tools, in files as large as mkfs wants them -----------------------------------------------------------

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=f"not here: {', '.join(missing_tools())}")
REAL_CASES = [
    pytest.param(manifest, each, id=f"{sector}: {each.name}")
    for sector, manifest in BY_TOOLS.items()
    for each in mutations(manifest)
    if not each.name.startswith("file: ")  # it is the same whatever made the file systems
]


def by_tools(folder: Path) -> Maker:
    return lambda image, manifest: made_by_tools(image, manifest, folder)


@pytest.mark.real
@needs_tools
@pytest.mark.parametrize(("manifest", "mutation"), REAL_CASES)
def test_so_it_is_with_real_file_systems(
    manifest: DiskManifest, mutation: Mutation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = rig_of(tmp_path, manifest, by_tools(tmp_path))
    mutation.change(rig, manifest)
    assert stops(rig, capsys) == mutation.code


@pytest.mark.real
@needs_tools
@pytest.mark.parametrize("manifest", BY_TOOLS.values(), ids=BY_TOOLS)
def test_what_the_installer_then_formats_is_the_target_alone(manifest: DiskManifest, tmp_path: Path) -> None:
    """mke2fs where the resolved section says, as the installer does; every byte outside is as it was."""
    rig = rig_of(tmp_path, manifest, by_tools(tmp_path))
    disk, spans = rig.device(DISK), outside(manifest)
    before = digest(disk, spans)
    assert rig.guard() == 0
    written = {
        each["volume"] for each in rig.resolved["config"] if each["type"] == "format" and not each.get("preserve")
    }
    (part,) = (each for each in rig.resolved["config"] if each["id"] in written)
    tool("mke2fs", "-q", "-F", "-t", "ext4", "-E", f"offset={part['offset']}", disk, f"{part['size'] // 1024}k")
    assert digest(disk, spans) == before
    assert before[1] == manifest.size - manifest.with_role(PartitionRole.TARGET).size
    found = installer_guard.InstallDisk(rig.root, DISK).signature(part["offset"], part["size"])
    assert found["TYPE"] == "ext4"
