"""Answers to programs: one envelope, published by `winhost schema`, written result by result."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from tests.cli.conftest import Line, Said
from tests.schemas import faults
from winhost.cli.envelope import open_document, print_document
from winhost.cli.formats import FILES, KINDS, schema_of
from winhost.cli.lab.lab import ListedLabHost
from winhost.cli.options import Form, requested_form
from winhost.knowledge.catalogue import unknown_code_error
from winhost.lab.running_lab import Lab

EXAMPLES = Path(__file__).parents[2] / "examples" / "workloads"


@pytest.fixture
def every(line: Line, lab: Lab) -> dict[str, list[Said]]:
    """Return the answers of commands with --json by their kind, errors included."""
    one, other = line.facts("win11-pro-1gpu"), line.facts("server2025-role-installed")
    Path("wsl.conf").write_text("[boot]\n; x\n")
    said: dict[str, list[Said]] = defaultdict(list)

    def ask(kind: str, *words: object) -> Said:
        said[kind].append(line(*words, "--json"))
        return said[kind][-1]

    ask("planning", "plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json")
    ask("planning", "plan", "--facts", one, "--path", "wsl2", "--set", "network=nat")
    ask("bundle", "bundle", "plan.json", "-o", "bundle")
    ask("check", "apply", "plan.json", "--check")
    ask("outcome", "apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount")
    (run,) = (each["run"] for each in ask("runs", "runs").results)
    ask("run", "runs", run)
    ask("verification", "verify", "plan.json")
    ask("outcome", "rollback", run, "--yes", "--accept", "vm-stop")
    ask("hosts", "host", "list")
    ask("host-test", "host", "test", "gpu-03")
    ask("status", "status", "gpu-03")
    lab.endpoints["desk-01"].stop()
    ask("detection", "detect", "*")
    ask("probe", "probe", "gpu-03")
    ask("assessment", "assess", "*", "--facts", one)
    ask("assessment-full", "assess", one, "--full")
    ask("models", "models", "show", "*", one)
    ask("models", "models", "show")
    ask("report", "report", "*", "-o", "report.html")
    ask("diff", "diff", one, other)
    ask("explanation", "explain", "dda.client-sku")
    ask("diagnosis", "explain", "0xC035001E")
    ask("codes", "explain", "--list")
    ask("known", "known")
    ask("known", "known", "wsl")
    ask("lint", "lint", "wslconf", "wsl.conf")
    ask("lint", "lint", "autoinstall", "wsl.conf")
    ask("recipe", "lint", "serve", "vllm serve m --swap-space 4", "--fix")
    ask("profile", "serve", "profile", "--facts", one, "--workload", EXAMPLES / "one-7b-on-24gb.yaml")
    ask("lab", "lab", "list")
    ask("error", "explain", "no.such-code")
    return said


# Theirs need a hub, a registry, an endpoint, a key, an image, a packed model or a machine with two systems:
# test_workload_init, test_models, test_fetch, test_serve_target, test_render, test_weights, test_install, test_boot and
# test_chat have them.
ELSEWHERE = {"boot", "boot-linux", "draft", "fetched", "install-bmc", "install-media", "install-plan", "rendered"}
ELSEWHERE |= {
    "chat",
    "models-refreshed",
    "serving",
    "serving-change",
    "serving-keys",
    "serving-log",
    "serving-test",
    "weights",
    "yield",
}


@pytest.mark.costly
def test_every_command_answers_in_the_one_published_envelope(line: Line, every: dict[str, list[Said]]) -> None:
    assert every.keys() == KINDS.keys() - ELSEWHERE
    for kind, answers in every.items():
        schema = line("schema", kind).json
        for said in answers:
            assert said.json.keys() == {"schema", "results"}
            assert said.json["schema"] == schema_of(kind)
            assert "error:" not in said.err
            assert (kind, list(faults(said.json, schema, schema))) == (kind, [])
    assert [each.code for each in (*every["detection"], *every["assessment"])] == [5, 5]
    for kind in ("detection", "assessment", "models", "report"):
        (lost,) = (result for result in every[kind][0].results if "error" in result)
        assert (lost["host"], lost["error"]["kind"]) == ("desk-01", "Unreachable")


def one_and_an_error() -> Iterator[ListedLabHost]:
    yield ListedLabHost("one", "fine")
    raise unknown_code_error("no.such")


def test_a_document_that_was_begun_is_ended_whatever_comes(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("json", "yaml"):
        with pytest.raises(click.exceptions.Exit) as ended:
            print_document("lab", one_and_an_error(), form)
        assert ended.value.exit_code == 2
        one, wrong = yaml.safe_load(capsys.readouterr().out)["results"]
        assert (one["name"], wrong["error"]["kind"]) == ("one", "UnknownCode")


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_nothing_found_is_a_document_too(form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    print_document("runs", (), form)
    assert yaml.safe_load(capsys.readouterr().out) == {"schema": "winhost.runs/1", "results": []}


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_results_leave_as_they_come(form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    with open_document("lab", form) as add:
        for number in range(3):
            add(ListedLabHost(f"host-{number}", "fine"))
            assert f"host-{number}" in capsys.readouterr().out


def test_it_reads_as_if_it_had_been_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    results = [{"host": "a\n", "text": ["\x85", "ü"]}, {}]
    print_document("lab", results)
    whole = json.dumps({"schema": "winhost.lab/1", "results": results}, indent=2, ensure_ascii=False) + "\n"
    assert capsys.readouterr().out == whole.replace("\x85", "\\u0085")


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_a_host_is_called_moves_no_cursor(form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["\x1b[2J", "a\nb: c", "\u202egpj", "’$(x)", "no", "ü", "- x", "", "\ud800", "x" * 300 + " y"]
    print_document("lab", (ListedLabHost(name, "fine") for name in names), form)
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert [each["name"] for each in yaml.safe_load(out)["results"]] == names


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (["assess", "--json"], "json"),
        (["assess", "-o", "yaml"], "yaml"),
        (["assess", "-oyaml"], "yaml"),
        (["assess", "--output=json"], "json"),
        (["assess", "--output", "json"], "json"),
        (["assess", "json"], None),
        (["plan", "-o", "json.json"], None),
    ],
)
def test_errors_take_the_form_that_was_asked_for(words: list[str], form: Form | None) -> None:
    assert requested_form(words) == form


def test_what_speaks_against_a_workloads_wishes_is_shown_with_its_way(line: Line) -> None:
    said = line(
        *("assess", "--facts", line.facts("win11-pro-1gpu")),
        *("--workload", EXAMPLES / "one-7b-on-24gb.yaml", "--path", "wslc"),
    )
    head = said.out.index("Conflicts with the workload:")
    assert "[wslc.loopback]\n      observed: exposure lan" in said.out[head:]


def test_a_version_is_changed_by_a_remedy_as_facts_are(line: Line, tmp_path: Path) -> None:
    old = (EXAMPLES / "kv-on-disk.yaml").read_text(encoding="utf-8").replace('"0.33.0"', '"0.16.0"')
    (tmp_path / "old.yaml").write_text(old, encoding="utf-8")
    words = ("assess", "--facts", line.facts("server2025-3gpu"), "--workload", tmp_path / "old.yaml", "--path", "dda")
    refused = line(*words)
    assert refused.code == 3
    assert "[newer-vllm]" in refused.out
    assert line(*words, "--what-if", "newer-vllm").code == 0


def test_a_verdict_says_for_how_many_gpus_it_holds(line: Line) -> None:
    said = line("assess", line.facts("acs-unsupported"))
    assert "\ndda: supported for 1 of 3 GPUs, degraded for 2\n" in said.out
    assert "\ndda: supported\n" in line("assess", line.facts("server2025-2xh100"), "--path", "dda").out


def test_the_help_of_schema_names_every_format(line: Line) -> None:
    words = set(re.findall(r"[a-z-]+", " ".join(line("schema", "--help").out.split())))
    assert {*FILES, *KINDS} - words == set()
