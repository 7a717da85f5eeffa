"""-o replaces a file of the same kind, and with --force any file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Line

KINDS: dict[str, Callable[[Path], object]] = {
    "plan": lambda facts: ("plan", "--facts", facts, "--vm", "llm-01", "-o"),
    "report": lambda facts: ("report", facts, "-o"),
    "facts": lambda facts: ("facts", "import", facts.with_name("smi.xml"), "--host", "a", "-o"),
}
FOREIGN = {"notes": "buy milk\n", "fleet": "schema: winhost.fleet/1\nhosts: {}\n", "empty object": "{}", "null": "null"}


@pytest.fixture
def facts(line: Line) -> Path:
    smi = Path(__file__).parents[1] / "data" / "imports" / "synthetic" / "nvidia-smi-windows-4090.xml"
    (line.folder / "smi.xml").write_bytes(smi.read_bytes())
    return line.facts("server2025-role-installed")


def writes(line: Line, facts: Path, kind: str, file: Path, *more: str) -> tuple[int, str]:
    words = KINDS[kind](facts)
    assert isinstance(words, tuple)
    said = line(*words, file, *more)
    return said.code, said.err


def test_only_its_own_kind_is_replaced(line: Line, facts: Path) -> None:
    made = {}
    for kind in KINDS:
        made[kind] = line.folder / f"a-{kind}"
        assert writes(line, facts, kind, made[kind])[0] == 0, kind
    for name, text in FOREIGN.items():
        made[name] = line.folder / name
        made[name].write_text(text, encoding="utf-8")
    for kind, other in ((kind, other) for kind in KINDS for other in made if other != kind):
        found = made[other].read_bytes()
        code, told = writes(line, facts, kind, made[other])
        assert (code, made[other].read_bytes()) == (2, found), (kind, other)
        assert f"{made[other]} is " in told
        assert "--force" in told
    for kind in KINDS:
        assert writes(line, facts, kind, made[kind])[0] == 0, kind
        assert writes(line, facts, kind, made["notes"], "--force")[0] == 0
    assert made["notes"].read_text(encoding="utf-8") != FOREIGN["notes"]


def test_an_empty_file_and_a_device_are_written_to(line: Line, facts: Path) -> None:
    (line.folder / "empty").write_bytes(b"")
    assert writes(line, facts, "plan", line.folder / "empty")[0] == 0
    assert writes(line, facts, "plan", Path("/dev/null"))[0] == 0


def test_facts_of_a_host_replace_no_other_file(line: Line, lab: object) -> None:
    Path("facts").mkdir()
    Path("facts/desk-01.json").write_text("{}", encoding="utf-8")
    said = line("detect", "*", "-o", "facts")
    assert (said.code, "--force" in said.err) == (2, True)
    assert Path("facts/desk-01.json").read_text(encoding="utf-8") == "{}"
    assert '"winhost.facts/3"' in Path("facts/gpu-03.json").read_text(encoding="utf-8")
    assert line("detect", "*", "-o", "facts", "--force").code == 0
    assert line("detect", "*", "-o", "facts").code == 0


def test_facts_of_one_host_replace_a_facts_file(line: Line, lab: object) -> None:
    file = line.facts("win11-pro-1gpu")
    before = file.read_bytes()
    assert (line("detect", "*", "-o", file).code, file.read_bytes()) == (2, before)
    said = line("detect", "gpu-03", "-o", file)
    assert (said.code, f"Written to {file}\n" in said.out) == (0, True)
    assert '"gpu-03"' in file.read_text(encoding="utf-8")
    Path("notes").write_text("buy milk", encoding="utf-8")
    said = line("detect", "gpu-03", "-o", "notes")
    assert (said.code, "--force" in said.err, Path("notes").read_text(encoding="utf-8")) == (2, True, "buy milk")


def test_a_lab_replaces_no_fleet_of_real_hosts(line: Line) -> None:
    real = "schema: winhost.fleet/1\nhosts: {}\n"
    Path("fleet.yaml").write_text(real, encoding="utf-8")
    said = line("lab", "up", "win11-pro-1gpu", "-o", ".")
    assert (said.code, "fleet.yaml is a fleet file, not the fleet file of a lab" in said.err) == (2, True)
    assert Path("fleet.yaml").read_text(encoding="utf-8") == real
