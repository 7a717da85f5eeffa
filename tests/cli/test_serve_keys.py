"""Tests of winhost serve keys on a simulated Linux, whose disk the real program of `winhost serve` changes."""

import json
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line, Said
from tests.cli.terminal import talk
from tests.rows import each_row
from tests.schemas import faults
from tests.serving.test_deployed import ENGINE, GATEWAY
from winhost.cli.serve import keys as serve_keys
from winhost.cli.serve.keys import parse_expiry
from winhost.connect.wire_errors import SessionDropped
from winhost.engine.serving_session import ServingSession
from winhost.gateway.key_lines import parse_keys
from winhost.lab.linux.linux_machine import NO_FILE
from winhost.lab.linux.serving import KEY_CHANGES, SimulatedServing
from winhost.lab.linux.software import Unit
from winhost.lab.running_lab import Lab
from winhost.serving.gateway_entries import gateway_entries

HOST = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
KEY, OWN = "wh-Canary3of4the5key6of7carol", "wh-Canary2of4the5key6of7dave"  # the same in all processes of pytest
PER_KEY = {"concurrent": 32, "keys": {"carol": {"concurrent": 8}}}
METRICS = f"prometheus sha256:{'0' * 64} metrics"


def furnish(serving: SimulatedServing) -> None:
    """Write the files of a plan to the simulated Linux, and start its gateway."""
    linux = serving.linux
    model = {"name": ENGINE["model"], "engine": {"socket": ENGINE["socket"]}}
    listen = {"address": "127.0.0.1", "port": 8443}
    keys = [f"carol sha256:{sha256(KEY.encode()).hexdigest()}", METRICS]
    entries: list[Any] = gateway_entries({"listen": listen, "models": [model], "per_key": PER_KEY}, keys, None)
    files = {each["key"]["path"]: each["desired"]["text"] for each in entries if each["resource"] == "LinuxFile"}
    files["/etc/winhost/serving.json"] = json.dumps({"format": 1, "engines": [ENGINE], "gateway": GATEWAY})
    for path, text in files.items():
        linux.write_file(path, {**NO_FILE, "text": text})
    linux.disk.write("/etc/group", f"{linux.disk.text('/etc/group')}winhost-engines:x:990:\n")
    linux.systemd.units[str(GATEWAY["unit"])] = Unit("enabled", active=True)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(serve_keys, "_PAUSE_S", 0.001)
    monkeypatch.setenv("DAVE", OWN)
    with Lab([HOST], tmp_path, scale=0.001) as running:
        yield running


@pytest.fixture
def host(lab: Lab) -> str:
    (name,) = lab.linux_hosts
    return name


@pytest.fixture
def serving(lab: Lab, host: str) -> SimulatedServing:
    found = lab.linux_hosts[host].linux.part(SimulatedServing)
    furnish(found)
    return found


@pytest.fixture
def keys(line: Line, host: str) -> Any:
    def made(verb: str, *words: object) -> Said:
        return line("serve", "keys", verb, host, *words)

    return made


def by_name(said: Said) -> Mapping[str, Any]:
    assert said.code == 0, said.err + said.out
    return {each["name"]: each for each in said.result["keys"]}


def kind(said: Said) -> tuple[int, str]:
    return said.code, said.result["error"]["kind"]


def changed(serving: SimulatedServing) -> str:
    return serving.linux.disk.text(KEY_CHANGES) or ""


