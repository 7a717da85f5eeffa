"""A bundle with the watcher of a desktop: its key is read on the host, and it comes and goes as with a run."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.wsl2_world import CONSENTS, DATA, Wsl2World, wsl2_world
from tests.powershell.bundles import Person, WatchedCmdlets, a_person, filmed, unpack
from tests.powershell.test_bundle_wsl2 import HOST, Wsl2ByHand, but
from tests.powershell.twins import machine
from winhost.lab.powershell import powershell_engine
from winhost.resources.windows.accounts import watcher_settings
from winhost.resources.windows.windows_scripts import watcher_script

SECRET = "key-of-the-desk-that-nobody-guesses"
VARIABLE = "DESK_KEY"
SETTINGS = watcher_settings(
    url="http://127.0.0.1:8443", programs=("game.exe",), full_screen=True, unlocked=False, gpu_memory=None
)
FOLDER = f"{DATA}\\watchers\\Administrator"


def watcher(reference: str) -> dict[str, Any]:
    digest = sha256(SECRET.encode()).hexdigest()
    return {"account": "Administrator", "settings": SETTINGS, "key": reference, "digest": digest}


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, SECRET)  # its PowerShell has it from us
        patch.setattr(powershell_engine, "CmdletProcess", WatchedCmdlets)
        with a_person(machine(HOST)) as one:
            yield one


def at_hand(person: Person, folder: Path, reference: str = f"env:{VARIABLE}") -> tuple[Wsl2ByHand, Wsl2World]:
    """A host to go to by hand, and the same one for winhost itself."""
    mine, other = (wsl2_world(folder / name, HOST, watchers=[watcher(reference)]) for name in ("mine", "other"))
    return Wsl2ByHand(person, mine.machine, folder / "journals"), other


def on(here: Wsl2ByHand) -> Any:
    found = here.machine.instances("YieldWatcher")
    return {record.key["account"]: record.state for record in found}.get("Administrator")


def text(here: Wsl2ByHand, name: str) -> str:
    return (here.machine.files.read(f"{FOLDER}\\{name}") or b"").decode()


def test_it_comes_with_its_key_is_mended_and_goes(person: Person, tmp_path: Path) -> None:
    here, other = at_hand(person, tmp_path)
    found, plan = here.state(), other.plan()
    first = unpack(plan, tmp_path / "first", watched=True)
    with filmed(here, tmp_path / "moments") as moments:
        assert here.there(first).said["outcome"] == "applied"
    assert here.verify(first).code == 0
    assert SECRET not in "".join(each.read_text("utf-8") for each in here.journals.glob("*"))
    state = on(here)
    assert (state["task"], state["settings"], state["key"]) == ("ready", SETTINGS, f"env:{VARIABLE}")
    assert (text(here, "key"), text(here, "watch.ps1")) == (SECRET, watcher_script())
    made = here.state()

    around = [each for each in moments if "YieldWatcher" in last_line(each.here.journals)]
    assert around
    for moment in around:
        there = Wsl2ByHand(person, moment.here.machine, moment.here.journals)
        assert there.there(first).said["outcome"] == "applied", moment.name
        assert there.state() == made, moment.name

    here.machine.files.write(f"{FOLDER}\\key", b"another one that somebody wrote there")
    assert here.verify(first).code == 4
    changed = here.plan(first, other.book)
    assert [(step.resource, {*step.desired}) for step in changed.steps if step.resource == "YieldWatcher"] == [
        ("YieldWatcher", {"digest", "key"})
    ]
    repair = unpack(changed, tmp_path / "second")
    done = here.there(repair)
    assert done.code == 0, done.output
    assert (text(here, "key"), here.verify(first).code) == (SECRET, 0)
    back = here.back(repair).said
    assert (back["outcome"], back["kept"]) == (
        "rolled back",
        ["Watcher for Administrator: kept: the key that was there is not kept"],
    )
    assert here.back(first).said["outcome"] == "rolled back"
    assert on(here) is None
    assert [path for path in here.machine.files.list_below(DATA) if "watchers" in path] == []
    assert but("Wsl", here.state()) == but("Wsl", found)


def last_line(journals: Path) -> str:
    (journal,) = journals.glob("*.jsonl")
    return "".join(journal.read_text("utf-8").splitlines()[-1:])


def test_without_its_key_nothing_of_it_is_written(person: Person, tmp_path: Path) -> None:
    for number, (reference, code, refused) in enumerate(
        (("env:NOBODY_SET_IT", 2, "SecretUnreadable"), (f"file:{tmp_path / 'desk.key'}", 1, "StepFailed"))
    ):
        (tmp_path / "desk.key").write_text("a key that the gateway does not know")
        here, other = at_hand(person, tmp_path / str(number), reference)
        done = here.apply(unpack(other.plan(), tmp_path / f"bundle-{number}"), accept=CONSENTS)
        assert (done.code, done.refused) == (code, refused), done.output
        assert on(here) is None
        (tmp_path / "desk.key").write_text(SECRET + "\r\n")
        if refused == "StepFailed":
            made = tmp_path / f"bundle-{number}"
            assert here.there(made).said["outcome"] == "applied"
            assert text(here, "key") == SECRET
        assert here.back(tmp_path / f"bundle-{number}").code == 0
        assert on(here) is None
