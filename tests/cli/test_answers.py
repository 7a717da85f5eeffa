"""The documents of --json name their schema, and `winhost schema` prints it."""

from pathlib import Path

from tests.cli.conftest import Line
from tests.schemas import faults


def test_what_is_printed_is_what_is_published(line: Line) -> None:
    one, other = line.facts("win11-pro-1gpu"), line.facts("server2025-3gpu")
    printed = {
        "assessment": line("assess", "--facts", one, "--facts", other, "--json").json,
        "diff": line("diff", one, other, "--json").json,
        "explanation": line("explain", "dda.client-sku", "--json").json,
    }
    for name, document in printed.items():
        assert document["schema"] == f"winhost.{name}/1"
        schema = line("schema", name).json
        assert list(faults(document, schema, schema)) == []
    assert len(printed["assessment"]["results"]) == 2


EXAMPLES = Path(__file__).parents[2] / "examples" / "workloads"


def test_what_speaks_against_a_workloads_wishes_is_shown_with_its_way(line: Line) -> None:
    said = line(
        *("assess", "--facts", line.facts("win11-pro-1gpu")),
        *("--workload", EXAMPLES / "one-7b-on-24gb.yaml", "--path", "wslc"),
    )
    head = said.out.index("What speaks against the workload's wishes:")
    assert "degraded [wslc.loopback] exposure lan" in said.out[head:]


def test_a_version_is_changed_by_a_remedy_as_facts_are(line: Line, tmp_path: Path) -> None:
    old = (EXAMPLES / "kv-on-disk.yaml").read_text(encoding="utf-8").replace('"0.33.0"', '"0.16.0"')
    (tmp_path / "old.yaml").write_text(old, encoding="utf-8")
    words = ("assess", "--facts", line.facts("server2025-3gpu"), "--workload", tmp_path / "old.yaml", "--path", "dda")
    refused = line(*words)
    assert refused.code == 3
    assert "[newer-vllm]" in refused.out
    assert line(*words, "--what-if", "newer-vllm").code == 0