def test_a_key_is_added_limited_and_revoked_and_the_plan_stays_as_it_is(keys: Any, serving: SimulatedServing) -> None:
    before = {path: text for path, text in serving.linux.texts().items() if "gateway" in path}
    listed = by_name(keys("list", "--json"))
    assert {name: (each["state"], each["concurrent"], each["planned"]) for name, each in listed.items()} == {
        "carol": ("active", 8, True),
        "prometheus": ("active", None, True),
    }
    said = keys("add", "dave", "--api-key", "env:DAVE", "--expires", "30d", "--tokens-per-minute", 1000, "--json")
    dave = by_name(said)["dave"]
    assert (said.result["changed"], said.result["in_force"], said.result["saved"]) == ("dave", True, None)
    assert (dave["planned"], dave["concurrent"], dave["tokens_per_minute"], dave["models"]) == (False, 32, 1000, None)
    left = datetime.fromisoformat(dave["expires"]) - datetime.now(UTC)
    assert timedelta(days=29, hours=23) < left <= timedelta(days=30)
    assert serving.completion("/v1/completions", {"model": "org/model"}, OWN).status != 401

    carol = by_name(keys("limit", "carol", "--concurrent", "none", "--model", "org/model", "--json"))["carol"]
    assert (carol["concurrent"], carol["models"], carol["planned"]) == (None, ["org/model"], True)
    carol = by_name(keys("limit", "carol", "--concurrent", "default", "--all-models", "--json"))["carol"]
    assert (carol["concurrent"], carol["models"]) == (8, None)

    carol = by_name(keys("revoke", "carol", "--yes", "--json"))["carol"]
    assert (carol["state"], carol["planned"]) == ("revoked", True)
    assert serving.completion("/v1/completions", {"model": "org/model"}, KEY).status == 401
    after = serving.linux.texts()
    assert {path: after[path] for path in before} == before, "nothing of a plan has changed, so nothing drifts"
    assert OWN not in "".join(after.values())
    node = serving.linux.disk.node(KEY_CHANGES)
    assert node is not None
    assert (stat.S_IMODE(node.mode), node.gid) == (0o640, 990)


def test_a_new_key_is_kept_in_a_file_for_its_owner_alone(keys: Any, serving: SimulatedServing, line: Line) -> None:
    said = keys("add", "erin", "--save", "erin.key", "--json")
    file = Path("erin.key")
    assert said.result["saved"] == str(file.absolute())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = file.read_text()
    (added,) = parse_keys(changed(serving))
    assert (added.name, added.sha256) == ("erin", sha256(made.encode()).hexdigest())
    told = said.out + said.err + "".join(each.read_text() for each in (line.folder / "state").rglob("*.log"))
    assert made not in told
    assert by_name(keys("add", "erin", "--api-key", f"file:{file.absolute()}", "--json"))["erin"]["state"] == "active"
    again = keys("add", "frank", "--save", "erin.key")
    assert (again.code, "erin.key is there already" in again.err) == (2, True)
    assert file.read_text() == made


def test_without_a_terminal_a_new_key_needs_a_place(keys: Any, serving: SimulatedServing) -> None:
    for words in ((), ("--json",)):
        said = keys("add", "erin", *words)
        assert (said.code, "--save FILE" in said.err + said.out) == (2, True)
    assert changed(serving) == ""


@pytest.mark.usefixtures("serving")
def test_what_cannot_be_is_refused_with_the_next_command(keys: Any, host: str) -> None:
    assert keys("add", "dave", "--api-key", "env:DAVE").code == 0
    add = ("add", "--api-key", "env:DAVE", "--json")
    for words, code in (
        ((*add, "carol"), "KeyExists"),
        ((*add, "other"), "KeyExists"),
        (("limit", "caroll", "--concurrent", 1, "--json"), "NoSuchKey"),
        (("revoke", "caroll", "--yes", "--json"), "NoSuchKey"),
        (("limit", "carol", "--model", "org/modle", "--json"), "NoSuchModel"),
    ):
        said = keys(*words)
        assert kind(said) == (2, code), words
    said = keys("limit", "caroll", "--concurrent", 1, "--json")
    assert "did you mean 'carol'?" in said.result["error"]["what"]
    assert keys("revoke", "carol", "--yes").code == 0
    assert kind(keys("limit", "carol", "--expires", "never", "--json")) == (2, "KeyRevoked")
    said = keys("add", "carol", "--save", "carol.key", "--json")
    assert kind(said) == (2, "KeyExists")
    assert f"winhost plan {host} --workload WORKLOAD --api-key carol=REF" in said.result["error"]["hint"]
    assert not Path("carol.key").exists()
    assert by_name(keys("revoke", "carol", "--yes", "--json"))["carol"]["state"] == "revoked"  # as good
    assert keys("revoke", "dave", "--yes").code == 0
    assert by_name(keys("add", "dave", "--save", "dave.key", "--json"))["dave"]["state"] == "active"


