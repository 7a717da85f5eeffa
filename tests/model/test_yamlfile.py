"""The reader of YAML and JSON files: what it reads, what it refuses, and what it never says."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from tests import errors
from tests.errors import raises
from tests.rows import each_row
from winhost.model import yamlfile
from winhost.model.errors import MAX_LISTED_FAULTS, Exit, Fault, WinhostError, did_you_mean, visible
from winhost.model.path import EVERY_PATH
from winhost.model.secrets import SecretRef
from winhost.model.yamlfile import dotted, load, load_json, parse_value


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 0
    name: str = ""
    secret: SecretRef | None = None
    secrets: list[SecretRef] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    first: Inner = Inner()
    each: dict[str, Inner] = {}
    many: tuple[Inner, ...] = ()


class Anything(BaseModel):
    model_config = ConfigDict(extra="allow")

    @property
    def data(self) -> dict[str, Any]:
        return self.model_extra or {}


def refused(path: Path, text: str | bytes, model: type[BaseModel] = Outer) -> WinhostError:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    read = load_json if path.suffix == ".json" else load
    with raises("FileFaults") as caught:
        read(path, model)
    assert caught.value.exit_code is Exit.USAGE
    assert caught.value.__context__ is None, "the cause would carry the text of the file into a traceback"
    return caught.value


def faults(path: Path, text: str | bytes, model: type[BaseModel] = Outer) -> list[str]:
    return [fault.removeprefix(str(path)) for fault in errors.faults(refused(path, text, model))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.yaml"


@pytest.fixture
def json_file(tmp_path: Path) -> Path:
    return tmp_path / "file.json"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all examples of a property."""
    return tmp_path_factory.mktemp("yaml") / "file.yaml"


# ---- what is read

MEANINGS = [
    ("true", True),
    ("False", False),
    ("yes", "yes"),
    ("no", "no"),
    ("on", "on"),
    ("Off", "Off"),
    ("y", "y"),
    ("null", None),
    ("~", None),
    ("", None),
    ("10", 10),
    ("-3", -3),
    ("0", 0),
    ("0755", "0755"),
    ("0o17", "0o17"),
    ("0x10", "0x10"),
    ("1_000", "1_000"),
    ("12:30", "12:30"),
    ("12:30:59", "12:30:59"),
    ("2026-11-20", "2026-11-20"),
    ("1.5", 1.5),
    ("1e3", 1000.0),
    ("1e999", "1e999"),
    (".inf", ".inf"),
    (".nan", ".nan"),
    ("<<", "<<"),
    ("=", "="),
    ("9" * 30, "9" * 30),
    ("'10'", "10"),
    ('"true"', "true"),
    ("[1, [no]]", [1, ["no"]]),
]


