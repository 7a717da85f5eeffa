"""How files come: in the encodings of old consoles, of a near kind, broken, or made to do harm."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.errors import raises
from tests.imports.brought import DATA, first, imported
from tests.imports.test_cases import records
from tests.rows import each_row
from winhost.core.answers import MissingFact
from winhost.hardware.host_gpus import runs_cuda
from winhost.imports.observation import Observation, Unreported
from winhost.imports.sources import SOURCES, read
from winhost.model.errors import UsageError
from winhost.model.units import MiB
from winhost.render.windows_text import GPU_COLUMNS, gpu_rows
from winhost.resources.host import HostFacts

SYNTHETIC = DATA / "synthetic"
FILES = sorted((*SYNTHETIC.iterdir(), *(DATA / "recorded").iterdir()))


@each_row("coding", ["utf-8-sig", "utf-16", "utf-16-be-with-mark"])
@each_row("path", FILES, ids=lambda path: path.name)
def test_the_encoding_of_a_console_changes_nothing(path: Path, coding: str, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\n", "\r\n")
    data = b"\xfe\xff" + text.encode("utf-16-be") if coding.endswith("mark") else text.encode(coding)
    again = tmp_path / path.name
    again.write_bytes(data)
    assert imported([again]).resources == imported([path]).resources


def test_the_words_of_another_code_page_do_not_disturb() -> None:
    text = (SYNTHETIC / "survey-dda-server2025.txt").read_text(encoding="utf-8")
    data = text.replace("Intel(R) USB", "Contrôleur Intel(R) USB").encode("cp850")
    assert len(first("survey.txt", data)[1].functions or ()) == 2


NEAR = {
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n": "nvidia-smi -q -x",
    "+----+\n| NVIDIA-SMI 580.159.04   Driver Version: 580.159.04 |\n": "nvidia-smi -q -x",
    "------------------\nSystem Information\n------------------\n DxDiag Version: 10.00\n": "dxdiag /x",
    "\nOsName          : Microsoft Windows 11 Pro\nOsVersion : 10.0.26100\n": "ConvertTo-Json",
    "DISKPART> list disk\n\n  Disk ###  Status         Size     Free     Dyn  Gpt\n": "Get-Disk | ConvertTo-Json",
    "NVIDIA L40S  OK  PCI\\VEN_10DE&DEV_26B9&SUBSYS_185110DE&REV_A1\\4&1F2A3B4C&0&0008\n": "dxdiag /x",
    "| OS | Microsoft Windows 11 Home (10.0.26200) |\n": "Get-ComputerInfo | ConvertTo-Json",
    "My PC has two NVIDIA RTX A6000.\n": "nvidia-smi -q -x",
    '{"name": "Intel(R) UHD Graphics 630"}\n': "dxdiag /x",
    "01:00.0 Nonsense\n": "lspci -vv -nn",
    "\nNumber Friendly Name Serial Number HealthStatus OperationalStatus\n": "Get-Disk | ConvertTo-Json",
    "\nPartitionNumber  DriveLetter Offset   Size Type\n": "Get-Partition | ConvertTo-Json",
    "\nMountPoint : C:\nVolumeStatus : FullyEncrypted\nProtectionStatus : On\n": "manage-bde -protectors",
    "identifier              {fwbootmgr}\ndisplayorder            {bootmgr}\n": "bcdedit /enum all",
    "System Information report\n[System Summary]\n": "msinfo32",
    '{\n  "host": "gpu-01",\n  "schema": "winhost.facts/3"\n}\n': "winhost assess --facts",
    "schema: winhost.host/2\norigin: synthetic\nabout: NVIDIA's RTX 4090 at PCIROOT(0)\n": "winhost lab up",
}


@each_row(("text", "told"), NEAR.items(), ids=NEAR.values())
def test_a_near_form_is_told_how_to_make_it(text: str, told: str) -> None:
    with raises("NotReadable") as refused:
        read("near.txt", text.encode())
    assert told in (refused.value.hint or "")


@each_row("data", [b"", b" \r\n\n", "\ufeff".encode("utf-16-le"), b"\xef\xbb\xbf"], ids=repr)
def test_an_empty_file_is_called_empty(data: bytes) -> None:
    with raises("NotReadable") as refused:
        read("none.txt", data)
    assert refused.value.what == "none.txt is empty"
    assert refused.value.hint == "What can be read: winhost facts import --help"


MAKERS = {
    "nvidia-smi-list-mig.txt": [True, True],
    "survey-dda-no-sriov.txt": [True, False],
    "nvidia-smi-table-indented.txt": [True, True],
}


@each_row(("name", "cuda"), MAKERS.items(), ids=MAKERS)
def test_a_gpu_without_ids_is_known_by_the_maker_in_its_name(name: str, cuda: list[bool]) -> None:
    assert list(map(runs_cuda, HostFacts(imported([SYNTHETIC / name])).gpus)) == cuda


def test_a_name_without_a_maker_decides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "survey.txt"
    path.write_text("3D-Videocontroller\nExpress Endpoint -- more secure.\nPCIROOT(0)#PCI(0300)#PCI(0000)\n")
    (gpu,) = HostFacts(imported([path])).gpus
    with pytest.raises(MissingFact):
        runs_cuda(gpu)


def test_gpus_of_another_kind_in_the_same_paste_are_named() -> None:
    (kind, told), *others = read("paste.txt", (SYNTHETIC / "nvidia-smi-and-lspci.txt").read_bytes())
    assert kind == "nvidia-smi"
    assert "put lspci -vv -nn" in (told.advice or "")
    assert not any(each.functions for _, each in others)


def test_the_output_that_gpus_were_taken_of_is_named() -> None:
    names = ("systeminfo-win11-pro.txt", "lspci-n.txt", "pnp-device-list.txt")
    (kind, told), *_ = read("paste.txt", "\n\n".join((SYNTHETIC / name).read_text("utf-8") for name in names).encode())
    assert kind == "systeminfo"
    assert "GPUs were read from what lspci -vv -nn" in (told.advice or "")
    assert "put Get-PnpDevice" in (told.advice or "")


def test_an_output_beside_others_that_cannot_be_read_is_named() -> None:
    text = (SYNTHETIC / "systeminfo-win11-pro.txt").read_text("utf-8") + "\n\nInstanceId : PCI\\VEN_8086&DEV_1234\n"
    (kind, told), *others = read("paste.txt", text.encode())
    assert (kind, others) == ("systeminfo", [])
    assert "pnputil /enum-devices /class Display printed was not read" in (told.advice or "")
    assert "GPUs were read" not in (told.advice or "")


def test_an_output_that_cannot_be_read_takes_nothing_from_those_beside_it() -> None:
    text = (SYNTHETIC / "systeminfo-win11-pro.txt").read_text("utf-8") + "\n\nGPU models and configuration: none\n"
    ((kind, told),) = read("paste.txt", text.encode())
    assert kind == "systeminfo"
    assert "nvidia-smi -q -x printed was not read" in (told.advice or "")


@each_row("path", [path for path in FILES if path.name != "nvidia-smi-and-lspci.txt"], ids=lambda path: path.name)
def test_no_other_kind_is_named_of_one_output(path: Path) -> None:
    assert "into a separate file" not in (first(path.name, path.read_bytes())[1].advice or "")


def test_the_file_that_wsl_writes_has_no_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "wsl.txt"
    path.write_bytes((SYNTHETIC / "wsl-version.txt").read_text(encoding="utf-8").encode("utf-16-le"))
    (wsl,) = records(imported([path]), "Wsl")
    assert wsl.state["version"] == "2.1.5.0"


@pytest.mark.parametrize("data", [b"", b"PK\3\4\0\0", b"hello", b"\xff\xfe\x00\xd8", b"[1, 2]"])
def test_what_is_nothing_of_ours_is_one_sentence(data: bytes) -> None:
    with raises("NotReadable") as refused:
        read("what.bin", data)
    assert refused.value.what.startswith("what.bin ")
    assert "\n" not in refused.value.what


@each_row("kind", SOURCES)
def test_a_kind_that_is_named_is_believed_and_checked(kind: str) -> None:
    with raises("NotReadable") as refused:
        read("wrong.txt", b"nothing of the sort", kind)
    assert SOURCES[kind].made_by in (refused.value.hint or "")


LAUGHS = (
    '<!DOCTYPE nvidia_smi_log [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    "<nvidia_smi_log><driver_version>&b;</driver_version></nvidia_smi_log>"
)
FETCHES = (
    '<!DOCTYPE nvidia_smi_log [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    "<nvidia_smi_log><driver_version>&x;</driver_version></nvidia_smi_log>"
)
FOREIGN = '<!DOCTYPE nvidia_smi_log SYSTEM "http://example.com/a.dtd"><nvidia_smi_log><gpu>&x;</gpu></nvidia_smi_log>'
DEEP = "<nvidia_smi_log>" + "<a>" * 5000


@pytest.mark.parametrize(
    ("text", "why"),
    [(LAUGHS, "declares"), (FETCHES, "declares"), (FOREIGN, "entity"), (DEEP, "nested"), (LAUGHS[:-9], "declares")],
    ids=["laughs", "fetches", "foreign", "deep", "torn"],
)
def test_xml_that_reaches_out_or_grows_is_refused(text: str, why: str) -> None:
    with raises("NotReadable", match=why):
        read("smi.xml", text.encode())


def test_a_torn_file_is_told_with_its_place() -> None:
    data = (SYNTHETIC / "dxdiag-win11-pro.xml").read_bytes()[:900]
    with raises("NotReadable", match=r"not whole XML.*line"):
        read("dx.xml", data)


def changed(name: str, old: str, new: str, folder: Path, as_name: str) -> Path:
    text = (SYNTHETIC / name).read_text(encoding="utf-8")
    assert old in text
    path = folder / as_name
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_two_exact_values_that_differ_are_unknown_and_both_are_told(tmp_path: Path) -> None:
    other = changed("computer-info-win11-pro.json", '"26100"', '"22631"', tmp_path, "older.json")
    warned: list[str] = []
    facts = imported([SYNTHETIC / "computer-info-win11-pro.json", other], warn=warned.append)
    differ = "two files differ in OperatingSystem.build: 26100 (computer-info-win11-pro.json), 22631 (older.json)"
    assert warned == [f"{differ}; it counts as unknown"]
    (record,) = records(facts, "OperatingSystem")
    assert record.state["build"]["unknown"]["message"] == differ
    assert record.state["edition_id"] == "Professional"


def test_a_better_value_settles_what_two_others_differ_in(tmp_path: Path) -> None:
    one = changed("systeminfo-win11-pro.txt", "65,324 MB", "65,000 MB", tmp_path, "one.txt")
    files = [one, SYNTHETIC / "systeminfo-win11-pro.txt", SYNTHETIC / "computer-info-win11-pro.json"]
    for order in (files, files[::-1]):
        warned: list[str] = []
        (memory,) = records(imported(order, warn=warned.append), "Memory")
        assert memory.state["total"] == 68497051648
        assert not [text for text in warned if "Memory" in text]


@pytest.mark.parametrize(
    "broken", ["systeminfo-win11-pro.txt", "systeminfo-server2025.csv", "nvidia-smi-table-windows.txt"]
)
def test_half_a_file_is_read_or_refused(broken: str) -> None:
    """Cut anywhere: it tells less, or nothing, and never something else."""
    text = (SYNTHETIC / broken).read_text(encoding="utf-8")
    kind, whole = first(broken, text.encode())
    for end in range(0, len(text), 97):
        try:
            _, told = first(broken, text[:end].encode(), kind)
        except UsageError:
            continue
        for state in (state for instances in told.resources.values() for state in instances.values()):
            assert all(isinstance(value, Observation | Unreported) for value in state.values())
        assert len(told.functions or ()) <= len(whole.functions or ())


def test_a_rounded_value_gives_way_in_either_order(tmp_path: Path) -> None:
    other = changed("dxdiag-win11-pro.xml", "65324MB", "65000MB", tmp_path, "dx.xml")
    files = [other, SYNTHETIC / "computer-info-win11-pro.json"]
    assert imported(files).answer("Memory") == imported(files[::-1]).answer("Memory")


@pytest.mark.parametrize(
    ("other", "told"),
    [("<MachineName>OTHER", "the machine's name"), ("<MachineName>desk-01", None)],
)
def test_a_machine_has_one_name(other: str, told: str | None, tmp_path: Path) -> None:
    dxdiag = changed("dxdiag-win11-pro.xml", "<MachineName>DESK-01", other, tmp_path, "dx.xml")
    info = changed(
        "computer-info-win11-pro.json", '"CsName":  "DESK-01"', '"CsName":  "DESK-01"', tmp_path, "info.json"
    )
    if told is None:
        assert imported([info, dxdiag], None).host == "DESK-01"
        return
    with raises("Contradiction"):
        imported([info, dxdiag], "desk-01")


def test_gpus_alike_share_only_what_is_true_of_both(tmp_path: Path) -> None:
    name = "nvidia-smi-windows-2xL20-tcc.xml"
    text = (SYNTHETIC / name).read_text(encoding="utf-8")
    first, second = text.rsplit("<current_dm>TCC", 1)
    mixed = tmp_path / name
    mixed.write_text(f"{first}<current_dm>WDDM{second}", encoding="utf-8")
    (gpus,) = [imported([SYNTHETIC / "survey-dda-server2025.txt", mixed]).answer("PciDevice")]
    assert isinstance(gpus, tuple)
    for gpu in gpus:
        assert gpu.state["vram"] == 46068 * MiB
        assert "nothing says which is which" in gpu.state["driver_model"]["unknown"]["message"]


def test_one_address_with_two_gpus_is_a_fault(tmp_path: Path) -> None:
    other = changed("nvidia-smi-windows-4090.xml", "00000000:01:00.0", "00000000:31:00.0", tmp_path, "smi.xml")
    with raises("Contradiction", match=r"what is at PCIBUS\(0000:31\)"):
        imported([SYNTHETIC / "nvidia-smi-windows-2xL20-tcc.xml", other])


def test_a_gpu_that_one_survey_counts_twice_is_told(tmp_path: Path) -> None:
    twice = tmp_path / "twice.txt"
    twice.write_text((SYNTHETIC / "lspci-desk.txt").read_text(encoding="utf-8") * 2, encoding="utf-8")
    with raises("NotReadable", match="2 times"):
        imported([twice])


LSPCI: dict[str, tuple[Callable[[str], str], str]] = {
    "domains": (
        lambda text: "\n".join(f"0000:{line}" if line[:1].isdigit() else line for line in text.split("\n")),
        "",
    ),
    "without verbosity": (lambda text: "\n".join(x for x in text.split("\n") if x[:1].isdigit()), "no memory regions"),
    "without rights": (
        lambda text: "\n".join(x for x in text.split("\n") if "Express" not in x or x[:1].isdigit()),
        "as root",
    ),
    "a BAR without place": (lambda text: text.replace("at 6000000000", "at <unassigned>"), "<unassigned>"),
}


@pytest.mark.parametrize(("change", "silent"), LSPCI.values(), ids=LSPCI)
def test_listings_of_the_bus_differ(change: Callable[[str], str], silent: str) -> None:
    text = (SYNTHETIC / "lspci-desk.txt").read_text(encoding="utf-8")
    whole, told = (first("lspci.txt", each.encode())[1].functions for each in (text, change(text)))
    assert whole is not None
    assert told is not None
    assert [f.position for f in told] == [f.position for f in whole]
    shown = " ".join(str(value) for value in told[0].state.values())
    assert silent in shown
    assert (told[0] == whole[0]) == (not silent)


def test_enumerations_may_be_words() -> None:
    info = json.loads((SYNTHETIC / "computer-info-win11-pro.json").read_text(encoding="utf-8"))
    words = {
        "OsProductType": "WorkStation",
        "DeviceGuardAvailableSecurityProperties": ["BaseVirtualizationSupport", "DMAProtection"],
    }
    told = first("info.json", json.dumps([info | words]).encode())[1].resources
    assert told["OperatingSystem"][""]["product_type"].value == 1  # type: ignore[union-attr]
    assert told["Firmware"][""]["security_properties"].value == [1, 3]  # type: ignore[union-attr]


def test_sentences_of_the_survey_are_what_was_found() -> None:
    survey = """Generating a list of PCI Express endpoint devices


