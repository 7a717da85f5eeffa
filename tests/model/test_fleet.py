"""`fleet.yaml`: the cases in tests/data/fleet, choosing hosts, finding the file, and its schema."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.cases import read_cases
from tests.errors import faults, raises
from tests.rows import each_row
from winhost.model.documents import json_schema
from winhost.model.durations import parse_duration, render_duration
from winhost.model.errors import Exit
from winhost.model.fleet import AnyHost, Fleet, FleetFile, Jump, LinuxHost, Login, Ssh, Transport, load_fleet
from winhost.model.fleet_path import find_fleet
from winhost.model.secrets import SecretRef

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/data/fleet").glob("*.yaml"))
EXAMPLE = load_fleet(ROOT / "examples/fleet.yaml")
HOSTS = """
schema: winhost.fleet/1
hosts:
  gpu-01: {groups: [lab, dda]}
  GPU-02: {groups: [dda]}
  web: {}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def shown(host: AnyHost, folder: Path) -> dict[str, Any]:
    if isinstance(host, LinuxHost):
        values = {**part("", host), **part("jump.", host.jump), "sudo_password_at": host.position_of("sudo_password")}
    else:
        ssh = part("ssh.", host.ssh)
        unset = {f"ssh.{key}" for key in Ssh.model_fields.keys() - host.ssh.model_fields_set} if host.ssh else set()
        ssh |= dict.fromkeys(unset)
        values = {"address": host.address, **vars(host.transport), **ssh, **part("sftp.", host.sftp)}
    for key, value in values.items():
        if isinstance(value, Path):
            values[key] = value.as_posix().replace(folder.as_posix(), "{folder}")
        elif isinstance(value, SecretRef):
            values[key] = str(value)
    return values


def part(prefix: str, logon: Login | None) -> dict[str, Any]:
    """The keys of a logon and where they are written; null for an address, where there is no such logon."""
    if logon is None:
        return {f"{prefix}address": None}
    at = {
        "key_at": logon.position_of("key", "password", "agent"),
        "host_key_at": logon.position_of("host_key", "known_hosts"),
    }
    return {f"{prefix}{key}": value for key, value in {**vars(logon), **at}.items()}


@each_row("case", CASES, ids=lambda path: path.stem)
def test_a_fleet_file_means_what_its_case_says(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_cases(case)
    assert expected.keys() <= {"says", "file", "hosts", "faults"}
    assert ("hosts" in expected) != ("faults" in expected)
    written(tmp_path, expected["file"])
    monkeypatch.chdir(tmp_path)
    if "faults" in expected:
        with raises("FileFaults") as caught:
            load_fleet(Path("fleet.yaml"))
        assert faults(caught.value) == expected["faults"]
    else:
        hosts = {host.name: shown(host, tmp_path) for host in load_fleet(Path("fleet.yaml")).hosts}
        assert {name: {key: hosts[name][key] for key in keys} for name, keys in expected["hosts"].items()} == expected[
            "hosts"
        ]
        assert list(hosts) == list(expected["hosts"])


def test_the_example_is_valid_and_uses_every_option() -> None:
    assert [host.name for host in EXAMPLE.select(["@dda", "gpu-*"])] == ["gpu-01", "gpu-02", "gpu-03.corp.example"]
    assert EXAMPLE.hosts[3].name == "llm-01"
    assert EXAMPLE.hosts[0].transport.verify == ROOT / "examples/corp-ca.pem"
    assert EXAMPLE.hosts[2].transport.verify is False
    text = EXAMPLE.file.read_text(encoding="utf-8")
    known = json_schema(FleetFile)["$defs"]
    options = {*known["Transport"]["properties"], *known["Ssh"]["properties"]}
    assert [option for option in options if f" {option}:" not in text] == []
    assert EXAMPLE.hosts[1].ssh is not None
    assert EXAMPLE.hosts[1].ssh.position_of("key") == "hosts.gpu-02.ssh.key (fleet.yaml:35)"


WITH_PASSWORDS = """\
schema: winhost.fleet/1
defaults:
  transport:
    password: env:ALL
hosts:
  a:
  b:
    transport:
      password: env:B
"""


def test_a_host_knows_where_its_password_is_referred_to(tmp_path: Path) -> None:
    path = written(tmp_path, WITH_PASSWORDS)
    first, second = load_fleet(path).hosts
    assert first.transport.position_of("password") == "defaults.transport.password (fleet.yaml:4)"
    assert second.transport.position_of("password") == "hosts.b.transport.password (fleet.yaml:9)"


# ---- choosing hosts


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return load_fleet(written(tmp_path, HOSTS))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["web", "gpu-01"], ["web", "gpu-01"]),
        (["gpu-02"], ["GPU-02"]),
        (["*"], ["gpu-01", "GPU-02", "web"]),
        (["gpu-0[12]", "*"], ["gpu-01", "GPU-02", "web"]),
        (["@dda", "@lab"], ["gpu-01", "GPU-02"]),
        (["@DDA"], ["gpu-01", "GPU-02"]),
        ([], []),
    ],
)
def test_words_choose_hosts_once_and_in_their_order(fleet: Fleet, words: list[str], names: list[str]) -> None:
    assert [host.name for host in fleet.select(words)] == names


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("gpu-10", "no host 'gpu-10' in fleet.yaml; did you mean 'gpu-01'?"),
        ("@ddx", "no group 'ddx' in fleet.yaml; did you mean '@dda'?"),
        ("dda", "no host 'dda' in fleet.yaml"),
        ("tpu-*", "no host 'tpu-*' in fleet.yaml"),
        ("", "no host '' in fleet.yaml"),
        ("zzz\u202e\x1b", r"no host 'zzz\u202e\x1b' in fleet.yaml"),
    ],
)
def test_a_word_that_means_no_host_is_told_with_the_nearest(fleet: Fleet, word: str, sentence: str) -> None:
    with raises("UnknownHost") as caught:
        fleet.select(["web", word])
    assert str(caught.value) == sentence
    assert caught.value.exit_code is Exit.USAGE


