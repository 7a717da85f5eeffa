"""From a lock to wheels: which are chosen, and what is refused."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from tests.hub.stand_in_index import StandInIndex, made_wheel, serving_index
from tests.rows import each_row
from winhost.hub.wheel_index import TargetPython, Wheel, locked_packages, wheels_of
from winhost.model.errors import UsageError

NOBLE, BOOKWORM = TargetPython("3.12", 39, "x86_64"), TargetPython("3.11", 36, "x86_64")
NAMES = (
    "fast-1.0-cp312-cp312-manylinux_2_34_x86_64.whl",
    "fast-1.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "fast-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "fast-1.0-cp311-cp311-manylinux_2_39_x86_64.whl",
    "fast-1.0-cp312-cp312-musllinux_1_2_x86_64.whl",
    "fast-1.0-cp312-cp312-manylinux_2_34_aarch64.whl",
    "fast-1.0-py3-none-any.whl",
    "fast-2.0-py3-none-any.whl",
    "plain_one-3.1-py2.py3-none-any.whl",
)


@pytest.fixture
def index() -> Iterator[StandInIndex]:
    with serving_index(StandInIndex({name: made_wheel({"x.py": name}) for name in NAMES})) as made:
        yield made


def chosen(index: StandInIndex, place: TargetPython, *packages: tuple[str, str]) -> tuple[Wheel, ...]:
    text = index.lock(*packages or [("fast", "1.0"), ("plain-one", "3.1")])
    return wheels_of(locked_packages(text, "lock", place.version, place.machine), place, index.index)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (NOBLE, NAMES[0]),
        (TargetPython("3.12", 28, "x86_64"), NAMES[1]),
        (BOOKWORM, NAMES[2]),
        (TargetPython("3.12", 39, "aarch64"), NAMES[5]),
        (TargetPython("3.13", 41, "x86_64"), NAMES[6]),
    ],
)
def test_the_best_wheel_for_a_linux_is_chosen(index: StandInIndex, place: TargetPython, name: str) -> None:
    fast, plain = chosen(index, place)
    assert (fast.path, fast.server) == (f"packages/aa/bb/{name}", index.url)
    assert fast.bytes == len(index.files[name])
    assert plain.path.endswith(NAMES[8])


def test_only_what_the_lock_has_by_its_hash_is_taken(index: StandInIndex) -> None:
    text = index.lock(("fast", "1.0"))
    index.files[NAMES[0]] += b"!"  # the index has another file by now
    (fast,) = wheels_of(locked_packages(text, "lock", "3.12", "x86_64"), NOBLE, index.index)
    assert fast.path.endswith(NAMES[1])
    index.files = {name: data + b"!" for name, data in index.files.items()}
    with raises("NoWheel", match="no wheel of fast 1.0"):
        wheels_of(locked_packages(text, "lock", "3.12", "x86_64"), NOBLE, index.index)


def test_a_package_without_a_wheel_is_told(index: StandInIndex) -> None:
    del index.files[NAMES[6]]
    with raises("NoWheel", match=r"no wheel of fast 1.0 for Python 3.13 and glibc 2.41 on x86_64"):
        chosen(index, TargetPython("3.13", 41, "x86_64"), ("fast", "1.0"))


@pytest.mark.parametrize(
    "listed",
    [
        b"<html>",
        b"[]",
        b'{"files": 1}',
        b'{"files": [1, {}]}',
        json.dumps({"files": [{"filename": 1, "hashes": []}]}).encode(),
    ],
)
def test_an_index_that_says_nothing_of_use_is_told(index: StandInIndex, listed: bytes) -> None:
    index.listed["fast"] = listed
    with raises("NoWheel"):
        chosen(index, NOBLE)


@pytest.mark.parametrize("url", ["ftp://x/a.whl", "../../../a b.whl", "/a.whl?x=1", "/a.zip", "//h/%2e%2e/a.whl"])
def test_a_file_at_a_strange_place_is_not_taken(index: StandInIndex, url: str) -> None:
    document = json.loads(index.answer("/simple/fast/")[1])
    for each in document["files"]:
        each["url"] = url
    index.listed["fast"] = json.dumps(document).encode()
    with raises("NoWheel", match="does not take"):
        chosen(index, NOBLE)


def test_a_marker_says_for_whom_a_package_is(index: StandInIndex) -> None:
    text = index.lock(("fast", "1.0")) + index.lock(("plain-one", "3.1"), marker=" ; python_version < '3.12'")
    assert [each.name for each in locked_packages(text, "lock", "3.12", "x86_64")] == ["fast"]
    assert [each.name for each in locked_packages(text, "lock", "3.11", "x86_64")] == ["fast", "plain-one"]


HASH = f"--hash=sha256:{'ab' * 32}"


@each_row(
    ("text", "why"),
    [
        ("", "has 0 packages"),
        ("fast==1.0\n", "lock:1: fast==1.0 has no hash"),
        (f"fast>=1.0 {HASH}\n", "has no hash, or not one version"),
        (f"fast {HASH}\n", "does not name one version"),
        (f"fast==1.* {HASH}\n", "does not name one version"),
        (f"fast==1,<2 {HASH}\n", "does not name one version"),
        (f"# x\n-e . {HASH}\n", "lock:2: -e . is an option"),
        (f"--index-url https://x {HASH}\n", "is an option of pip"),
        (f"fast @ https://x/fast.whl {HASH}\n", "does not name one version"),
        (f"fast==1.0 \\\n  {HASH}\nfast==2.0 {HASH}\n", "lock:3: fast is there twice"),
    ],
)
def test_what_is_not_locked_is_refused(text: str, why: str) -> None:
    with raises("NotLocked", match=why):
        locked_packages(text, "lock", "3.12", "x86_64")


@given(text=st.text(alphabet=st.sampled_from("ab=.1<>;#\\-@ \n'()" + "\t"), max_size=60))
def test_whatever_stands_in_a_lock_nothing_else_is_raised(text: str) -> None:
    code = "NotLocked"
    try:
        locked_packages(text + f"\n{HASH}", "lock", "3.12", "x86_64")
    except UsageError as error:
        code = error.code
    assert code == "NotLocked"
