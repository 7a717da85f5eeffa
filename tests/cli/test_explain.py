"""Tests of winhost explain."""

import os
import threading
from collections import Counter
from io import BufferedReader, BytesIO, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.findings.show import describe_evidence
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import explain
from winhost.knowledge.lint_codes import explain_lint, lint_codes
from winhost.serving.profile import rows
from winhost.symptoms.table import printed_texts, symptoms


@pytest.mark.parametrize("code", ["wsl2.tcc-invisible", "nvlink.unknown", "sleep-l1.pageable"])
def test_a_story_ends_with_what_is_related(line: Line, code: str) -> None:
    told = explain(code)
    said = line("explain", code)
    _, _, related = said.out.partition("  Related:\n")
    assert [row.partition(":")[0].strip() for row in related.splitlines()] == list(told.related)
    assert line("explain", code, "--json").result["related"] == list(told.related)


def says() -> list[tuple[str, str]]:
    return [(code, words) for code in catalogue.reason_entries() for words in printed_texts(code)]


@each_row(("code", "words"), says)
def test_a_reason_says_what_programs_print_by_it(line: Line, code: str, words: str) -> None:
    assert f"  In logs: {words}\n" in line("explain", code).out


def test_evidence_says_how_sure_it_makes(line: Line) -> None:
    said = line("explain", "wsl2.tcc-invisible")
    for evidence in explain("wsl2.tcc-invisible").evidence:
        assert f"Evidence {evidence.id} ({describe_evidence(evidence)})\n" in said.out


def test_what_is_listed_can_be_explained(line: Line) -> None:
    for row in line("explain", "--list", "kv-", "--json").results:
        assert line("explain", row["code"]).code == 0


def test_no_code_names_two_things() -> None:
    every = [*catalogue.entries(), *catalogue.gaps(), *lint_codes(), *symptoms(), *rows()]
    assert [code for code, count in Counter(every).items() if count > 1] == []


def test_an_error_that_is_pasted_is_answered(line: Line) -> None:
    said = line("explain", "Fehlercode:", "Wsl/Service/CreateInstance/CreateVm/HCS/0x80070569")
    assert said.code == 0
    assert " [wsl.service-logon] (Hyper-V and wsl.exe)\n" in said.out
    for part in ("  1. A group policy", "     To tell: ", "     → ", ": microsoft/WSL #5401"):
        assert part in said.out


@pytest.mark.parametrize("code", ["-2147023511", "0x80070569", "80070569", "2147943785"])
def test_a_code_is_read_however_it_is_written(line: Line, code: str) -> None:
    (found,) = line("explain", code, "--json").result["found"]
    assert (found["code"], found["line"], found["count"]) == ("wsl.service-logon", 1, 1)


def test_a_log_comes_from_a_file_or_from_stdin(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    log = "all is well\r\nError: 0x80070569\r\nError: 0x80070569\r\n".encode("utf-16")
    Path("wsl.log").write_bytes(log)
    said = line("explain", "wsl.log")
    assert said.out.startswith("wsl.log: 1 known problem in 3 lines\n\nline 2, 2 times: ")
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(log)))
    assert line("explain", "-", "--json").result["found"] == line("explain", "wsl.log", "--json").result["found"]


class _Typed(RawIOBase):
    """A terminal on which each end of the text has to be typed. Only the first end was announced."""

    told = ended = False

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        assert not self.ended, "read again after Ctrl-D"
        text = b"" if self.told else b"CUDA out of memory\n"
        self.told, self.ended = True, not text
        into[: len(text)] = text
        return len(text)


def test_what_is_pasted_ends_with_one_ctrl_d(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BufferedReader(_Typed())))
    said = line("explain", "-")
    assert "cuda.out-of-memory" in said.out
    assert "Ctrl-D" in said.err


