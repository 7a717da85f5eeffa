"""Whatever a file holds, it is read or refused: never a traceback, and what is read has the shape of facts."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.errors import raises
from tests.imports.brought import DATA
from winhost.core.answers import Unknown
from winhost.imports.merge import merge_files
from winhost.imports.sources import SOURCES, read
from winhost.model.documents import plain, write_document
from winhost.model.errors import UsageError
from winhost.model.facts import Facts
from winhost.resources.host import HostFacts
from winhost.resources.registry import WINDOWS_STATES

FILES = {path.name: path.read_bytes() for path in sorted((DATA / "synthetic").iterdir())}
PIECES = (
    b"<",
    b">",
    b"&",
    b"\0",
    b"\x1b[2J",
    b"[",
    b'"',
    b"\xff",
    b"PCIROOT(0)",
    b"9" * 40,
    b"null",
    b"true",
    b"[]",
    b"{}",
)


def holds(file: str, data: bytes, kind: str | None) -> None:
    """Read it, and if it can be read, make facts of it that every resource understands."""
    try:
        told = [(file, *each) for each in read(file, data, kind)]
        facts = merge_files(told, "host", read_at="2026-11-21T10:00:00+00:00")
    except UsageError:
        return
    again = TypeAdapter(Facts).validate_python(plain(facts))
    assert write_document(again) == write_document(facts)
    host = HostFacts(again)
    for state in WINDOWS_STATES:
        if not isinstance(again.answer(state.resource_type.name), Unknown):
            host.all(state)


@pytest.mark.parametrize("kind", [*SOURCES, None])
@given(data=st.binary(max_size=400) | st.text(max_size=400).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes(kind: str | None, data: bytes) -> None:
    holds("any", data, kind)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    at=st.floats(0, 1),
    gone=st.integers(0, 60),
    piece=st.sampled_from(PIECES) | st.binary(max_size=12),
)
def test_a_file_with_something_else_in_it(name: str, at: float, gone: int, piece: bytes) -> None:
    data = FILES[name]
    place = int(at * len(data))
    holds(name, data[:place] + piece + data[place + gone :], None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_json_with_any_value_anywhere(data: st.DataObject) -> None:
    import json

    info = json.loads(FILES["computer-info-win11-pro.json"])
    for name in data.draw(st.lists(st.sampled_from(sorted(info)), max_size=4)):
        info[name] = data.draw(JSON)
    holds("info.json", json.dumps(info).encode(), "computer-info")


def test_what_a_gpu_calls_itself_is_data(tmp_path: Path) -> None:
    name = "NVIDIA L20 \x9b31m\u202e"
    text = FILES["survey-dda-server2025.txt"].decode().replace("NVIDIA L20", name)
    ((_, told),) = read("survey.txt", text.encode())
    assert {function.name for function in told.functions or ()} == {name}
    written = write_document(merge_files([("survey.txt", "survey-dda", told)], "h", read_at=""))
    assert "\x9b" not in written
    assert "\u202e" not in written


def test_a_file_name_is_data() -> None:
    with raises("NotReadable") as refused:
        read("\x1b]0;owned\x07.xml", b"nothing")
    assert "\x1b" not in refused.value.what
