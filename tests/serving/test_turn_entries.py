"""How models rest between their turns, by memory and version."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.engine.linux_world import linux_world
from winhost.cli.commands.serve import serve
from winhost.gateway.gateway_settings import parse_settings
from winhost.serving.gateway_entries import gateway_entries
from winhost.serving.ladder import choose
from winhost.serving.turn_entries import SharingModel, turn_settings

KEY = f"alice sha256:{'0' * 64}"


def test_backups_are_given_out_in_order_and_the_rest_reloads_or_is_stopped() -> None:
    models = [
        SharingModel("a", (0,), "0.24.0", weights=14_000),
        SharingModel("b", (0,), "0.24.0", weights=14_000, reloads=True),
        SharingModel("c", (0,), "0.24.0", weights=14_000),
        SharingModel("d", (0,), "0.24.0", weights=500, pinned=False),
    ]
    found, _ = turn_settings(models, {}, host_memory=30_000)
    assert [each["between"] for each in found.values()] == ["sleep", "sleep", "stop", "sleep"]
    assert [each.get("level") for each in found.values()] == [1, 2, None, 1]


def taking_turns() -> dict[str, Any]:
    """Settings of the gateway, of two models on one GPU."""
    of_models, turns = turn_settings([SharingModel(name, (0,), "0.24.0", awake=70_000) for name in "ab"], {0: 81_559})
    models = [{"name": name, "engine": {"socket": f"/run/{name}.sock"}, "turns": of_models[name]} for name in "ab"]
    return {"listen": {"address": "127.0.0.1", "port": 8443}, "models": models, "turns": turns}


def test_entries_with_turns_have_a_keeper_before_the_gateway() -> None:
    settings = taking_turns()
    units = [
        each["key"]["unit"] for each in gateway_entries(settings, [KEY], None) if each["resource"] == "SystemdUnit"
    ]
    assert units == ["winhost-keeper.service", "winhost-gateway.service"]
    settings["models"] = [{**each, "turns": {"cards": [0], "version": "0.24.0"}} for each in settings["models"]]
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
    words = ["gateway", "--model", "org/a=/run/a.sock", "--model", "b=/run/b.sock", "--key", "alice=env:ALICE"]
    done = CliRunner().invoke(serve, [*words, "--shares", "org/a=0,1", "--shares", "b=1", "--vllm", "0.24.0"])
    text = done.output.partition("settings.json")[2].partition("text: |\n")[2].partition("\n    mode:")[0]
    settings = parse_settings(text)
    assert settings.models["org/a"].turns
    assert settings.models["org/a"].turns.cards == (0, 1)
    assert settings.turns.keeper == "/run/winhost-keeper/keeper.sock"


@pytest.mark.parametrize(
    ("weights", "host", "within", "pinned", "reloads", "rung", "kept"),
    [
        (14, 64, 5, True, False, "level 1, pinned", True),
        (14, 20, 5, True, True, "level 2", True),
        (14, 20, 5, False, False, "level 1, not pinned", True),
        (14, 20, 5, True, False, "stopped, caches warm", False),
        (140, 300, 5, True, False, "level 1, pinned", False),
    ],
)
def test_the_fastest_way_back_that_memory_allows_is_chosen(
    weights: float, host: float, within: float, pinned: bool, reloads: bool, rung: str, kept: bool
) -> None:
    found = choose(weights, host, within, pinned, reloads)
    assert (found.rung.name, found.kept) == (rung, kept)


def test_the_page_has_the_table_of_the_command() -> None:
    said = CliRunner().invoke(serve, ["explain"], terminal_width=200).output
    page = (Path(__file__).parents[2] / "docs/fast-restart.md").read_text("utf-8")
    for line in page.splitlines()[10:20]:
        for cell in filter(None, (each.strip() for each in line.strip("|").split("|"))):
            assert not line.startswith("| level") or cell in " ".join(said.split())