NVIDIA GeForce RTX 4090
BIOS requires that this device remain attached to BIOS-owned memory.  Not assignable.


NVIDIA High Definition Audio
Express Endpoint -- more secure.
PCIROOT(0)#PCI(0100)#PCI(0001)


NVIDIA RTX A6000
Traffic from this device may be redirected to other devices in the system.  Not assignable.


3D Video Controller
BIOS kept control of PCI Express for this device.  Not assignable.


Some Accelerator
Legacy Express Endpoint -- graphics controller.
Device is Disabled, unable to check resource requirements, it may be assignable.
Enable the device and rerun this script to confirm.
PCIROOT(0)#PCI(0300)#PCI(0000)


AMD Radeon PRO W6600
Express Endpoint -- more secure.
All of the interrupts are line-based, no assignment can work.
"""
    functions = first("survey.txt", survey.encode())[1].functions
    assert functions is not None
    found = {f.name: {name: getattr(value, "value", None) for name, value in f.state.items()} for f in functions}
    assert list(found) == [
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX A6000",
        "3D Video Controller",
        "Some Accelerator",
        "AMD Radeon PRO W6600",
    ]
    assert found["NVIDIA GeForce RTX 4090"]["rmrr"] is True
    assert found["NVIDIA RTX A6000"]["acs"] == 0
    assert found["3D Video Controller"]["device_type"] == 5
    assert found["3D Video Controller"]["pcie_control"] is False
    assert found["Some Accelerator"]["problem"] == 22
    assert found["Some Accelerator"]["device_type"] == 3
    assert found["AMD Radeon PRO W6600"]["line_interrupts_only"] is True


def test_what_a_survey_does_not_judge_is_unknown_and_says_why() -> None:
    functions = first("s.txt", (SYNTHETIC / "survey-dda-older.txt").read_bytes())[1].functions or ()
    why = {each.name: getattr(each.state.get("device_type"), "why", "") for each in functions}
    assert "run its current version" in why["NVIDIA GeForce RTX 3090"]
    assert "A sentence that no version" in why["NVIDIA T4"]


def test_an_nvidia_smi_of_wsl_knows_the_driver_of_windows() -> None:
    """Its XML names no version of nvidia-smi: the branch of the driver tells, where it is one of Windows' alone."""
    xml = (SYNTHETIC / "nvidia-smi-windows-4090.xml").read_text("utf-8").replace(">WDDM<", ">N/A<")
    driver = xml.partition("<driver_version>")[2].partition("<")[0]
    found = {}
    for version in ("581.57", "553.62", "550.78", "580.102.01"):
        (gpu, *_) = first("q.xml", xml.replace(driver, version).encode())[1].functions or ()
        found[version] = getattr(gpu.state["driver_version"], "value", None)
    assert found == {"581.57": "15.8157", "553.62": "15.5362", "550.78": None, "580.102.01": None}


