"""Tests of importing into a facts file: no earlier fact disappears without a warning."""

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Line

DATA = Path(__file__).parent.parent / "data" / "imports" / "synthetic"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
SMI, INFO = (DATA / name for name in ("nvidia-smi-windows-4090.xml", "computer-info-win11-pro.json"))


def written(file: str) -> Any:
    return json.loads(Path(file).read_text(encoding="utf-8"))


def state(file: str, resource: str) -> Any:
    return written(file)["resources"][resource][0]["state"]


def gpus(file: str) -> Any:
    return written(file)["resources"]["PciDevice"]


def known(gpus: Any) -> Any:
    """Return the keys and the known properties of their states."""
    return [
        (each["key"], {name: value for name, value in each["state"].items() if not isinstance(value, dict)})
        for each in gpus
    ]


def test_each_line_of_what_nothing_is_known_of_says_of_what(line: Line) -> None:
    said = line("facts", "import", SMI, "--host", "desk")
    assert [each.strip() for each in said.out.split("\n")[1:4]] == [
        *("Windows: unknown", "Machine: unknown", "Version: unknown")
    ]


def test_commands_that_settle_more_name_the_file_that_was_given(line: Line) -> None:
    line("facts", "import", SMI, "--host", "desk", "-o", "mine.json")
    assert " --host desk -o mine.json\n" in line("assess", "mine.json").out
    line("report", "mine.json", "-o", "report.html")
    assert " --host desk -o mine.json<" in Path("report.html").read_text(encoding="utf-8")


def test_what_newer_files_do_not_tell_stays_and_is_named(line: Line) -> None:
    assert line("facts", "import", INFO, "-o", "desk.json").code == 0
    said = line("facts", "import", SMI, "-o", "desk.json")
    assert said.code == 0
    assert "kept from the import of 20" in said.err
    assert "OperatingSystem" in said.err
    assert written("desk.json")["host"] == "DESK-01"  # the name that the file has already
    assert written("desk.json")["winhost"].endswith(", from computer-info, nvidia-smi")
    assert state("desk.json", "OperatingSystem")["edition_id"] == "Professional"
    assert state("desk.json", "PciDevice")["driver_model"] == "WDDM"
    assert "kept" not in line("facts", "import", SMI, INFO, "-o", "desk.json").err
    assert "kept" not in line("facts", "import", SMI, "--host", "desk", "-o", "desk.json", "--force").err
    assert written("desk.json")["winhost"].endswith(", from nvidia-smi")


def test_a_value_that_is_another_now_is_named(line: Line) -> None:
    line("facts", "import", INFO, "-o", "desk.json")
    newer = INFO.read_text(encoding="utf-8").replace('"WindowsUBR":', '"WindowsUBR": 9999, "Was":')
    Path("newer.json").write_text(newer, encoding="utf-8")
    before = state("desk.json", "OperatingSystem")["revision"]
    said = line("facts", "import", "newer.json", "-o", "desk.json")
    assert f"desk.json: replaced OperatingSystem.revision: {before} is now 9999" in said.err
    assert state("desk.json", "OperatingSystem")["revision"] == 9999


def test_a_gpu_is_the_same_one_whatever_its_number_in_a_list(line: Line) -> None:
    Path("list.txt").write_text(f"GPU 0: NVIDIA GeForce RTX 4090 (UUID: {UUID})\n", encoding="utf-8")
    line("facts", "import", SMI, "--host", "desk", "-o", "desk.json")
    before = known(gpus("desk.json"))
    said = line("facts", "import", "list.txt", "-o", "desk.json")
    assert "PciDevice NVIDIA GeForce RTX 4090.vram" in said.err
    assert "replaced" not in said.err
    assert known(gpus("desk.json")) == before


