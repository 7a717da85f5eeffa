"""winhost's own errors are known as they are printed, and those of other programs are not taken for them."""

from tests.rows import each_row
from winhost.cli.output import error_text
from winhost.model.errors import UsageError
from winhost.symptoms.diagnosis import diagnose, explain_error_code
from winhost.symptoms.own import OwnError, all_errors, match_error

FILLED = "gpu-01"


def long_enough() -> list[OwnError]:
    return [error for error in all_errors() if sum(map(len, error.words)) >= 16]


def test_most_errors_of_winhost_are_read_from_the_source() -> None:
    codes = {error.code for error in all_errors()}
    assert len(codes) > 120
    assert {"DiskTooSmall", "NoSuchFile", "HostKeyUnknown"} <= codes


@each_row("error", long_enough, ids=lambda error: error.code)
def test_an_error_is_known_by_what_it_always_says(error: OwnError) -> None:
    said = f"error: {error.what.replace('…', FILLED)}"
    known = match_error(said)
    assert known is not None
    assert known.match_length(said) >= error.match_length(said) > 0


def test_an_error_as_it_is_printed_is_found_with_what_to_do() -> None:
    what = "gpu-01 has 12 GB free on the volume of Windows, and 40 GB are needed"
    text = error_text(UsageError("DiskTooSmall", what=what, meaning="Nothing was changed.", hint="Free some"))
    (found,) = diagnose([f"$ winhost up gpu-01\n{text}\n"], "text").found
    assert (found.code, found.line) == ("winhost.DiskTooSmall", 2)
    remedy = found.causes[0].remedy
    assert remedy
    assert "winhost models" in remedy.do


def test_an_error_that_a_terminal_broke_into_lines_is_the_same() -> None:
    text = "error: gpu-01 has 12 GB free on the\nvolume of Windows, and 40 GB are needed\n  Nothing was changed.\n"
    assert [found.code for found in diagnose([text], "text").found] == ["winhost.DiskTooSmall"]


def test_an_error_is_explained_by_its_code() -> None:
    known = explain_error_code("DiskTooSmall")
    assert known is not None
    assert known.found[0].subject == "winhost"
    assert explain_error_code("NoSuchErrorAtAll") is None
    assert explain_error_code("disk.full") is None


@each_row(
    "line",
    [
        "error: expected ';' before 'return'",
        "error: failed to push some refs to 'github.com:me/x.git'",
        "error: could not compile `serde` due to 3 previous errors",
        "error: pathspec 'x' did not match any file(s) known to git",
        "error: metadata-generation-x",
        "error: ",
    ],
)
def test_an_error_of_another_program_is_not_ours(line: str) -> None:
    assert match_error(line) is None