def test_a_driver_of_which_only_the_version_was_read_is_shown() -> None:
    facts = imported([SYNTHETIC / "nvidia-smi-table-wsl.txt"])
    assert [row[GPU_COLUMNS.index("driver")] for row in gpu_rows(HostFacts(facts))] == ["581.57"]


PASSWORD = "111111-222222-333333-444444-555555-666666-777777-888888"


def test_what_opens_a_volume_is_nowhere_in_what_was_imported(caplog: pytest.LogCaptureFixture) -> None:
    path = SYNTHETIC / "manage-bde-protectors-german.txt"
    assert PASSWORD in path.read_text("utf-8"), "then this test would prove nothing"
    warnings: list[str] = []
    facts = imported([path, SYNTHETIC / "manage-bde-status.txt"], warn=warnings.append)
    told = f"{facts}{read('x.txt', path.read_bytes())}{warnings}{caplog.text}"
    assert not {PASSWORD, *PASSWORD.split("-"), ".BEK"} & set(told.split()) | {
        p for p in PASSWORD.split("-") if p in told
    }


def test_systeminfo_that_ends_within_its_last_line_says_nothing_of_hypervisors() -> None:
    _, told = first("cut.txt", (SYNTHETIC / "systeminfo-cut.txt").read_bytes())
    assert "hypervisor_present" not in told.resources["Firmware"][""]


