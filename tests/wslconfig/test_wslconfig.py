"""The files that WSL reads: cases are data; reading loses nothing, and a change is a change of that key alone."""

from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.version import Version

from tests.cases import read_cases
from tests.errors import raises
from tests.findings.linted import DIALECTS, in_wsl_file
from tests.rows import each_row
from winhost.findings.condition import find_mistake
from winhost.model.errors import UsageError
from winhost.wslconfig.format import HARMLESS, WSLCONF, WSLCONFIG, Dialect, parse
from winhost.wslconfig.keys import change_keys, key_of, keys_of, read_values
from winhost.wslconfig.rules import ROWS, HostLimits, lint

ROOT = Path(__file__).parent.parent.parent
CASES = read_cases(ROOT / "tests" / "data" / "wslconfig" / "lint.yaml")
TABLE = read_cases(files("winhost.wslconfig").joinpath("known_keys.yaml"))["wslconfig"]

# --- Cases -----------------------------------------------------------------------------------------------------------


@each_row("name", CASES)
def test_the_file_is_judged_as_wsl_would_read_it(name: str) -> None:
    case = CASES[name]
    found = in_wsl_file(case)
    assert found.said == case["says"]
    assert {each.code.partition(".")[0] for each in found.findings} <= {case.get("file", "wslconfig")}
    assert [words for words in case.get("words", ()) if words not in found.told] == []
    if "sets" in case:
        dialect = DIALECTS[case.get("file", "wslconfig")]
        read_out = {f"{section}.{key}": value for (section, key), value in read_values(case["text"], dialect).items()}
        assert read_out == {key: tuple(it) if isinstance(it, list) else it for key, it in case["sets"].items()}


def test_a_row_asks_for_keys_that_wsl_has() -> None:
    rows = [row for row in ROWS.values() if row.find]
    known = {"version", *map(str, keys_of(WSLCONFIG))}
    assert {question for row in rows for question in (row.find["key"], *row.when)} <= known
    assert [find_mistake({**row.when, "value": row.find.get("value")}, lambda _: True) for row in rows] == [None] * len(
        rows
    )


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_the_tables_speak_of_keys_that_there_are(dialect: Dialect) -> None:
    for key in keys_of(dialect):
        assert find_mistake(key.when, {"networking_mode", *map(str, keys_of(dialect))}.__contains__) is None, key
        modes = key_of(WSLCONFIG, ("wsl2", "networkingmode"))
        assert modes
        assert set(key.when.get("mode", ())) <= set(modes.values)
        assert set(key.values_since) <= set(key.values)
        assert (key.type == "word") == bool(key.values)


# As many as the tables of ConfigKey in WslCoreConfig.cpp have at these tags, and at 2026-08-07 behind the last one.
@pytest.mark.parametrize(("wsl", "keys"), [("2.5.10", 56), ("2.7.11", 56), ("2.8.12", 57), ("2.9.4", 57), ("2.10", 59)])
def test_each_wsl_knows_as_many_keys_as_its_source_has(wsl: str, keys: int) -> None:
    written = [f"[{section}]\n{name}=\n" for section, rows in TABLE.items() for name in rows]
    told = [it for it in lint("".join(written).encode(), version=Version(wsl)) if it.code == "wslconfig.too-new"]
    new = [row for rows in TABLE.values() for row in rows.values() if Version(row.get("since", "0")) > Version(wsl)]
    assert len(written) - len(new) == keys
    assert len(told) == len(new)


@pytest.mark.parametrize("digits", ["9" * 5000, "0" * 5000, "0x" + "f" * 5000, "07" * 3000])
def test_numbers_of_any_length_are_read(digits: str) -> None:
    assert lint(f"[wsl2]\nprocessors={digits}\nmemory={digits}\n".encode()) is not None
    assert -(1 << 31) <= int(str(read_values(f"[wsl2]\nprocessors={digits}").get(("wsl2", "processors"), 0))) < 1 << 31


# --- Properties ------------------------------------------------------------------------------------------------------

PARTS = [
    *("[wsl2]\n", "[general]\r\n", "[Experimental]", "[ws12]\n", "[boot]\n", "[user]\n", "[", "]"),
    *("networkingMode", "NETWORKINGMODE=nat\n", "memory", "memory=8GB\n", "instanceIdleTimeout=1", "systemd=true\n"),
    *("=", " ", "\t", "#", '"', ";", "-1", "x=\\\n", "\\", "\\\\", '\\"', "\\n", "\r", "\n", "\r\n"),
    *("é", "\ufeff", "\0", "\ud800", "\U0001f600"),
]
texts = st.lists(st.sampled_from(PARTS), max_size=20).map("".join) | st.text(max_size=60)
dialects = st.sampled_from([WSLCONFIG, WSLCONF])
words = st.text(st.sampled_from('abZ09 \t\\"#;=[]%\b'), max_size=12)
desired = st.sampled_from(
    [
        (WSLCONFIG, "wsl2", "vmSwitch"),
        (WSLCONFIG, "wsl2", "kernelCommandLine"),
        (WSLCONFIG, "general", "distributionInstallPath"),
        (WSLCONF, "user", "default"),
        (WSLCONF, "boot", "command"),
    ]
)


@given(texts, dialects)
def test_what_is_parsed_is_there_to_the_byte(text: str, dialect: Dialect) -> None:
    assert parse(text, dialect).text == text


@given(texts, dialects)
def test_nothing_is_too_strange_to_be_read(text: str, dialect: Dialect) -> None:
    known = {(key.section, key.name) for key in keys_of(dialect)}
    assert set(read_values(text, dialect)) <= known