@each_row(
    "words",
    [
        ("add", "two words", "--save", "x"), ("add", "a/b", "--save", "x"), ("add", "a" * 65, "--save", "x"),
        ("add", "a", "--api-key", "env:PATH_THAT_IS_NOT"), ("add", "a", "--api-key", "wh-verysecretkeyitself"),
        ("add", "a", "--api-key", "env:DAVE", "--save", "x"), ("add", "a", "--save", "x", "--expires", "2020-01-01"),
        ("add", "a", "--save", "x", "--expires", "soon"), ("add", "a", "--save", "x", "--expires", "0d"),
        ("add", "a", "--save", "x", "--concurrent", "0"), ("add", "a", "--save", "x", "--concurrent", "1.5"),
        ("add", "a", "--save", "x", "--metrics", "--concurrent", "1"), ("add", "a", "--save", "no/where/x"),
        ("limit", "carol"), ("limit", "carol", "--model", "org/model", "--all-models"),
        ("limit", "prometheus", "--concurrent", "1"), ("revoke", "carol"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("serving")
def test_wrong_words_change_nothing(keys: Any, serving: SimulatedServing, words: tuple[str, ...]) -> None:
    said = keys(*words)
    assert (said.code, "Traceback" in said.err) == (2, False), said.err
    assert "verysecret" not in said.err
    assert (changed(serving), Path("x").exists()) == ("", False)


def test_times_are_in_utc_unless_they_say_otherwise() -> None:
    found = [parse_expiry(f"2097-01-31{rest}")["expires"] for rest in ("", "T00:00", "T00:00Z", "T01:00+01:00")]
    assert found == [int(datetime(2097, 1, 31, tzinfo=UTC).timestamp())] * 4
    assert (parse_expiry("1d12h"), parse_expiry("never")) == ({"expires_in": 129_600}, {"expires": None})


def test_a_broken_file_is_told_of_and_nothing_is_changed(keys: Any, serving: SimulatedServing) -> None:
    serving.linux.disk.write(KEY_CHANGES, "dave sha256:canary\n")
    said = keys("list", "--json")
    assert (said.code, said.result["in_force"], sorted(by_name(said))) == (0, False, ["carol", "prometheus"])
    assert "line 1: it is not NAME" in said.result["problem"]
    assert "canary" not in said.out
    assert "still uses its earlier keys" in keys("list").out
    said = keys("add", "dave", "--save", "dave.key", "--json")
    assert said.code == 1
    assert f"{KEY_CHANGES} cannot be read" in said.result["error"]["what"]
    assert changed(serving) == "dave sha256:canary\n"


def test_use_is_shown(keys: Any, serving: SimulatedServing) -> None:
    used = {"requests": 1234, "refused": 2, "tokens_in": 56_789, "tokens_out": 4_321, "since": 1_795_000_000, "last": 0}
    of = sha256(KEY.encode()).hexdigest()
    serving.key_use = {"carol": {"of": of, **used}, "prometheus": {"of": of, **used}}
    found = by_name(keys("list", "--json"))
    assert found["carol"]["used"] == {**used, "since": "2026-11-18T11:06:40Z", "last": None}
    assert found["prometheus"]["used"] is None, "that was of another key"
    shown = keys("list").out
    assert all(each in shown for each in ("1,234", "56,789", "4,321", "Counted since 2026-11-18T11:06:40Z"))
    serving.key_use["carol"]["requests"] = "\x1b[2J"
    assert by_name(keys("list", "--json"))["carol"]["used"] is None


def test_a_gateway_that_does_not_run_reads_it_later(keys: Any, serving: SimulatedServing) -> None:
    serving.linux.systemd.units[str(GATEWAY["unit"])] = Unit("enabled", active=False)
    said = keys("add", "dave", "--api-key", "env:DAVE", "--json")
    assert (said.code, said.result["in_force"]) == (0, False)
    assert "has not read this yet" in keys("list").out


def test_an_added_key_whose_name_a_plan_has_does_not_count_and_is_shown(keys: Any, serving: SimulatedServing) -> None:
    serving.linux.disk.write(KEY_CHANGES, f"carol sha256:{'1' * 64}\n")
    said = keys("list", "--json")
    assert [(each["name"], each["state"]) for each in said.result["keys"]] == [
        ("carol", "active"), ("prometheus", "active"), ("carol", "hidden"),
    ]  # fmt: skip
    assert "the plan has a key of this name" in keys("list").out


@pytest.mark.usefixtures("serving")
def test_an_answer_that_is_lost_is_asked_for_again_and_changes_nothing_twice(
    keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke, lost = ServingSession._invoke, [True]

    def once(self: ServingSession, text: str) -> str:
        answer = invoke(self, text)
        if '"verb": "add"' in text and lost:
            lost.clear()
            raise SessionDropped("h", "the connection ended")
        return answer

    monkeypatch.setattr(ServingSession, "_invoke", once)
    assert by_name(keys("add", "dave", "--api-key", "env:DAVE", "--json"))["dave"]["state"] == "active"
    assert not lost


@pytest.mark.usefixtures("serving")
def test_who_stops_it_knows_where_the_key_may_be(keys: Any, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: ServingSession, change: Mapping[str, Any] | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServingSession, "keys", stopped)
    said = keys("add", "dave", "--save", "dave.key")
    assert said.code == 130
    assert f"winhost serve keys revoke {host} dave" in said.err
    assert Path("dave.key").exists()


def test_two_at_once_lose_nothing(lab: Lab, host: str, serving: SimulatedServing) -> None:
    answers = lab.linux_hosts[host].answers

    def add(number: int) -> Any:
        change = {"verb": "add", "name": f"key-{number}", "sha256": f"{number:064x}"}
        return json.loads(answers.answer("serving", json.dumps({"do": "keys", "change": change}), 1))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(add, range(1, 21)))
    assert {each["answers"][0]["outcome"] for each in found} == {"changed"}
    assert len(parse_keys(changed(serving))) == 20


@pytest.mark.usefixtures("serving")
def test_its_answers_have_their_schema(keys: Any, line: Line) -> None:
    schema = line("schema", "serving-keys").json
    for words in (("list",), ("add", "dave", "--api-key", "env:DAVE"), ("limit", "dave", "--expires", "1d"),
                  ("revoke", "dave", "--yes")):  # fmt: skip
        said = keys(*words, "--json")
        assert list(faults(said.json, schema, schema)) == [], said.out


@pytest.mark.costly
@pytest.mark.usefixtures("serving", "line")
def test_a_new_key_is_shown_once_on_a_terminal_and_a_question_is_asked_before_it_ends(
    host: str, serving: SimulatedServing
) -> None:
    said = talk("serve", "keys", "add", host, "erin")
    assert said.code == 0, said.text
    (added,) = parse_keys(changed(serving))
    words = [word for word in said.text.split() if word.startswith("wh-")]
    assert [sha256(word.encode()).hexdigest() for word in words] == [added.sha256]
    said = talk("serve", "keys", "revoke", host, "erin", answers=["n"])
    assert (said.code, len(said.questions)) == (130, 1)
    assert parse_keys(changed(serving)) == [added]