def test_cores_and_memory_of_a_vm_are_not_those_of_the_machine() -> None:
    text = (SYNTHETIC / "lscpu-of-a-hyper-v-vm.txt").read_text("utf-8") + (SYNTHETIC / "lscpu-and-free.txt").read_text(
        "utf-8"
    )
    _, told = first("paste.txt", text.encode())
    assert set(told.resources) == {"Processor"}
    assert set(told.resources["Processor"]["CPU0"]) == {"name"}


def test_memory_is_read_of_free_only_in_a_unit_that_is_certain() -> None:
    text = (SYNTHETIC / "lscpu-and-free.txt").read_text("utf-8")
    of_options = {"-k": 65_755_136, "-m": 64_214, "-g": 62, "-b": 67_333_259_264, "-m, of 4 TiB": 4_194_304}
    read_as: dict[str, object] = {}
    for option, number in of_options.items():
        _, told = first("paste.txt", text.replace("62Gi", str(number)).encode())
        total = told.resources["Memory"][""]["total"]
        read_as[option] = total.value if isinstance(total, Observation) else total.why
    assert read_as.pop("-k") == 65_755_136 * 1024
    assert set(read_as.values()) == {"free does not name its unit here, and `free -h` does"}


def test_what_would_tell_more_than_a_further_output_is_named() -> None:
    text = "[Version 10.0.26100.4061]\n\n" + (SYNTHETIC / "nvidia-smi-table-windows.txt").read_text("utf-8")
    advice = {kind: told.advice for kind, told in read("paste.txt", text.encode())}
    assert "nvidia-smi -q -x tells more" in (advice["nvidia-smi"] or "")
    text = (SYNTHETIC / "systeminfo-win11-pro.txt").read_text("utf-8") + "\n\n" + text
    advice = {kind: told.advice for kind, told in read("paste.txt", text.encode())}
    assert "Get-ComputerInfo | ConvertTo-Json tells more" in (advice["systeminfo"] or "")
    assert "nvidia-smi -q -x tells more" in (advice["nvidia-smi"] or "")