@each_row("parser", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
@each_row(("text", "value"), MEANINGS)
def test_a_value_means_what_json_would_make_of_it_else_itself(
    file: Path, monkeypatch: pytest.MonkeyPatch, parser: type, text: str, value: object
) -> None:
    monkeypatch.setattr(yamlfile, "_PARSER", parser)
    file.write_text(f"key: {text}\n", encoding="utf-8")
    assert load(file, Anything).data == {"key": value}


@pytest.mark.parametrize("key", ["no", "true", "null", "12", "0755", "12:30"])
def test_a_key_is_always_the_text_that_is_written(file: Path, key: str) -> None:
    file.write_text(f"{key}: 1\n", encoding="utf-8")
    assert load(file, Anything).data == {key: 1}


WORDS = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "))
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(data=st.dictionaries(WORDS, DATA, max_size=3))
def test_json_is_read_as_yaml_to_the_same_data(scratch: Path, data: dict[str, Any]) -> None:
    scratch.write_text(json.dumps({"key": data}, ensure_ascii=False), encoding="utf-8")
    assert load(scratch, Anything).data == {"key": data}


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_windows_editors_write_is_read(file: Path, coding: str) -> None:
    file.write_bytes("key: größe\r\nother: 1\r\n".encode(coding))
    assert load(file, Anything).data == {"key": "größe", "other": 1}


# ---- what is refused, and where


def test_all_faults_of_a_file_are_told_with_their_places(file: Path) -> None:
    text = "first: {size: x, size: 1}\neach:\n  a.b: {nam: 1}\nmany:\n  - size: 1\n  - name: true\nother: 1\n"
    assert faults(file, text) == [
        ":1:9: first.size: should be a whole number, not 'x'",
        ":1:18: first.size: is there twice; the first is on line 1",
        ":3:9: each.\"a.b\".nam: unknown key; did you mean 'name'?",
        ":6:5: many[1].name: should be text in quotes, not true",
        ":7:1: other: unknown key; known here: first, each, many",
    ]


@given(
    keys=st.lists(st.text("abcxyz", min_size=1, max_size=3), min_size=1, max_size=6, unique=True),
    copies=st.lists(st.integers(0, 5), max_size=4),
    flow=st.booleans(),
)
def test_every_key_that_is_there_twice_is_found(scratch: Path, keys: list[str], copies: list[int], flow: bool) -> None:
    written = keys + [keys[number % len(keys)] for number in copies]
    text = ", ".join(f"{key}: 1" for key in written).join("{}") if flow else "".join(f"{key}: 1\n" for key in written)
    if not copies:
        scratch.write_text(text, encoding="utf-8")
        assert load(scratch, Anything).data == dict.fromkeys(keys, 1)
        return
    told = faults(scratch, text, Anything)
    assert [fault.split(": ")[1] for fault in told] == written[len(keys) :]
    assert all("is there twice" in fault for fault in told)


@each_row(
    ("text", "fault"),
    [
        ("first: *first\n", ":1:8: first: is an alias (*…); aliases are not read, write the value out"),
        ("first: !!map {}\n", ":1:8: first: has a tag (!…); tags are not read, write the plain value, or quote it"),
        ("first: !!python/name:os.system {}\n", ":1:8: first: has a tag (!…)"),
        ("first: {}\n---\n", ":2:1: starts a second document"),
        ("? [a]\n: 1\n", ":1:3: is not YAML: found a key that is not text"),
        ("first: {name: a: b}\n", ":1:16: is not YAML: "),
        ("first: {name: [}\n", ":1:16: is not YAML: "),
        ("first: a: b\n", ":1:9: is not YAML: mapping values are not allowed in this context; quote text that holds"),
        ("a:\n  b: \x07\n", r":2:6: is not YAML: found control character \x07"),
        ("[" * 70 + "]" * 70, ":1:66: is not YAML: nested deeper than 64 levels"),
        ("[" * 50_000, ":1:66: is not YAML: nested deeper than 64 levels"),
        ("- a\n", ":1:1: should be a mapping"),
        (b"first: \xff\n", ": is not UTF-8 text (byte 8)"),
        (b"\xff\xfea", ": is not UTF-16 text (byte 3)"),
    ],
)
def test_what_yaml_could_do_and_we_do_not_is_one_fault_with_its_place(
    file: Path, text: str | bytes, fault: str
) -> None:
    assert faults(file, text)[0].startswith(fault)


def test_ten_small_lines_cannot_become_a_large_document(file: Path) -> None:
    lines = ["a0: &a0 x"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    found = refused(file, "\n".join(lines), Anything)
    assert len(errors.faults(found)[:-1]) == MAX_LISTED_FAULTS
    assert "has 81 faults" in found.what
    assert str(found.meaning).endswith("\nand 31 more")


def test_a_missing_file_is_a_fault(file: Path) -> None:
    with raises("FileFaults", match="cannot be read"):
        load(file, Outer)


# ---- JSON


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '{"first": {"size": "1", "nam": 2}}',
            [": first.size: should be a whole number, not '1'", ": first.nam: unknown"],
        ),
        ('{"many": [{}, {"size": null}]}', [": many[1].size: should be a whole number, not null"]),
        ('{"first": {}, "first": {}}', [": key 'first' is there twice"]),
        ('{"first":\n  {,}}', [":2:4: is not JSON: "]),
        ("", [": is empty"]),
        ("# x\nschema: winhost.host/2\n", [":1:1: is not JSON: Expecting value; it is a host of the simulator"]),
        ("[" * 100_000, [": is nested too deeply"]),
        (b'{"first": "\xff"}', [": is not UTF-8 text"]),
        ('{"first": {"name": "\\ud800"}}', [": Invalid JSON"]),
    ],
)
def test_faults_of_json_files(json_file: Path, text: str | bytes, told: list[str]) -> None:
    found = faults(json_file, text)
    assert len(found) == len(told)
    assert all(fault.startswith(start) for fault, start in zip(found, told, strict=True)), found


def test_a_json_file_is_read(json_file: Path) -> None:
    json_file.write_text('{"each": {"a": {"size": 3}}}', encoding="utf-8")
    assert load_json(json_file, Outer) == Outer(each={"a": Inner(size=3)})


# ---- what is never said

# No sentence of ours holds the mark, so a message with the mark holds a part of the password.
PASSWORDS = st.text(st.characters(exclude_categories=["C"])).map(lambda text: f"§{text}§")
QUOTED = ["{}", "[{}]", "{{ {}: 1 }}", "{{a: {}}}", "!x {}", "&x {}"]
PLAIN = ["", "!", "*", "&x ", "%", "@", "`", "'", '"', "|", ">", "{", "[", "- ", "? ", ": ", "!x!", "!!", "!<"]


