"""Memory is bounded by limits of ours, whatever a file holds, and what is wrong with it fills no screen."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from tests.rows import each_row

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not bound memory")

MANY = 99_000  # values: as many as are read
FACTS = (
    '{"schema":"winhost.facts/3","host":"h","origin":"recorded","read_at":"2026-01-01T00:00:00Z","winhost":"1",'
    '"resources":'
)
FLEET = "schema: winhost.fleet/1\nhosts:\n"
HOST = "schema: winhost.host/2\norigin: synthetic\nabout: x\nhost: a\nresources:\n"


def _of(piece: Callable[[int], str], between: str = ",", count: int = MANY) -> str:
    return between.join(map(piece, range(count)))


# Name → the command, what is in its file, and what is said of it. FILE is the file, ZERO one that never ends.
@cache
def cases() -> dict[str, tuple[list[str], str, str]]:
    return {
        "a megabyte of facts that are none": (
            ["assess", "--facts", "FILE"],
            f'{FACTS}{{"Vm":[{_of(lambda _: "1", count=500_000)}]}}}}',
            "holds more than 100,000 values",
        ),
        "instances that are none": (
            ["assess", "--facts", "FILE"],
            f'{FACTS}{{"Vm":[{_of(lambda _: "1")}]}}}}',
            "has 99,000 faults",
        ),
        "facts without an end": (["assess", "--facts", "ZERO"], "", "is larger than 8 MiB"),
        "facts as deep as they are long": (
            ["diff", "FILE", "FILE"],
            f'{FACTS}{{"Vm":[{{"state":{{"a":{"[" * 40_000}{"]" * 40_000}}}}}]}}}}',
            "is nested too deeply",
        ),
        "one word of facts": (["assess", "--facts", "FILE"], f'{FACTS}{{"{"x" * 7_000_000}":1}}}}', "should be a list"),
        "a plan without an end": (["apply", "ZERO"], "", "is larger than 8 MiB"),
        "hosts that are none": (
            ["detect", "x", "--fleet", "FILE"],
            FLEET + _of("  h{}: 1\n".format, ""),
            "99,000 faults",
        ),
        "a deep fleet": (["detect", "x", "--fleet", "FILE"], f"{FLEET}  a: {'[' * MANY}", "nested deeper than 64"),
        "more hosts than are read": (
            ["detect", "x", "--fleet", "FILE"],
            FLEET + _of("  h{}:\n".format, "", 110_000),
            "holds more than 100,000 values",
        ),
        "hosts that disagree": (
            ["detect", "x", "--fleet", "FILE"],
            FLEET + _of("  h{}: {{transport: {{auth: basic}}}}\n".format, "", 2_000),
            "has 4,000 faults",
        ),
        "a host file of nothing": (["lab", "up", "FILE"], HOST + _of("  n{}: 1\n".format, ""), "198,000 faults"),
        "a playbook of references": (
            ["plan", "--facts", "FACTS", "--playbook", "FILE"],
            f"schema: winhost.playbook/2\npath: dda\nresources:\n"
            f"  - {{resource: VmMmio, key: {{vm: x}}, desired: {{}}, why: x, title: {json.dumps('${x}' * 100_000)}}}\n",
            "is not decided here",
        ),
        "output of a tool without an end": (["facts", "import", "ZERO"], "", "is larger than 16 MiB"),
        "elements without number": (
            ["facts", "import", "FILE"],
            f"<nvidia_smi_log>{'<a/>' * 1_000_000}</nvidia_smi_log>",
            "has more than 200,000 elements",
        ),
        "a computer of nothing": (
            ["facts", "import", "FILE"],
            f'{{"WindowsEditionId": [{_of(lambda _: "[]", count=1_000_000)}]}}',
            "holds more than 200,000 values",
        ),
        "a configuration without an end": (["lint", "wslconfig", "ZERO"], "", "is larger than 64 KiB"),
        "a journal of gigabytes": (["rollback", "gpu-01.20260101-000000"], "", "is larger than 64 MiB"),
        "a journal of one line": (["rollback", "gpu-02.20260101-000000"], "", "not as winhost writes it"),
    }


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the output of each command, all run in one process."""
    folder = tmp_path_factory.mktemp("hostile")
    runs = folder / "state" / "runs"
    runs.mkdir(parents=True, mode=0o700)
    for place in (folder / "state", runs):
        place.chmod(0o700)
    with (runs / "gpu-01.20260101-000000.jsonl").open("wb") as sparse:
        sparse.truncate(3 << 30)
    (runs / "gpu-02.20260101-000000.jsonl").write_text(f"[{_of(lambda _: '[]', count=5_000_000)}]\n")
    commands = []
    for number, (words, content, _) in enumerate(cases().values()):
        file = folder / f"{number}.file"
        file.write_text(content)
        named = {"FILE": str(file), "ZERO": "/dev/zero", "FACTS": str(folder / "facts.json")}
        commands.append([named.get(word, word) for word in words])
    _shipped_facts(folder / "facts.json")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("bounded.py")],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "WINHOST_STATE": str(folder / "state")},
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(cases(), json.loads(done.stdout), strict=True))


def _shipped_facts(path: Path) -> None:
    from winhost.lab.hostfile import expand, find
    from winhost.model.documents import write_document

    path.write_text(write_document(expand(find("server2025-3gpu"))[0]))


@pytest.mark.real
@each_row("case", cases)
def test_a_file_takes_no_more_memory_than_its_limit_and_fills_no_screen(said: dict[str, Any], case: str) -> None:
    assert cases()[case][2] in said[case]["told"]
    assert said[case]["code"] == 2
    assert said[case]["bytes"] < 10_000
