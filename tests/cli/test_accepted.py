"""Arguments of plan, verify and assess, and forms of -o, that are accepted or refused."""

import json
import signal
import time
from pathlib import Path

import pytest
import yaml

from tests.cases import FASTEST
from tests.cli.conftest import Line
from tests.rows import each_row
from winhost.lab.running_lab import Lab
from winhost.model.documents import read_document
from winhost.model.plan import Plan

WORKLOAD = Path(__file__).parents[2] / "examples" / "workloads" / "one-7b-on-24gb.yaml"
DXDIAG = [*(Path(__file__).parents[1] / "data" / "imports" / "synthetic").glob("dxdiag-win11-pro.xml")]
WINDOWS_11, SERVER = "win11-pro-1gpu", "server2025-role-installed"


def network(file: str) -> object:
    return read_document(Path(file), Plan).request.playbook["settings"]["network"]


# ---- the path of a plan


@each_row(
    ("words", "says"),
    [
        (("--path", "wsl2", "--vm", "x", "--gpu", "y"), "--vm belongs to dda, and not to wsl2"),
        (("--path", "wsl2", "--gpu", "y"), "--gpu belongs to dda, and not to wsl2"),
        (("--path", "wsl2/nat", "--high", "64GiB"), "--high belongs to dda, and not to wsl2"),
        (("--path", "wsl2", "--low", "64MiB"), "--low belongs to dda, and not to wsl2"),
        (("--path", "wsl2", "--power", "off"), "--power belongs to dda, and not to wsl2"),
        (("--path", "wsl2", "--power", "as-found"), "--power belongs to dda, and not to wsl2"),
        (("--path", "dda", "--set", "network=nat"), "--set network belongs to wsl2, and not to dda"),
        (("--vm", "x", "--set", "network=nat"), "--set network belongs to wsl2, and not to dda"),
        (("--path", "gpu-p", "--vm", "x"), "--vm belongs to dda, and not to gpu-p"),
        (("--path", "wsl2/nat", "--set", "network=mirrored"), "network=mirrored contradicts --path wsl2/nat"),
        (("--path", "wsl2/nat", "--set", "bridge.switch=lan"), "bridge.* is for network=bridged, and not for"),
        (("--path", "wsl2/bridged"), "network=bridged also needs bridge.switch=NAME"),
        (("--path", "wsl2/bridge"), "there is no path 'wsl2/bridge'; did you mean 'wsl2/bridged'?"),
    ],
)
def test_what_does_not_belong_to_a_path_is_refused_by_name(line: Line, words: tuple[str, ...], says: str) -> None:
    said = line("plan", line.facts(WINDOWS_11), *words)
    assert (said.code, says in said.err) == (2, True), said.err


def test_a_variant_is_taken_as_assess_prints_it(line: Line) -> None:
    facts = line.facts(WINDOWS_11)
    assert line("plan", facts, "--path", "wsl2/nat", "-o", "one.json").code == 0
    assert line("plan", facts, "--path", "wsl2", "--set", "network=nat", "-o", "other.json").code == 0
    one, other = (read_document(Path(f"{name}.json"), Plan) for name in ("one", "other"))
    assert (network("one.json"), one.request, one.stages) == ("nat", other.request, other.stages)
    only = line("assess", facts, "--path", "wsl2/nat", "--json").result["options"]
    assert [(option["path"], option["variant"]) for option in only] == [("wsl2", "nat")]


def test_without_a_path_the_recommended_one_is_planned_and_said(line: Line) -> None:
    said = line("plan", line.facts(WINDOWS_11))
    assert (said.code, said.out.splitlines()[0]) == (
        0,
        "desk-01: wsl2/mirrored is recommended here (degraded). To choose another option, use --path.",
    )
    told = line("plan", line.facts(WINDOWS_11), "--json").result
    assert (told["path"], told["recommended"]) == ("wsl2", "degraded")
    named = line("plan", line.facts(WINDOWS_11), "--path", "wsl2", "--json").result
    assert (named["recommended"], named["plan"]["stages"]) == (None, told["plan"]["stages"])


@pytest.mark.parametrize(
    ("host", "command"),
    [
        ("only-display", "winhost plan gpu-03 --path wsl2 --allow-unverified"),
        ("win11-pro-2xl20-mcdm", "winhost plan desk-l20 --path wsl2 --allow-unverified"),
        ("iommu-off", "winhost plan gpu-03 --path dda --vm llm-01 --allow-unverified"),
    ],
)
def test_what_nobody_verified_has_to_be_named(line: Line, host: str, command: str) -> None:
    for more in ((), ("--allow-unverified",)):
        said = line("plan", line.facts(host), *more)
        assert said.code == 3
        assert "which has to be named" in said.err
        assert command.split("plan ")[1].split(" ", 1)[1] in said.err
        assert "winhost plan" in said.err