def told_of(path: Path, value: str) -> str:
    """What is told of a file whose secret is the value."""
    path.write_text(f"first:\n  secret: {value}\n  secrets: {value}\n  size: x\n", encoding="utf-8")
    with raises("FileFaults") as caught:
        load(path, Outer)
    return f"{caught.value} {caught.value.meaning} {caught.value.hint}"


@pytest.mark.parametrize("parser", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
@given(password=PASSWORDS, quoted=st.sampled_from(QUOTED), plain=st.sampled_from(PLAIN))
def test_no_password_is_told_however_it_is_written(
    scratch: Path, parser: type, password: str, quoted: str, plain: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yamlfile, "_PARSER", parser)
        assert "§" not in told_of(scratch, quoted.format(json.dumps(password, ensure_ascii=False)))
        assert "§" not in told_of(scratch, plain + password)


@given(password=PASSWORDS)
def test_no_password_is_told_from_a_json_file(scratch: Path, password: str) -> None:
    path = scratch.with_suffix(".json")
    for value in (password, [password], {"a": password}):
        told = faults(path, json.dumps({"first": {"secret": value, "secrets": value, "size": "x"}}))
        assert "§" not in "".join(told)


@given(text=st.text(max_size=200))
def test_whatever_a_fault_shows_is_printable_and_in_one_line(scratch: Path, text: str) -> None:
    told = faults(scratch, json.dumps({"first": {"size": text}, text: 1}))
    assert all(fault.isprintable() for fault in told)


def test_a_long_value_is_cut(file: Path) -> None:
    assert len(faults(file, f"first: {{size: {'x' * 5000}}}")[0]) < 150


# ---- words


@pytest.mark.parametrize(
    ("loc", "path"),
    [((), ""), (("a", "b-1", 0, "c_d"), "a.b-1[0].c_d"), (("a.b", "c d"), '"a.b"."c d"'), (("",), '""')],
)
def test_a_place_in_the_data_is_a_dotted_path(loc: tuple[str | int, ...], path: str) -> None:
    assert dotted(loc) == path


@given(st.text())
def test_visible_text_is_printable_and_printable_text_is_left(text: str) -> None:
    assert visible(text).isprintable()
    assert not text.isprintable() or visible(text) == text


def test_a_fault_without_a_place_leaves_it_out() -> None:
    assert str(Fault("plan.json", None, None, "", "is empty")) == "plan.json: is empty"
    assert str(Fault("plan.json", 3, 1, "a.b", "is\u202empty")) == r"plan.json:3:1: a.b: is\u202empty"


def test_a_far_word_is_not_proposed() -> None:
    assert did_you_mean("prot", ["port", "tls"]) == "; did you mean 'port'?"
    assert did_you_mean("colour", ["port", "tls"]) == ""


def test_of_equally_near_words_the_first_is_proposed() -> None:
    assert did_you_mean("wsl", EVERY_PATH) == "; did you mean 'wsl2'?"
    assert did_you_mean("WSL", ["wslc", "wsl2"]) == "; did you mean 'wslc'?"


def test_many_files_of_a_kind_take_one_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind(BaseModel):
        size: int

    made: list[object] = []

    class Counted(yamlfile.TypeAdapter[Any]):
        def __init__(self, kind: Any) -> None:
            made.append(kind)
            super().__init__(kind)

    monkeypatch.setattr(yamlfile, "TypeAdapter", Counted)
    for size in range(3):
        (tmp_path / f"{size}.json").write_text(json.dumps({"size": size}), "utf-8")
        assert load_json(tmp_path / f"{size}.json", Kind).size == size
    assert made == [Kind]


class Chosen(BaseModel):
    model_config = ConfigDict(extra="forbid")
    suspend: Literal["disk"] | bool = False
    state: Literal["resident", "sleeping"] = "resident"


def test_a_value_of_several_kinds_is_one_fault_with_the_word_that_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("suspend: dsk\nstate: sleping\n", "utf-8")
    with raises("FileFaults") as refused:
        load(file, Chosen)
    assert [told.partition(": ")[2] for told in errors.faults(refused.value)] == [
        "suspend: should be 'disk', true or false, not 'dsk'; did you mean 'disk'?",
        "state: should be 'resident' or 'sleeping', not 'sleping'; did you mean 'sleeping'?",
    ]


def test_a_value_of_the_command_line_is_read_as_in_a_file() -> None:
    kept = ("2026-01-01", "12:30", "0755", "yes", "{a: 1, a: 2}", "*x", "# nothing", "", "\x00", "[" * 200)
    assert [parse_value(text) for text in kept] == [*kept]
    read = {"true": True, "~": None, "5": 5, "2.5": 2.5, "[a, 1]": ["a", 1], "{a: 1}": {"a": 1}, "'5'": "5"}
    assert {text: parse_value(text) for text in read} == read