def test_several_files_have_an_answer_each(line: Line) -> None:
    Path("a.log").write_text("0x80070569", "utf-8")
    Path("b.log").write_text("healthy", "utf-8")
    said = line("explain", "a.log", "b.log", "--json")
    assert [(each["source"], len(each["found"])) for each in said.results] == [("a.log", 1), ("b.log", 0)]
    assert said.code == 1
    assert "b.log: nothing known in 1 line.\n" in line("explain", "a.log", "b.log").out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_with_a_name_is_read_as_a_file(line: Line) -> None:
    """A shell makes such a pipe for `<(PROGRAM)`."""
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text("0x80070569", "utf-8"), daemon=True)
    writer.start()
    assert "[wsl.service-logon]" in line("explain", "pipe").out
    writer.join(PATIENCE_S)


def test_a_device_without_a_text_is_empty_and_not_missing(line: Line) -> None:
    assert f"there is nothing to explain: {os.devnull} is empty" in line("explain", os.devnull).err


@pytest.mark.parametrize("arguments", [(), ("--list",), ("wsl2.tcc-invisible",), ("0xC035001E",)])
def test_a_facts_file_that_is_missing_is_refused(line: Line, arguments: tuple[str, ...], tmp_path: Path) -> None:
    said = line("explain", *arguments, "--facts", str(tmp_path / "missing.json"))
    assert (said.code, said.out) == (2, "")
    assert "missing.json" in said.err


def test_facts_rule_out_what_the_host_contradicts(line: Line) -> None:
    facts = line.facts("win11-pro-1gpu")
    said = line("explain", "0xC035001E", "--facts", facts)
    assert "     Found on desk-01: Microsoft Windows 11 Pro (edition Professional" in said.out
    assert "  Ruled out on desk-01: A policy requires that assigned devices can be isolated." in said.out
    facts = line.facts("server2025-2x4090")
    assert "contradict every cause that is known" in line("explain", "0xC035001E", "--facts", facts).out


def test_an_unknown_code_says_what_its_number_does(line: Line) -> None:
    said = line("explain", "HRESULT: 0x80070041")
    assert said.code == 1
    assert said.out.startswith(
        "Nothing is known beyond the names of codes of this text.\n\n"
        "0x80070041 ERROR_NETWORK_ACCESS_DENIED: this is the code's name; no cause is known here.\n"
        "  Family: Win32 error 65, as HRESULT; also written -2147024831 or 2147942465."
    )
    assert "net helpmsg 65" in said.out


def test_a_word_that_is_nothing_is_a_misspelt_code_or_a_missing_file(line: Line) -> None:
    assert "no reason has the code 'dda.client'" in line("explain", "dda.client").err
    said = line("explain", "./serve.log")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: cannot read ./serve.log: no such file")


CANARY = "c4naryS3cr3tValue"
HOLDERS = [
    f"HF_TOKEN=hf_{CANARY} Error code: 0x80070569",
    f"Authorization: Bearer {CANARY} 0x80070569",
    f"0x80070569 at https://user:{CANARY}@proxy.example.com/x",
    f"password: '{CANARY}' 0x80070569",
    f"hf_{CANARY}.log",
    f"hf_{CANARY}",
    f"./token={CANARY}",
]


@each_row("text", HOLDERS)
@each_row("form", [(), ("--json",), ("-o", "yaml"), ("-v",), ("--list",)])
def test_no_secret_of_a_pasted_text_comes_out(line: Line, text: str, form: tuple[str, ...]) -> None:
    said = line("explain", text, *form)
    assert CANARY not in said.out + said.err
    Path("log").write_text(f"first\n{text}\n", "utf-8")
    said = line("explain", "log", *form)
    assert CANARY not in said.out + said.err