@pytest.mark.parametrize("host", ["win11-no-gpu", "win11-arm64", "laptop-hybrid"])
def test_nothing_that_takes_the_machine_is_planned_unasked(line: Line, host: str) -> None:
    said = line("plan", line.facts(host), "--json")
    assert said.code == 3 or said.result["path"] in ("dda", "wsl2")


def test_the_consent_data_is_never_asked_for_by_default(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "risks", property(lambda plan: ("data",)))
    facts = line.facts(WINDOWS_11)
    said = line("plan", facts)
    assert (said.code, "asks for the consent data" in said.err) == (3, True)
    assert f"winhost plan {facts} --path wsl2\n" in said.err
    assert line("plan", line.facts(WINDOWS_11), "--path", "wsl2").code == 0


def test_no_path_that_cannot_work_is_offered_instead(line: Line) -> None:
    said = line("plan", line.facts("server2019-role-removed"))
    assert (said.code, "which has to be named" in said.err, "--path" in said.err) == (3, True, False)


# ---- several hosts, and folders


@pytest.mark.costly
def test_plans_of_several_hosts_are_a_folder_that_others_read(line: Line, lab: Lab) -> None:
    assert line("detect", "*", "-o", "facts").code == 0
    said = line("plan", "facts", "-o", "plans/")
    assert said.code == 2  # which VM?
    assert "desk-01   wsl2/mirrored (recommended)" in said.out
    assert "error: gpu-03 has 2 VMs" in said.err
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plans").code == 0
    assert sorted(path.name for path in Path("plans").iterdir()) == ["desk-01.json", "gpu-03.json"]
    checked = line("verify", "plans", "--json")
    assert (checked.code, [result["host"] for result in checked.results]) == (4, ["desk-01", "gpu-03"])
    assert line("verify", "plans", "facts", "--json").results == checked.results
    assert line("verify", "plans/gpu-03.json", "facts/gpu-03.json").code == 4
    assert line("apply", "plans", "--yes").code == 2  # no consents, and nothing done
    assert line("verify", "facts").code == 2
    assert line("bundle", "plans/gpu-03.json", "-o", "bundle").code == 0
    assert line("verify", "bundle", "-o", "name").out == "gpu-03\n"
    assert line("assess", "plans/").err.startswith("error: there are no facts in plans")
    assert line("bundle", "plans", "-o", "other").code == 2
    assert line("report", "facts", "-o", "report.html").code == 0
    assert line("detect", "gpu-03", "--fleet", str(line.folder), "-o", "name").out == "gpu-03\n"


def test_plans_of_two_hosts_of_one_name_do_not_overwrite_each_other(line: Line, lab: Lab) -> None:
    Path("facts").mkdir()
    for name in ("one", "other"):
        Path(f"facts/{name}.json").write_bytes(line.facts(WINDOWS_11).read_bytes())
    Path("capitals.json").write_text(line.facts(WINDOWS_11).read_text().replace('"desk-01"', '"DESK-01"'))
    for words, says in (
        (("facts",), "2 of these are of desk-01: facts/one.json, facts/other.json"),
        (("facts/one.json", "desk-01"), "2 of these are of desk-01: desk-01, facts/one.json"),
        (("facts/one.json", "capitals.json"), "2 of these are of desk-01: facts/one.json, capitals.json"),
    ):
        said = line("plan", *words, "-o", "plans/")
        assert (said.code, said.err.splitlines()[0]) == (2, f"error: {says}")
        assert not Path("plans").exists()
    assert line("plan", "facts").code == 0  # nothing is written
    assert line("plan", "facts/one.json", "-o", "plan.json").code == 0
    said = line("verify", "plan.json", "facts")
    assert (said.code, "2 of these are of desk-01" in said.err) == (2, True)


@pytest.mark.parametrize("host", ["../evil", "a/b", "..", "/evil", "a\\b", "a\nb"])
def test_a_plan_is_written_nowhere_but_in_its_folder(line: Line, host: str) -> None:
    facts = json.loads(line.facts(WINDOWS_11).read_text())
    for file, name in (("hostile.json", host), ("fine.json", "fine")):
        Path(file).write_text(json.dumps({**facts, "host": name}))
    before = {*Path().rglob("*"), *Path("..").glob("*")}
    said = line("plan", "hostile.json", "fine.json", "--path", "wsl2", "-o", "plans/")
    assert (said.code, "no file can be named after the host" in said.err) == (2, True)
    plans = {Path("plans"), Path("plans/fine.json")}
    assert {*Path().rglob("*"), *Path("..").glob("*")} - before == plans


