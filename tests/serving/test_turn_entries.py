"""How models rest between their turns, by memory and version."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.engine.linux_world import linux_world
from winhost.cli.serve.commands import serve
from winhost.gateway.gateway_settings import parse_settings
from winhost.serving.gateway_entries import gateway_entries
from winhost.serving.sharing import SharingModel, turn_settings

KEY = f"alice sha256:{'0' * 64}"


def taking_turns() -> dict[str, Any]:
    """Settings of the gateway, of two models on one GPU."""
    of_models, turns = turn_settings([SharingModel(name, (0,), "0.24.0", awake=70_000) for name in "ab"])
    turns["memory"] = {"0": 81_559}
    models = [{"name": name, "engine": {"socket": f"/run/{name}.sock"}, "turns": of_models[name]} for name in "ab"]
    return {"listen": {"address": "127.0.0.1", "port": 8443}, "models": models, "turns": turns}


def test_entries_with_turns_have_a_keeper_before_the_gateway() -> None:
    settings = taking_turns()
    units = [
        each["key"]["unit"] for each in gateway_entries(settings, [KEY], None) if each["resource"] == "SystemdUnit"
    ]
    assert units == ["winhost-keeper.service", "winhost-gateway.service"]
    settings["models"] = [{**each, "turns": {"gpus": [0], "version": "0.24.0"}} for each in settings["models"]]
    settings["turns"] = {}
    units = [each["key"].get("unit") for each in gateway_entries(settings, [KEY], None)]
    assert "winhost-keeper.service" not in units


def test_the_keeper_is_applied_and_taken_back(tmp_path: Path) -> None:
    here = linux_world(tmp_path)
    before = here.state()
    here.resources = gateway_entries(taking_turns(), [KEY], None)
    assert here.apply(here.plan()).holds
    assert here.own.linux.systemd.state("winhost-keeper.service")["active"] is True
    assert here.rollback().outcome == "rolled back"
    assert here.state() == before


def test_the_command_gives_settings_that_the_gateway_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE", "k" * 30)
    words = ["gateway", "--model", "org/a=/run/a.sock", "--model", "b=/run/b.sock", "--api-key", "alice=env:ALICE"]
    assert "--shares" in CliRunner().invoke(serve, [*words, "--idle", "10m"]).output
    words += ["--idle", "10m"]
    done = CliRunner().invoke(serve, [*words, "--shares", "org/a=0,1", "--shares", "b=1", "--vllm", "0.24.0"])
    text = done.output.partition("settings.json")[2].partition("text: |\n")[2].partition("\n    mode:")[0]
    settings = parse_settings(text)
    assert settings.models["org/a"].turns
    assert settings.models["org/a"].turns.gpus == (0, 1)
    assert (settings.turns.keeper, settings.turns.idle) == ("/run/winhost-keeper/keeper.sock", 600)


@pytest.mark.parametrize(
    ("weights", "host", "within", "words", "says"),
    [
        ("14", "64", "5", [], "Take: level 1, pinned. |after about 1.2 s|within 5 s"),
        ("14", "20", "5", ["--reloads"], "Take: level 2. |after about 2.3 s|within 5 s"),
        ("14", "20", "5", ["--not-pinned"], "Take: level 1, not pinned. |after about 12.7 s|later than 5 s"),
        ("14", "20", "5", ["--not-pinned", "--reloads"], "Take: level 2. |within 5 s"),
        ("14", "20", "20", ["--not-pinned", "--reloads"], "Take: level 1, not pinned. |within 20 s"),
        ("14", "20", "5", [], "Take: stopped, caches warm. |later than 5 s"),
        ("140", "300", "5", [], "Take: level 1, pinned. |after about 12.2 s|later than 5 s"),
    ],
)
def test_what_memory_and_time_allow_is_chosen(
    weights: str, host: str, within: str, words: list[str], says: str
) -> None:
    """The time is that of a whole swap: another one like it leaves first."""
    given = ["--weights", weights, "--host-memory", host, "--swap-within", within, *words]
    said = " ".join(CliRunner().invoke(serve, ["explain", *given], terminal_width=200).output.split())
    assert [part for part in says.split("|") if part not in said + " "] == []


def test_the_page_has_the_table_of_the_command() -> None:
    said = CliRunner().invoke(serve, ["explain"], terminal_width=200).output
    page = (Path(__file__).parents[2] / "docs/fast-restart.md").read_text("utf-8")
    for line in page.splitlines()[10:20]:
        for cell in filter(None, (each.strip() for each in line.strip("|").split("|"))):
            assert not line.startswith("| level") or cell in " ".join(said.split())