@given(st.lists(st.sampled_from(["gpu-01", "gpu-*", "@dda", "@lab", "*", "GPU-02"])))
def test_no_choice_holds_a_host_twice(words: list[str]) -> None:
    chosen = EXAMPLE.select(words)
    assert len(chosen) == len({host.name for host in chosen})
    assert bool(chosen) == bool(words)


# ---- finding the file


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINHOST_FLEET", raising=False)
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: tmp_path / "config")
    (tmp_path / "config").mkdir()
    return tmp_path


def test_the_file_is_looked_for_from_the_named_to_the_users_own(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = written(nowhere / "config", HOSTS)
    assert find_fleet(None) == own
    written(nowhere, HOSTS)
    assert find_fleet(None) == Path("fleet.yaml")
    monkeypatch.setenv("WINHOST_FLEET", str(own))
    assert find_fleet(None) == own
    assert find_fleet(Path("fleet.yaml")) == Path("fleet.yaml")


def test_without_a_file_it_is_said_where_was_looked_and_the_mend_is_valid(nowhere: Path) -> None:
    with raises("NoFleet") as caught:
        find_fleet(None)
    assert str(caught.value) == f"no fleet.yaml: looked for fleet.yaml, then {nowhere / 'config' / 'fleet.yaml'}"
    proposed = "\n".join(caught.value.hint.splitlines()[2:])
    assert load_fleet(written(nowhere, proposed)).hosts[0].name == "gpu-01"


def test_a_named_file_that_is_missing_is_not_replaced_by_another(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(nowhere, HOSTS)
    monkeypatch.setenv("WINHOST_FLEET", "other.yaml")
    with raises("NoFleet", match=r"^no fleet\.yaml: looked for other\.yaml$"):
        find_fleet(None)


# ---- durations


@given(st.integers(1, 86_400))
def test_a_rendered_duration_is_read_back(seconds: int) -> None:
    assert parse_duration(render_duration(seconds)) == seconds
    assert parse_duration(seconds) == seconds


@given(st.integers(0, 20), st.integers(0, 59), st.integers(1, 59))
def test_the_units_of_a_duration_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@each_row("text", ["", "10", "s", "-1s", "1.5s", "1s1m", "1 s", "٣s", "1d", True, None, 2.5, [], "0s", "25h", -1])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="should be"):
        parse_duration(text)


# ---- the schema for editors


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, definition in {"FleetFile": schema, **schema["$defs"]}.items():
        for key, entry in definition.get("properties", {}).items():
            yield f"{name}.{key}", entry


def test_every_key_of_the_schema_is_described_and_none_may_be_null() -> None:
    entries = dict(properties(json_schema(FleetFile)))
    assert "Transport.verify" in entries
    assert [name for name, entry in entries.items() if not entry.get("description")] == []
    assert [name for name, entry in entries.items() if {"type": "null"} in entry.get("anyOf", [])] == []
    assert [name for name, entry in entries.items() if "default" in entry and entry["default"] is None] == []


def test_the_schema_knows_durations_secrets_and_the_spelling_of_verify() -> None:
    definitions = json_schema(FleetFile)["$defs"]
    shared, own = (definitions[name]["properties"] for name in ("SharedTransport", "Transport"))
    pattern = shared["call_timeout"]["anyOf"][0]["pattern"]
    assert [text for text in ("10s", "2m", "1h30m", "", "10", "1d") if re.search(pattern, text)] == [
        "10s",
        "2m",
        "1h30m",
    ]
    assert [text for text in ("env:A", "cmd:x", "hunter2") if re.search(shared["password"]["pattern"], text)] == [
        "env:A",
        "cmd:x",
    ]
    assert {"const": "insecure-skip-verification"} in own["verify"]["anyOf"]
    assert {"const": "insecure-skip-verification"} not in shared["verify"]["anyOf"]


def test_the_described_defaults_are_the_real_ones() -> None:
    described = {name: entry["description"] for name, entry in properties(json_schema(FleetFile))}
    for option in ("connect_timeout", "operation_timeout", "call_timeout"):
        assert described[f"Transport.{option}"].endswith(f"Default: {render_duration(getattr(Transport(), option))}.")
    assert "Default: negotiate" in described["Transport.auth"]


def test_every_model_refuses_unknown_keys() -> None:
    definitions = json_schema(FleetFile)["$defs"].values()
    assert all(entry["additionalProperties"] is False for entry in definitions if entry["type"] == "object")


def test_no_host_shows_what_may_be_a_secret() -> None:
    reference = SecretRef.parse("cmd:show --token hunter2")
    host = LinuxHost(name="a", password=reference, jump=Jump(address="b", passphrase=reference))
    assert "hunter2" not in f"{host} {host!r}"
    with pytest.raises(ValidationError) as caught:
        Transport(password="hunter2", port="hunter2")  # type: ignore[arg-type]
    assert caught.value.error_count() == 2
    assert "hunter2" not in f"{caught.value} {caught.value!r}"