def test_a_lab_serves_the_folder_that_detect_wrote(line: Line, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert line("detect", "*", "-o", "facts").code == 0
    monkeypatch.setattr(time, "sleep", lambda seconds: signal.raise_signal(signal.SIGINT))
    said = line("lab", "up", "facts", "facts", "win11-home-1gpu", "-o", "twins")
    assert said.code == 0
    assert "Simulated hosts running: desk-01, gpu-03, desk-01-2, gpu-03-2, home-01." in said.err
    said = line("lab", "up", "plans")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: there is no host file 'plans'")
    Path("plans").mkdir()
    assert line("lab", "up", "plans").err.startswith("error: there are no facts in plans\n")


def test_facts_are_named_alike_everywhere(line: Line) -> None:
    Path("facts").mkdir()
    line.facts(WINDOWS_11).rename("facts/pc.json")
    line.facts(SERVER).rename("facts/rack.json")
    Path(".wslconfig").write_text("[experimental]\nswiotlb=64MB\n")
    for command, option, lacks in (
        (("lint", "wslconfig", ".wslconfig"), "--facts", 0),
        (("serve", "profile", "--workload", WORKLOAD), "--facts", 2),
    ):
        whole = line(*command, "facts/pc.json")
        assert whole.code == (1 if command[0] == "lint" else 0)
        for words in ((option, "facts/pc.json"), ("facts/desk-01",), (option, "facts/desk-01")):
            assert line(*command, *words) == whole
        for words in (("facts",), (option, "facts")):
            said = line(*command, *words)
            assert (said.code, "Name one of: facts/pc.json, facts/rack.json" in said.err) == (2, True)
        twice = line(*command, "facts/pc.json", option, "facts/pc.json")
        assert (twice.code, "name the same thing twice" in twice.err) == (2, True)
        assert line(*command).code == lacks
    Path("facts/rack.json").unlink()
    assert line("serve", "profile", "--workload", WORKLOAD, "facts").code == 0


def test_one_file_takes_one_plan(line: Line) -> None:
    said = line("plan", line.facts(WINDOWS_11), line.facts("win11-home-1gpu"), "-o", "plan.json")
    assert (said.code, "plan.json is one file" in said.err) == (2, True)


def test_a_broken_file_in_a_folder_is_told_and_loses_nothing(line: Line) -> None:
    Path("facts").mkdir()
    line.facts(WINDOWS_11).rename("facts/a.json")
    Path("facts/b.json").write_text("{")
    Path("facts/package.json").write_text("{}")
    said = line("assess", "facts", "--json")
    assert (said.code, len(said.results)) == (2, 2)
    assert said.results[0]["options"]
    assert "b.json" in said.results[1]["error"]["what"]


# ---- forms


def test_rows_first_and_details_on_demand(line: Line) -> None:
    words = ("assess", line.facts(WINDOWS_11), line.facts(SERVER))
    rows = line(*words).out
    assert "Recommended:" not in rows
    assert "gpu-03    dda" in rows
    assert line(*words, "--details").out.count("Recommended:") == 2
    assert line(*words[:2]).out.count("Recommended:") == 1
    assert "also possible" in line(*words, "-o", "wide").out


@pytest.mark.parametrize(("words", "first"), [(("lab", "list"), "acs-unsupported"), (("explain", "--list"), "dda.")])
def test_names_are_one_a_line(line: Line, words: tuple[str, ...], first: str) -> None:
    names = line(*words, "-o", "name").out.splitlines()
    assert names[0].startswith(first)
    assert not any(" " in name for name in names)
    table = line(*words).out.splitlines()
    assert len(names) <= len(table) - 2


def test_a_form_and_a_place_go_together(line: Line) -> None:
    said = line("plan", line.facts(WINDOWS_11), "-o", "plan.json", "-o", "json")
    assert said.result["file"] == "plan.json"
    assert json.loads(Path("plan.json").read_text()) == said.result["plan"]
    assert line("plan", line.facts(WINDOWS_11), "-o", "./json").code == 0
    assert Path("json").is_file()


@pytest.mark.costly
def test_wide_has_more_than_the_table(line: Line, lab: Lab) -> None:
    one, other = line.facts(WINDOWS_11), line.facts(SERVER)
    planned = ("plan", other, "--vm", "llm-01")
    assert line(*planned, "-o", "plan.json").code == 0
    assert line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount").code == 0
    (run,) = (listed["run"] for listed in line("runs", "--json").results)
    for words, more in (
        (("assess", one), ("note",)),
        (("assess", one, other), ("also possible", "cheapest changes")),
        (("detect", "gpu-03"), ("BARs", "location", "VEN_10DE", "checkpoints", "assigned", "GPT")),
        (("facts", "import", *DXDIAG), ("BARs",)),
        (("diff", one, other), ()),
        (planned, ("134217728", "can change only then")),
        (("plan", one, other, "--allow-unverified"), ("restarts", "changes", "cannot be undone")),
        (("verify", "plan.json"), ()),
        (("runs",), ("changed", "last", "folder", str(line.folder), f"{run}.jsonl")),
        (("runs", run), ("path: dda", f"folder: {line.folder}", f"{run}.jsonl")),
        (("lab", "list"), ("synthetic",)),
    ):
        table, wide = line(*words), line(*words, "-o", "wide")
        assert wide.code == table.code, words
        assert len(wide.out) > len(table.out), words
        assert [word for word in more if wide.out.count(word) <= table.out.count(word)] == [], words


@pytest.mark.parametrize(
    "words",
    [
        ("report", "x.json", "-o", "report.html"),
        ("explain", "dda.client-sku"),
        ("bundle", "-o", "folder"),
        ("lint", "wslconfig", "x"),
        ("serve", "profile", "x.json", "--workload", WORKLOAD),
        ("apply", "plan.json"),
        ("resume", "run"),
        ("rollback", "run"),
    ],
)
def test_wide_is_refused_where_there_is_nothing_more(line: Line, words: tuple[str, ...]) -> None:
    said = line(*words, "-o", "wide")
    assert (said.code, "'wide' has nothing more to show here" in said.err) == (2, True), said.err
    assert "wide" not in line(*words[:2] if words[0] in ("lint", "serve") else words[:1], "--help").out


@pytest.mark.costly
@pytest.mark.parametrize("form", ["json", "yaml", "name"])
def test_runs_answer_in_every_form(line: Line, lab: Lab, form: str) -> None:
    assert line("plan", "gpu-03", "--vm", "llm-01", "-o", "plan.json").code == 0
    accepted = ("--yes", "--accept", "vm-stop,force-dismount", "-o", form)
    said = [line("apply", "plan.json", "--check", "-o", form), line("apply", "plan.json", *accepted)]
    (run,) = line("runs", "-o", "name").out.split()
    said += [line("resume", run, *accepted), line("rollback", run, *accepted)]
    assert [each.code for each in said] == [0] * 4
    if form == "name":
        assert [each.out for each in said] == ["gpu-03\n"] * 4
        return
    documents = [yaml.load(each.out, FASTEST) for each in said]
    assert [document["schema"] for document in documents] == ["winhost.check/2", *["winhost.outcome/2"] * 3]
    ended = [document["results"][0]["outcome"]["outcome"] for document in documents[1:]]
    assert ended == ["applied", "applied", "rolled back"]
    if form == "yaml":
        assert not said[1].out.startswith("{")
    failed = line("rollback", "no-such-run", "-o", form)
    assert (failed.code, yaml.load(failed.out, FASTEST)["schema"]) == (2, "winhost.error/1")
    both = line("apply", "plan.json", "-o", form, "--jsonl")
    assert (both.code, "choose one" in both.out) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("assess", "x.json", "-o", "out.txt"), "is none of wide, json, yaml, name"),
        (("runs", "-o", "yaml", "--json"), "choose one"),
        (("plan", "x.json", "-o", "a.json", "-o", "b.json"), "are two destinations"),
        (("report", "x.json", "-o", "json"), "name the file to write"),
        (("bundle",), "name the folder to write"),
    ],
)
def test_a_form_that_is_none_is_refused(line: Line, words: tuple[str, ...], says: str) -> None:
    said = line(*words)
    assert (said.code, says in said.err + said.out) == (2, True), said.err


# ---- what is only supposed


def test_what_is_supposed_is_marked_everywhere(line: Line) -> None:
    facts, supposed = line.facts(WINDOWS_11), ("--what-if", "install-server", "--need", "nvlink,uvm")
    marked = "Hypothetical: evaluated as if install-server were applied and for a target that must offer nvlink, uvm."
    assert marked in line("assess", facts, *supposed).out
    assert marked in line("assess", facts, line.facts(SERVER), *supposed).out
    for form in ((), ("--full",)):
        told = line("assess", facts, *supposed, "--json", *form).result["supposed"]
        assert told == {"what_if": ["install-server"], "needs": ["nvlink", "uvm"], "assumed": []}
    assert line("assess", facts, "--json").result["supposed"] is None
    line("report", facts, *supposed, "-o", "report.html")
    assert marked in Path("report.html").read_text(encoding="utf-8")
    assert "Hypothetical" not in line("assess", facts).out


@pytest.mark.parametrize("number", ["90", "90s", "1m30s"])
def test_a_duration_may_be_a_number_of_seconds(number: str) -> None:
    from winhost.cli.options import DURATION

    assert DURATION.convert(number, None, None) == 90