@given(st.binary(max_size=80) | texts.map(lambda text: text.encode("utf-16-le", "surrogatepass")), dialects)
def test_no_bytes_break_the_lint(data: bytes, dialect: Dialect) -> None:
    lines = data.count(b"\n") + 1
    host = HostLimits(None, True, frozenset(["AllowKernelUserSetting"]), {"nat": "x"}, {}, 1, 1, frozenset())
    for found in lint(data, dialect, version=Version("2.7.14"), host=host):
        assert 1 <= found.line <= lines
        assert found.column >= 1


@given(texts, desired, words)
def test_a_value_written_is_the_value_read(text: str, where: tuple[Dialect, str, str], value: str) -> None:
    dialect, section, key = where
    after = tried(text, {(section, key): value}, dialect)
    assert read_values(after, dialect)[section, key] == value
    assert change_keys(after, {(section, key): value}, dialect) == after


@given(texts, desired, words)
def test_a_change_touches_that_key_alone(text: str, where: tuple[Dialect, str, str], value: str) -> None:
    dialect, section, key = where
    after = tried(text, {(section, key): value}, dialect)
    others = [line.text for line in parse(text, dialect).lines if line.id != (section, key.lower())]
    left = after
    for line in others:
        body = line.rstrip("\r\n")
        assert body in left
        left = left[left.index(body) + len(body) :]
    before, now = dict(read_values(text, dialect)), dict(read_values(after, dialect))
    before.pop((section, key), None)
    now.pop((section, key), None)
    assert now == before


@given(texts, desired, words)
def test_a_key_taken_out_leaves_the_file_as_it_was_before_it(
    text: str, where: tuple[Dialect, str, str], value: str
) -> None:
    dialect, section, key = where
    whole = f"[{section}]\n{text}\n\n".replace("\r", "")
    without = change_keys(whole, {(section, key): None}, dialect)
    assert (section, key) not in read_values(without, dialect)
    with_it = change_keys(without, {(section, key): value}, dialect)
    assert change_keys(with_it, {(section, key): None}, dialect) == without


@given(texts, st.text(min_size=1))
def test_what_the_format_cannot_hold_is_refused(text: str, value: str) -> None:
    assume(not value.isascii() or "\n" in value)
    with raises("WslConfigRefused") as refused:
        change_keys(text, {("wsl2", "vmSwitch"): value})
    assert "wsl2.vmSwitch" in refused.value.what


def tried(text: str, values: dict[tuple[str, str], str | None], dialect: Dialect) -> str:
    """The text changed; where a line that cannot be read is in the way, there is nothing to hold."""
    try:
        return change_keys(text, values, dialect)
    except UsageError:
        assert text.endswith("\\\r") or any(line.kind not in HARMLESS for line in parse(text, dialect).lines)
        assume(False)
        raise


# --- Changes ---------------------------------------------------------------------------------------------------------


def test_a_change_keeps_comments_line_ends_and_what_is_wrong() -> None:
    text = "# ours\r\n[WSL2]\r\nMemory = 8GB  # enough\r\n; old\r\n\r\n[general]\r\n# end"
    after = change_keys(
        text,
        {
            ("wsl2", "memory"): "64GB",
            ("wsl2", "swapFile"): r"D:\wsl swap\s.vhdx",
            ("general", "instanceIdleTimeout"): "-1",
            ("experimental", "sparseVhd"): "true",
        },
    )
    assert after == (
        "# ours\r\n[WSL2]\r\nMemory = 64GB  # enough\r\nswapFile=D:\\\\wsl swap\\\\s.vhdx\r\n; old\r\n\r\n"
        "[general]\r\ninstanceIdleTimeout=-1\r\n# end\r\n[experimental]\r\nsparseVhd=true\r\n"
    )


def test_the_line_that_counts_is_changed_also_under_its_older_name() -> None:
    text = "[experimental]\nnetworkingMode=mirrored\n[wsl2]\nnetworkingMode=nat\n"
    after = change_keys(text, {("wsl2", "networkingMode"): "bridged"})
    assert after == text.replace("mirrored", "bridged")
    assert change_keys(text, {("wsl2", "networkingMode"): None}) == "[experimental]\n[wsl2]\n"


def test_a_new_file_has_the_line_ends_of_its_system() -> None:
    assert change_keys("", {("wsl2", "swap"): "0"}) == "[wsl2]\r\nswap=0\r\n"
    assert change_keys("", {("boot", "systemd"): "true"}, WSLCONF) == "[boot]\nsystemd=true\n"


def test_a_value_that_is_so_already_keeps_its_spelling() -> None:
    text = '[wsl2]\nvmSwitch = "External"\n'
    assert change_keys(text, {("wsl2", "vmSwitch"): "External"}) == text


@pytest.mark.parametrize(
    ("text", "dialect", "key"),
    [
        ("[wsl2]\nkernel=C:/k\\", WSLCONFIG, ("general", "instanceIdleTimeout")),
        ("[general]\n[wsl2]\nkernel=\\\r", WSLCONFIG, ("experimental", "sparseVhd")),
        ("[boot]\n; x\n", WSLCONF, ("user", "default")),
    ],
)
def test_what_would_not_be_read_is_not_written(text: str, dialect: Dialect, key: tuple[str, str]) -> None:
    with raises("WslConfigRefused") as refused:
        change_keys(text, {key: "1"}, dialect)
    assert "Mend line" in (refused.value.hint or "")


def test_a_key_that_nobody_reads_is_not_written() -> None:
    with raises("WslConfigRefused", match=r"wsl2\.memroy"):
        change_keys("", {("wsl2", "memroy"): "8GB"})