def test_every_code_of_lint_has_its_story(line: Line) -> None:
    for code in (
        "serve.shm-small",
        "cdi.key-twice",
        "docker-daemon.wrong-kind",
        "wslconf.unread",
        "autoinstall.no-storage",
    ):
        said = line("explain", code)
        assert f" [{code}]\n  " in said.out
        assert "`winhost lint` finds it" in said.out.replace("\n  ", " ")
    for code in lint_codes():
        told = explain_lint(code)
        assert "{name}" not in told.sentence + (told.remedy.do if told.remedy else "")
    assert line("explain", "serve.shm-smal").err.startswith(
        "error: no reason has the code 'serve.shm-smal'; did you mean"
    )


@each_row(
    ("code", "means"),
    [
        ("vllm.network", "sets the container's network, for: not lmcache"),
        ("wsl2.NCCL_P2P_DISABLE", "sets NCCL_P2P_DISABLE, for: model_gpus >1"),
        ("wsl2.memory", "names memory of .wslconfig, for: above_wsl_ram"),
        (
            "dda.ways-between-gpus",
            "says: winhost probe settles whether these GPUs reach each other, for: model_gpus >1",
        ),
        ("no-sleep.weight-cache", "starts and stops a model instead of letting it sleep, for: sleeps; weight_cache"),
    ],
)
def test_the_story_of_a_profile_line_says_what_it_does(line: Line, code: str, means: str) -> None:
    said = line("explain", f"profile.{code}")
    assert said.code == 0
    assert f"  `winhost serve profile` {means}.\n" in said.out
    assert "\n  Evidence " in said.out


def test_the_line_that_a_plan_adds_has_its_story(line: Line) -> None:
    assert "A plan for a model with `load_format: packed`" in line("explain", "profile.loader").out


def test_a_linter_lists_its_own_codes(line: Line) -> None:
    listed = {row["code"] for row in line("explain", "--list", "cdi.", "--json").results}
    assert {"cdi.no-cdi-kind", "cdi.key-twice"} <= listed
    assert "cdi.shm-small" not in listed
    assert "serve.no-cdi-kind" not in lint_codes()
    assert not {"wslconfig.unread", "wslconfig.byte-order-mark", "wslconf.policy"} & {*lint_codes()}
    assert {name.partition(".")[2] for name in explain_lint("wslconfig.encoding").related} & {"not-utf8"}


def test_a_pipe_is_read_without_a_sign_for_it(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"Error: 0x80070569\n")))
    (found,) = line("explain", "--json").result["found"]
    assert found["code"] == "wsl.service-logon"
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert "dda.client-sku" in line("explain").out


def test_an_empty_pipe_is_wrong_usage_and_no_list_of_codes(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("explain",), ("explain", "-")):
        reader, writer = os.pipe()
        os.close(writer)
        with os.fdopen(reader) as nothing:
            monkeypatch.setattr("sys.stdin", nothing)
            said = line(*words)
        assert (said.code, said.out) == (2, "")
        assert "standard input is empty" in said.err
    for text in ("", "\n \n\t\n"):
        Path("torn.log").write_text(text)
        said = line("explain", "torn.log")
        assert (said.code, said.out) == (2, "")
        assert "torn.log is empty" in said.err


def test_a_topic_is_no_code_and_leads_to_the_command_that_tells_of_it(line: Line) -> None:
    for topic, asked in (("dda", "--path dda"), ("mmio", "--path dda"), ("nvlink", "--need nvlink")):
        said = line("explain", topic)
        assert said.code == 2
        assert "takes a whole code" in said.err
        assert f"winhost assess HOST {asked}\n" in said.err
        assert f"winhost explain --list {topic}\n" in said.err


@pytest.mark.skipif(os.name == "nt", reason="Windows can ask sockets alone whether there is something to read")
def test_a_pipe_that_stays_open_and_silent_is_not_waited_for(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr("winhost.cli.look.explain._INPUT_WAIT_S", 0)
    with os.fdopen(reader) as silent:
        monkeypatch.setattr("sys.stdin", silent)
        assert "dda.client-sku" in line("explain").out
    os.close(writer)
