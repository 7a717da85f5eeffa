"""The gateway as entries of a playbook."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.cases import FASTEST
from tests.engine.linux_world import linux_world
from winhost.cli import winhost
from winhost.core.conditions import consents_of
from winhost.core.steps import Change
from winhost.engine.rollback import rollback
from winhost.gateway.api_keys import ApiKeys
from winhost.gateway.gateway_settings import parse_settings
from winhost.resources.registry import RESOURCE_TYPES, RULES

KEY = "canary-of-a-key-that-is-long-enough"
MODEL = ("--model", "org/tiny=/run/engine/engine.sock")
TURNS = ("--shares", "org/tiny=0,1")
ALICE = ("--api-key", "alice=env:ALICE_KEY")
Asked = Callable[..., Result]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setenv("ALICE_KEY", KEY)
    return lambda *words: CliRunner().invoke(winhost, ["serve", "gateway", *words])


def entries(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = yaml.load(result.stdout, FASTEST)
    return found


def files(result: Result) -> dict[str, str]:
    return {each["key"]["path"]: each["desired"]["text"] for each in entries(result) if each["resource"] == "LinuxFile"}


def consents(result: Result) -> set[str]:
    found = [(RULES[each["resource"]], Change(each["key"], {}, each["desired"])) for each in entries(result)]
    return {consent for rules, change in found for consent in consents_of(rules.risks, change)}


def test_entries_are_ones_that_a_playbook_can_have(asked: Asked) -> None:
    for each in entries(asked(*MODEL, *ALICE)):
        type_ = RESOURCE_TYPES[each["resource"]]
        assert tuple(each["key"]) == type_.key
        assert all(type_.sets[name].fits(value) for name, value in each["desired"].items())


def test_who_reads_all_metrics_is_told_of_gpus(asked: Asked) -> None:
    for use, keeper in (("all", True), ("tenant:org/tiny", False)):
        found = files(asked(*MODEL, *ALICE, "--metrics-key", f"{use}=env:ALICE_KEY"))
        assert any(path.endswith("/winhost-keeper.service") for path in found) == keeper
        (settings,) = (text for path, text in found.items() if path.endswith("/settings.json"))
        assert bool(parse_settings(settings).turns.keeper) == keeper


def test_no_key_is_in_them(asked: Asked) -> None:
    result = asked(*MODEL, *ALICE)
    assert KEY not in result.output
    (keys,) = (text for path, text in files(result).items() if path.endswith("/keys"))
    assert ApiKeys(keys).find_name(f"Bearer {KEY}") == "alice"


def test_a_key_in_the_place_of_its_reference_is_not_repeated(asked: Asked) -> None:
    for option in ("--api-key", "--metrics-key", "--yield-key"):
        refused = asked(*MODEL, *ALICE, *TURNS, "--no-sleep", option, KEY)
        assert (refused.exit_code, "NAME=REF" in refused.output, KEY in refused.output) == (2, True, False)


def test_an_api_key_is_required(asked: Asked) -> None:
    refused = asked(*MODEL)
    assert (refused.exit_code, "--api-key alice=env:ALICE_KEY" in refused.output) == (2, True)


def test_metrics_have_keys_of_their_own(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS", f"{KEY}-for-metrics")
    monkeypatch.setenv("TENANT", f"{KEY}-of-a-tenant")
    metrics = ("--metrics-key", "prometheus=env:METRICS", "--metrics-key", "tenant:org/tiny=env:TENANT")
    result = asked(*MODEL, *ALICE, *metrics)
    assert KEY not in result.output
    (text,) = (text for path, text in files(result).items() if path.endswith("/keys"))
    keys = ApiKeys(text)
    assert keys.find_name(f"Bearer {KEY}-for-metrics") == "prometheus"
    every, one, alice = (keys.line(name) for name in ("prometheus", "tenant", "alice"))
    assert (every.metrics, one.metrics, alice.metrics) == (True, True, False)
    assert (every.models, one.models) == (None, ("org/tiny",))


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("tenant:org/other=env:ALICE_KEY", "a key for metrics names org/other, which is no model here"),
        ("tenant:=env:ALICE_KEY", "--metrics-key: the name of a key"),
        ("alice=env:ALICE_KEY", "--metrics-key alice: another key has this name"),
    ],
)
def test_keys_for_metrics_are_checked(asked: Asked, key: str, says: str) -> None:
    result = asked(*MODEL, *ALICE, "--metrics-key", key)
    assert (result.exit_code, says in result.output) == (2, True)


def test_whatever_changes_changes_the_unit_which_comes_last(asked: Asked) -> None:
    first, second = files(asked(*MODEL, *ALICE)), files(asked(*MODEL, *ALICE, "--listen", "127.0.0.1:9000"))
    shared = set(first) & set(second)
    assert shared == {"/usr/local/lib/systemd/system/winhost-gateway.service"}
    assert all(first[path] != second[path] for path in shared)
    assert max(first) in shared  # files are written in the order of their paths
    assert files(asked(*MODEL, *ALICE)) == first


def test_proxies_are_named_with_how_they_say_for_whom_they_ask(asked: Asked) -> None:
    by_header = ("--trusted-proxy", "10.0.0.5/32", "--trusted-proxy", "fd00::/64")
    for words, protocol in ((by_header, False), ((*by_header, "--proxy-protocol"), True)):
        (text,) = (
            text for path, text in files(asked(*MODEL, *ALICE, *words)).items() if path.endswith("settings.json")
        )
        settings = parse_settings(text)
        assert [*map(str, settings.trusted_proxies)] == ["10.0.0.5/32", "fd00::/64"]
        assert settings.proxy_protocol is protocol
    refused = asked(*MODEL, *ALICE, "--proxy-protocol")
    assert (refused.exit_code, "--trusted-proxy 10.20.0.5/32" in refused.output) == (2, True)


def test_plain_http_beyond_the_machine_takes_a_word_and_an_approval(asked: Asked) -> None:
    beyond = (*MODEL, *ALICE, "--listen", "10.0.0.5:8000")
    refused = asked(*beyond)
    assert (refused.exit_code, "name a certificate on the Linux that serves" in refused.output) == (2, True)
    assert consents(asked(*beyond, "--plain-http")) == {"network"}
    secured = asked(*beyond, "--certificate", "/etc/ssl/gateway.pem", "--certificate-key", "/etc/ssl/gateway.key")
    assert consents(secured) == set()
    unit = files(secured)["/usr/local/lib/systemd/system/winhost-gateway.service"]
    assert "LoadCredential=certificate:/etc/ssl/gateway.pem\nLoadCredential=key:/etc/ssl/gateway.key\n" in unit


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*MODEL, "--api-key", "alice"), "named as NAME=REF"),
        ((*MODEL, "--api-key", "alice=plain"), "env:NAME"),
        ((*MODEL, "--api-key", "a b=env:ALICE_KEY"), "--api-key: the name of a key"),
        ((*MODEL, *ALICE, *ALICE), "--api-key alice: another key has this name"),
        ((*MODEL, "--model", "m=8.8.8.8:80", *ALICE), "--model m=8.8.8.8:80: 8.8.8.8:80 is no internal address"),
        (("--model", "m=localhost:80", *ALICE), "--model m=localhost:80: an IP address is expected"),
        (("--model", "a b=/x", *ALICE), "--model a b=/x: 'a b' is not valid here"),
        ((*MODEL, *MODEL, *ALICE), "--model org/tiny=/run/engine/engine.sock: org/tiny is there already"),
        ((*MODEL, *ALICE, "--listen", "127.0.0.1"), "'--listen': '127.0.0.1' is not ADDRESS:PORT"),
        ((*MODEL, *ALICE, "--trusted-proxy", "10.0.0.0/8", "--trusted-proxy", "x"), "--trusted-proxy x: a network"),
        ((*MODEL, *ALICE, "--yield-key", "b=env:ALICE_KEY"), "--yield-key: org/tiny takes no turns"),
        ((*MODEL, *ALICE, "--shares", "org/tiny=0"), "need the version of vLLM: --vllm 0."),
        ((*MODEL, *ALICE, *TURNS, "--vllm", "0.5.0"), "--vllm: before vLLM 0.17"),
        ((*MODEL, *ALICE, *TURNS, "--vllm", "0.33.0", "--suspend"), "--suspend: over several GPUs"),
        ((*MODEL, *ALICE, "--shares", "org/tiny=99", "--no-sleep"), "--shares: a list of numbers"),
        ((*MODEL, *ALICE, "--suspend"), "--suspend is for models that take turns"),
        ((*MODEL, *ALICE, "--idle", "10m"), "--idle is for models that take turns"),
        ((*MODEL, *ALICE, "--certificate", "/a"), "go together"),
        ((*MODEL, *ALICE, "--certificate", "", "--certificate-key", "/a"), "go together"),
        ((*MODEL, *ALICE, "--certificate", "/a b", "--certificate-key", "/b"), "a path of a certificate"),
    ],
)
def test_what_the_gateway_would_refuse_is_refused_here(asked: Asked, words: tuple[str, ...], says: str) -> None:
    """It is said of the options that were typed, not of keys of a file that nobody sees."""
    result = asked(*words)
    assert result.exit_code == 2
    assert says in result.output.replace("\n", " ")
    assert not re.search(r"\w\[\d\]|trusted_proxies|between:|line \d", result.output)


def test_a_guessable_key_is_refused(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE_KEY", "secret123")
    result = asked(*MODEL, *ALICE)
    assert result.exit_code == 2
    assert "fewer than 24 characters" in result.output
    assert "secret123" not in result.output


def test_settings_say_what_was_asked(asked: Asked) -> None:
    (text,) = (text for path, text in files(asked(*MODEL, *ALICE)).items() if path.endswith("/settings.json"))
    assert json.loads(text) == {
        "listen": {"address": "127.0.0.1", "port": 8443},
        "models": [{"name": "org/tiny", "engine": {"socket": "/run/engine/engine.sock"}}],
        "key_changes": "/etc/winhost/gateway-keys",
    }


def test_it_listens_on_a_socket_that_is_named(asked: Asked) -> None:
    for listen, found in (
        ("/run/llm/gateway.sock", {"socket": "/run/llm/gateway.sock"}),
        ("[::1]:9000", {"address": "::1", "port": 9000}),
    ):
        written = files(asked(*MODEL, *ALICE, "--listen", listen))
        (text,) = (text for path, text in written.items() if path.endswith("/settings.json"))
        assert json.loads(text)["listen"] == found


def test_a_plan_that_wants_them_is_applied_and_taken_back(asked: Asked, tmp_path: Path) -> None:
    here = linux_world(tmp_path)
    here.resources = tuple(entries(asked(*MODEL, *ALICE)))
    unit = "/usr/local/lib/systemd/system/winhost-gateway.service"
    plan = here.plan()
    written = [step.key["path"] for step in plan.stages[0].steps if step.resource == "LinuxFile"]
    assert written[-1] == unit
    assert here.apply(plan).holds
    assert here.apply(here.plan()).changed == 0
    assert here.own.linux.systemd.state("winhost-gateway.service")["active"] is True
    assert here.rollback().outcome == "rolled back"
    assert here.own.linux.read_file(unit)["text"] is None


@pytest.mark.costly
def test_keys_that_were_changed_outlive_another_plan_and_go_with_the_gateway(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BOB_KEY", f"{KEY}-of-bob")
    here = linux_world(tmp_path)
    disk = here.own.linux.disk

    def keys(**change: str) -> dict[str, Any]:
        request = {"do": "keys", "change": change or None}
        answer: dict[str, Any] = json.loads(here.own.answers.answer("serving", json.dumps(request), 1))["answers"][0]
        assert answer["ok"], answer
        return {each["name"]: each["state"] for each in answer["keys"]}

    here.resources = tuple(entries(asked(*MODEL, *ALICE)))
    first = here.plan()
    assert here.apply(first).holds
    assert keys(verb="add", name="carol", sha256="0" * 64) == {"alice": "active", "carol": "active"}
    assert keys(verb="revoke", name="alice") == {"alice": "revoked", "carol": "active"}
    assert here.apply(here.plan()).changed == 0, "nothing drifts"

    here.resources = tuple(entries(asked(*MODEL, *ALICE, "--api-key", "bob=env:BOB_KEY")))
    assert here.apply(here.plan()).holds
    assert keys() == {"alice": "revoked", "bob": "active", "carol": "active"}
    assert here.rollback().outcome == "rolled back"
    assert keys() == {"alice": "revoked", "carol": "active"}

    assert rollback(here.store.runs()[0], here.consents, here.context).outcome == "rolled back"
    assert [path for path in here.own.linux.texts() if "gateway" in path] == []
    assert disk.node("/var/lib/private/winhost-gateway") is None