def test_another_gpu_with_the_same_number_in_a_list_is_another_one(line: Line) -> None:
    Path("list.txt").write_text(f"GPU 0: NVIDIA GeForce RTX 2080 Super with Max-Q Design (UUID: {UUID})\n", "utf-8")
    _, nvidia, intel = (DATA / "pnp-device-list.txt").read_text(encoding="utf-8").split("InstanceId")
    Path("devices.txt").write_text(f"InstanceId{intel}\n\nInstanceId{nvidia}", "utf-8")
    line("facts", "import", "list.txt", "--host", "desk", "-o", "desk.json")
    said = line("facts", "import", "devices.txt", "-o", "desk.json")
    assert "replaced" not in said.err
    assert [each["state"]["name"][:6] for each in gpus("desk.json")] == ["Intel(", "NVIDIA"]


def test_gpus_that_nothing_ties_to_the_earlier_ones_replace_them_and_are_named(line: Line) -> None:
    Path("list.txt").write_text(f"GPU 0: NVIDIA L20 (UUID: {UUID})\n", encoding="utf-8")
    line("facts", "import", "list.txt", "--host", "l20", "-o", "l20.json")
    said = line("facts", "import", DATA / "nvidia-smi-windows-2xL20-tcc.xml", "-o", "l20.json")
    assert "replaced the GPUs of the earlier import (PciDevice NVIDIA L20)" in said.err
    assert len(gpus("l20.json")) == 2


def test_a_gpu_that_newer_files_do_not_list_stays(line: Line) -> None:
    line("facts", "import", DATA / "nvidia-smi-windows-2xL20-tcc.xml", "--host", "l20", "-o", "l20.json")
    whole = (DATA / "nvidia-smi-windows-2xL20-tcc.xml").read_text(encoding="utf-8")
    first, _, _ = whole.partition("</gpu>")
    Path("one.xml").write_text(f"{first}</gpu>\n</nvidia_smi_log>", encoding="utf-8")
    said = line("facts", "import", "one.xml", "-o", "l20.json")
    assert "PCIBUS(0000:98)" in said.err
    assert len(written("l20.json")["resources"]["PciDevice"]) == 2


def test_facts_of_another_machine_and_of_the_host_itself_are_not_replaced(line: Line) -> None:
    line("facts", "import", INFO, "-o", "desk.json")
    recorded = line.facts("win11-pro-1gpu")
    Path("named.json").write_text(Path("desk.json").read_text(encoding="utf-8").replace("DESK-01", "desk-02"), "utf-8")
    for file, why in ((recorded, "facts of a simulated host"), ("named.json", "facts of another machine")):
        before = Path(file).read_bytes()
        said = line("facts", "import", INFO, "-o", file)
        assert (said.code, Path(file).read_bytes()) == (2, before), file
        assert why in said.err
        assert "--force" in said.err
        said = line("facts", "import", INFO, "-o", file, "--force")
        assert (said.code, written(str(file))["host"]) == (0, "DESK-01"), said.err


def test_a_machine_whose_file_has_another_name_can_be_told_to_be_the_same(line: Line) -> None:
    line("facts", "import", SMI, "--host", "gpu-box", "-o", "desk.json")
    said = line("facts", "import", INFO, "-o", "desk.json")
    assert (said.code, "add --host gpu-box" in said.err) == (2, True)
    assert line("facts", "import", INFO, "--host", "gpu-box", "-o", "desk.json").code == 0
    assert written("desk.json")["host"] == "gpu-box"


def test_the_disks_of_partitions_are_told_only_by_an_import_of_both(line: Line) -> None:
    line("facts", "import", DATA / "disks-win11-pro.json", "--host", "desk", "-o", "desk.json")
    line(
        "facts", "import", DATA / "partitions-win11-pro.json", "-o", "desk.json"
    )  # Windows may number disks anew meanwhile
    assert "together" in state("desk.json", "Partition")["disk"]["unknown"]["message"]
    line("facts", "import", DATA / "disks-win11-pro.json", DATA / "partitions-win11-pro.json", "-o", "desk.json")
    assert isinstance(state("desk.json", "Partition")["disk"], str)
