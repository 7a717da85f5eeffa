"""What serves a workload, planned, applied and taken back on a simulated Linux."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import FASTEST
from tests.engine.linux_world import linux_world
from tests.errors import raises
from tests.serving.one_plan import lines_at_the_end
from tests.serving.situations import linux, model, shipped
from tests.serving.stacks import FILES, IMAGE, KEY, request, served_world, stack_on
from winhost.core.answers import Record
from winhost.engine.failures import RunInterrupted
from winhost.gateway.gateway_settings import parse_settings
from winhost.lab.linux.serving import ServedEngines
from winhost.model.errors import RefusedError
from winhost.model.units import GiB
from winhost.model.workload import Availability, KeyLimit, ModelState, Needs, Parallel, PerKey, Video, Workload
from winhost.paths.linux import video_packages
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES
from winhost.serving.containers import compose_options, docker_options
from winhost.serving.deployed import Deployed
from winhost.serving.engine_files import ServedEngine
from winhost.serving.engine_spec import Container
from winhost.serving.entries import PythonWheels
from winhost.serving.stack import Stack, StackRequest, stack

HOST = "ubuntu-2xh100"
BY_CDI = {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"], "capabilities": ["gpu"]}


def made(asked: StackRequest | None = None, virtualization: str = "none") -> Stack:
    return stack(linux(HOST, virtualization), asked or request())


def texts(found: Stack) -> dict[str, str]:
    """Of files and units, by path or name."""
    entries: list[Any] = list(found.entries)
    return {next(iter(each["key"].values())): each["desired"]["text"] for each in entries if "text" in each["desired"]}


def compose(found: Stack) -> dict[str, Any]:
    (text,) = (text for path, text in texts(found).items() if path.endswith("/compose.yaml"))
    service: dict[str, Any] = yaml.load(text, FASTEST)["services"]["engine"]
    return service


def unit(found: Stack) -> str:
    (text,) = (text for name, text in texts(found).items() if name.startswith("winhost-engine-"))
    return text


# --- What stands in it -----------------------------------------------------------------------------------------------


def test_entries_are_ones_that_a_playbook_can_have() -> None:
    found = made(request("chat", "Coder", listen=("0.0.0.0", 8443), plain_http=True, allowed=("10.0.0.0/8",)))
    for each in list[Any](found.entries):
        type_ = RESOURCE_TYPES[each["resource"]]
        assert tuple(each["key"]) == type_.key
        assert type_.check_names(each["key"], each["desired"]) is None
        assert type_.check_values(each["desired"]) is None


def test_an_engine_in_compose_has_no_port_no_network_and_no_rights() -> None:
    service = compose(made())
    assert service["image"] == IMAGE.pinned
    assert (service["network_mode"], service["pull_policy"], service["cap_drop"]) == ("none", "never", ["ALL"])
    assert "ports" not in service
    assert "/srv/winhost/models/chat:/model:ro" in service["volumes"]
    assert service["deploy"]["resources"]["reservations"]["devices"] == [BY_CDI]
    assert service["command"][0] == "/model"
    assert "--uds=/run/winhost-engines/chat/engine.sock" in service["command"]
    assert "VLLM_SERVER_DEV_MODE" not in service["environment"]


def test_dev_mode_is_there_for_sleep_alone() -> None:
    asleep = request(workload=Workload((model(state=ModelState.SLEEPING),), versions=request().workload.versions))
    service = compose(made(asleep))
    assert service["environment"]["VLLM_SERVER_DEV_MODE"] == "1"
    assert service["network_mode"] == "none"


@pytest.mark.parametrize("runtime", ["compose", "docker", "podman", "/opt/vllm/bin/vllm"])
def test_units_start_clean_and_end_clean(runtime: str) -> None:
    asked = request()
    served = ServedEngine(_served(asked), runtime, None if "/" in runtime else IMAGE.pinned)
    text = served.unit
    assert f"ExecStartPost=/usr/bin/python3 -I {served.folder}/ready.py /run/winhost-engines/chat/engine.sock" in text
    if "/" in runtime:
        assert 'ExecStart="/opt/vllm/bin/vllm" serve' in text.replace('"serve"', "serve")
        assert {"PrivateNetwork=yes", "DynamicUser=yes", "UMask=0007"} <= {*text.splitlines()}
        assert "\nGroup=" not in text, "this group reaches every engine and the keeper"
        assert text.index("ready.py") < text.index("ExecStartPost=+/bin/chgrp --no-dereference winhost-engines ")
    else:
        program = "/usr/bin/podman" if runtime == "podman" else "/usr/bin/docker"
        assert text.index(f"ExecStartPre=-{program} rm --force winhost-engine-chat") < text.index("ExecStart=")
        assert f"ExecStopPost=-{program} rm --force winhost-engine-chat" in text
        assert "-m 2750 -o root -g winhost-engines /run/winhost-engines/chat" in text
    assert ("Requires=docker.service" in text) is (runtime in ("compose", "docker"))
    assert ("--network=none" in text) is (runtime in ("docker", "podman"))


def _served(asked: StackRequest) -> Any:
    from winhost.serving.choice import serving

    return serving(linux(HOST), asked.workload).models[0]


def test_engines_start_one_after_the_other() -> None:
    found = texts(made(request("chat", "coder")))
    assert "winhost-engine" not in found["winhost-engine-chat.service"].split("[Service]")[0].split("After=")[1]
    assert (
        "After=network-online.target docker.service winhost-engine-chat.service\n"
        in found["winhost-engine-coder.service"]
    )


def test_nothing_of_a_unit_is_expanded() -> None:
    served = ServedEngine(_served(request("a-$HOME-%n")), "docker", IMAGE.pinned)
    assert '"--served-model-name=a-$$HOME-%%n"' in served.unit


def test_what_is_served_is_written_down() -> None:
    found = made(request("chat", "Coder"), "kvm")
    deployed = Deployed.parse(texts(found)["/etc/winhost/serving.json"])
    assert deployed == found.deployed
    assert [each.model for each in deployed.engines] == ["chat", "Coder"]
    assert {each.profile for each in deployed.engines} == {"dda"}
    assert deployed.engines[0].image == IMAGE.pinned


def test_an_endpoint_beyond_the_machine_is_limited_to_networks() -> None:
    networks = ("fd00::/8", "10.0.0.0/8", "9.0.0.0/8", "10.20.0.0/16")
    entries = list[Any](made(request(listen=("0.0.0.0", 9000), plain_http=True, allowed=networks)).entries)
    (port,) = (each for each in entries if each["resource"] == "FirewallPort")
    assert (port["key"], port["desired"]) == ({"port": "9000"}, {"allowed": ["9.0.0.0/8", "10.0.0.0/8", "fd00::/8"]})
    assert "FirewallPort" not in [each["resource"] for each in list[Any](made().entries)]


PER_KEY = PerKey(concurrent=32, tokens_per_minute=200_000, keys={"alice": KeyLimit(concurrent=4)})


def test_limits_of_keys_are_settings_of_the_gateway() -> None:
    plain = request()
    limited = replace(plain, workload=replace(plain.workload, per_key=PER_KEY))
    settings = gateway_settings(made(limited))
    assert settings["per_key"] == {
        "concurrent": 32,
        "tokens_per_minute": 200_000,
        "keys": {"alice": {"concurrent": 4, "tokens_per_minute": 200_000}},
    }
    assert parse_settings(json.dumps(settings)).per_key.keys["alice"].concurrent == 4
    assert "per_key" not in gateway_settings(made(plain))


def test_limits_of_a_key_that_is_not_there_are_refused() -> None:
    plain = request()
    limited = replace(plain, workload=replace(plain.workload, per_key=PerKey(keys={"bob": KeyLimit(concurrent=4)})))
    with pytest.raises(ValueError, match="bob has no API key here; there are alice"):
        made(limited)


def test_sizes_are_told() -> None:
    notes = "\n".join(made().notes)
    assert "to download there: 22.35 GiB (13.97 GiB of models)" in notes


@pytest.mark.parametrize(("runtime", "program"), [("docker", "docker"), ("compose", "docker"), ("podman", "podman")])
def test_what_rollback_leaves_is_removed_by_the_engine_that_made_it(runtime: str, program: str) -> None:
    assert made(request(runtime=runtime)).notes[-1].endswith(f": {program} volume rm winhost-vllm")


# --- Models that take turns ------------------------------------------------------------------------------------------


def by_turns(*names: str, vllm: str = "0.33.0", resident: tuple[str, ...] = (), **changed: Any) -> StackRequest:
    """All of them but the resident ones."""
    plain = request(*names, vllm=vllm)
    models = tuple(
        model(name, state=ModelState.RESIDENT if name in resident else ModelState.SLEEPING, **changed) for name in names
    )
    return replace(plain, workload=Workload(models, versions=plain.workload.versions))


def gateway_settings(found: Stack) -> dict[str, Any]:
    (text,) = (text for path, text in texts(found).items() if path.endswith("/settings.json"))
    settings: dict[str, Any] = json.loads(text)
    return settings


def test_the_gateway_knows_the_proxies_of_the_workload() -> None:
    plain = request()
    served = replace(plain.workload, trusted_proxies=("10.20.0.5/32",), proxy_protocol=True)
    settings = gateway_settings(made(replace(plain, workload=served)))
    assert (settings["trusted_proxies"], settings["proxy_protocol"]) == (["10.20.0.5/32"], True)
    assert not {"trusted_proxies", "proxy_protocol"} & gateway_settings(made(plain)).keys()


def test_the_gateway_starts_those_that_take_turns() -> None:
    found = made(by_turns("chat", "coder", "third"))
    settings = parse_settings(json.dumps(gateway_settings(found)))
    assert [*settings.turn_models] == ["chat", "coder", "third"]
    turns = settings.turn_models["coder"]
    assert (turns.gpus, turns.between, turns.level, turns.unit) == ((0,), "sleep", 1, "winhost-engine-coder.service")
    assert settings.turns.start == 3600
    assert turns.awake_mib is not None
    assert 0.8 < turns.awake_mib / 81_559 < 0.95, "its share of the GPU"
    assert turns.asleep_mib == 2780
    assert [each.turns for each in found.deployed.engines] == [True] * 3
    units = [each for each in list[Any](found.entries) if each["resource"] == "EngineUnit"]
    for each in units:
        assert (each["desired"]["enabled"], "active" in each["desired"]) == (False, False)
        text = each["desired"]["text"]
        assert "\nRestart=no\n" in text
        assert "[Install]" not in text
        assert "After=network-online.target docker.service\n" in text
    assert "winhost-keeper.service" in texts_of_units(found)


def texts_of_units(found: Stack) -> list[str]:
    return [each["key"]["unit"] for each in list[Any](found.entries) if each["resource"] == "SystemdUnit"]


def test_nothing_of_turns_is_there_where_nobody_takes_them() -> None:
    found = made(request("chat", "coder"))
    assert "turns" not in json.dumps(gateway_settings(found))
    assert "winhost-keeper.service" not in texts_of_units(found)


def test_the_gateway_gives_gpus_back_where_the_workload_says_when() -> None:
    plain = by_turns("chat")
    assert parse_settings(json.dumps(gateway_settings(made(plain)))).turns.idle is None
    idle = replace(plain, workload=replace(plain.workload, availability=Availability(idle=600)))
    settings = parse_settings(json.dumps(gateway_settings(made(idle))))
    assert (settings.turns.idle, [*settings.turn_models]) == (600, ["chat"])


def with_standby(**more: Any) -> StackRequest:
    plain = request("chat")
    return replace(plain, workload=replace(plain.workload, availability=Availability(standby=("chat",))), **more)


def test_a_standby_is_the_same_engine_on_another_gpu_behind_the_same_name() -> None:
    found = made(with_standby(runtime="/opt/vllm/bin/vllm", image=None))
    first, second = found.deployed.engines
    assert (first.model, first.stands_by, second.model, second.stands_by) == ("chat", None, "chat-standby", "chat")
    assert [each.model for each in found.deployed.published] == ["chat"]
    assert {*first.gpus}.isdisjoint(second.gpus)
    model_of_gateway = parse_settings(json.dumps(gateway_settings(found))).models["chat"]
    assert model_of_gateway.standby
    assert (model_of_gateway.engine.socket, model_of_gateway.standby.engine.socket) == (first.socket, second.socket)
    units = {name: text for name, text in texts(found).items() if name.startswith("winhost-engine-")}
    lines = [line for text in units.values() for line in text.split("\n") if "ExecStart=" in line]
    commands = [line.replace("/chat-standby/", "/chat/") for line in lines]
    assert len(commands) == 2
    assert commands[0] == commands[1]  # both have the same options, name and files
    assert f"After=network-online.target {first.unit}" in units[second.unit]
    assert sum(each["resource"] == "ModelFiles" for each in found.entries) == 1
    assert Deployed.parse(found.deployed.text()) == found.deployed


def alone(runtime: str = "docker", **changed: Any) -> StackRequest:
    """A standby where both engines do not fit at a time."""
    plain = with_standby() if runtime == "docker" else with_standby(runtime=runtime, image=None)
    return replace(plain, workload=replace(plain.workload, models=(replace(plain.workload.models[0], **changed),)))


def test_a_standby_without_a_gpu_of_its_own_is_the_same_engine_started_anew() -> None:
    found = made(alone(parallel=Parallel(tensor=2)))
    (engine,) = found.deployed.engines
    assert (engine.model, engine.turns, engine.gpus) == ("chat", True, [0, 1])
    settings = parse_settings(json.dumps(gateway_settings(found)))
    asked = settings.models["chat"]
    assert asked.turns
    assert asked.standby
    assert (asked.standby.engine, asked.turns.between, asked.turns.resident) == (None, "stop", True)
    assert asked.turns.unit == engine.unit
    assert "Restart=no" in unit(found)
    assert [note for note in found.notes if "standby" in note] == [
        "chat: its standby is the same engine, started anew cold: it answers after about 42 s "
        "(estimate), within the 120 s that requests wait"
    ]


def test_a_standby_of_a_model_with_an_image_on_disk_starts_from_it() -> None:
    found = made(alone("/opt/vllm/bin/vllm", state=ModelState.SLEEPING, suspend="disk", sleep_level=1))
    turns = parse_settings(json.dumps(gateway_settings(found))).models["chat"].turns
    assert turns
    assert (turns.image, turns.resident) == (True, False)
    (said,) = (note for note in found.notes if "its standby" in note)
    assert said.endswith(
        "anew from its image on disk: it answers after about 6 s (estimate), within the 120 s that requests wait"
    )


def test_requests_are_told_where_a_start_takes_longer_than_they_wait() -> None:
    (said,) = (
        note
        for note in made(alone(parallel=Parallel(tensor=2), parameters=None, weights=130 * GiB)).notes
        if "its standby" in note
    )
    assert said.endswith("later than the 120 s that requests wait")


def test_a_resident_that_starts_anew_leaves_its_gpu_to_no_model_that_takes_turns() -> None:
    plain = by_turns("chat", "code", resident=("chat",), parallel=Parallel(tensor=2), sleep_level=1)
    found = made(replace(plain, workload=replace(plain.workload, availability=Availability(standby=("chat",)))))
    turns = parse_settings(json.dumps(gateway_settings(found))).turn_models
    assert {name: each.resident for name, each in turns.items()} == {"chat": True, "code": False}


def test_a_stack_whose_standby_starts_anew_is_applied_and_taken_back(tmp_path: Path) -> None:
    here = served_world(tmp_path, alone(parallel=Parallel(tensor=2)))
    before = here.state()
    assert here.apply(here.plan()).holds
    assert here.apply(here.plan()).changed == 0
    assert here.rollback().outcome == "rolled back"
    assert here.state() == before


def test_what_cannot_sleep_safely_is_stopped_between_its_turns_and_not_in_development_mode() -> None:
    found = made(by_turns("chat", vllm="0.16.0"))
    assert gateway_settings(found)["models"][0]["turns"]["between"] == "stop"
    service = compose(found)
    assert "VLLM_SERVER_DEV_MODE" not in service["environment"]
    assert "--enable-sleep-mode" not in service["command"]


def test_level_2_is_taken_where_the_workload_says_so() -> None:
    turns = gateway_settings(made(by_turns("chat", "coder", sleep_level=2)))["models"][0]["turns"]
    assert (turns["level"], turns["reloads"]) == (2, True)


def test_how_each_rests_is_chosen_by_memory_and_time_and_said() -> None:
    """60 GiB twice pinned are 120; the Linux has 256 GiB."""
    large = {"parameters": None, "weights": 60 * GiB}
    asked = by_turns("a", "b", "c", **large)
    models = (*asked.workload.models[:2], replace(asked.workload.models[2], dense=True))
    wanted = replace(asked.workload, models=models, availability=Availability(swap_within=30))
    found = made(replace(asked, workload=wanted))
    turns = [each["turns"] for each in gateway_settings(found)["models"]]
    assert [(each["between"], each.get("level"), each.get("reloads")) for each in turns] == [
        ("sleep", 1, None),
        ("stop", None, None),
        ("sleep", 2, True),
    ]
    said = [note.partition("between its turns ")[2] for note in found.notes if "between its turns" in note]
    assert said == [
        "level 1, pinned: it answers after about 5.2 s (estimate), soon enough for swap_within",
        "stopped, caches warm: it answers after about 88.6 s (estimate), later than swap_within allows",
        "level 2: it answers after about 9.9 s (estimate), soon enough for swap_within",
    ]


def test_what_would_fit_awake_at_once_is_said() -> None:
    assert any("state: resident" in note for note in made(by_turns("chat", "coder")).notes)
    assert not any("state: resident" in note for note in made(by_turns("a", "b", "c", memory=70 * GiB)).notes)


def test_one_that_goes_to_disk_starts_from_there_as_a_user_that_stays() -> None:
    asked = replace(by_turns("chat", suspend="disk"), runtime="/opt/vllm/bin/vllm", image=None)
    found = stack(with_set(to_add=["criu 4.2-1ubuntu2"]), asked)
    text = unit(found)
    folder = next(path.rpartition("/")[0] for path in texts(found) if path.endswith("/process_image.py"))
    starts = f"ExecStart=!/usr/bin/python3 -I {folder}/process_image.py /var/lib/winhost-images/chat /srv/winhost"
    assert starts in text.replace("/models/chat winhost-chat -- ", " -- ").replace("/srv/winhost -- ", "/srv/winhost")
    assert "User=winhost-chat\n" in text
    assert not [line for line in ("DynamicUser", "SystemCallFilter", "Restrict", "Lock") if f"\n{line}" in text]
    kinds = [each["resource"] for each in list[Any](found.entries)]
    assert kinds.index("LinuxUser") < kinds.index("EngineUnit")
    assert {each["turns"].get("image") for each in gateway_settings(found)["models"]} == {True}
    assert any("prompts and keys" in note for note in found.notes)


OLD = {"6.8.0-60-generic": "criu 3.17.1-2", "6.17.0-5-generic": "criu 4.1.1-1"}


def test_a_criu_that_cannot_write_an_image_is_refused_by_name() -> None:
    asked = replace(by_turns("chat", suspend="disk"), runtime="/opt/vllm/bin/vllm", image=None)
    for kernel, package in OLD.items():
        facts = with_set(to_add=[package]).document
        system = replace(
            facts.resources["LinuxSystem"][0], state={**facts.resources["LinuxSystem"][0].state, "kernel": kernel}
        )  # type: ignore[index]
        other = HostFacts(replace(facts, resources={**facts.resources, "LinuxSystem": (system,)}))
        with raises("OldCriu", match=package.partition(" ")[2]):
            stack(other, asked)


def test_one_that_is_to_leave_its_gpu_is_suspended_while_it_sleeps() -> None:
    asked = replace(by_turns("chat", "coder", suspend=True), runtime="/opt/vllm/bin/vllm", image=None)
    assert [each["turns"]["suspend"] for each in gateway_settings(made(asked))["models"]] == [True, True]
    with pytest.raises(RefusedError, match="cannot be suspended in a container"):
        made(by_turns("chat", suspend=True))


def test_one_that_is_kept_on_their_gpu_starts_before_they_can() -> None:
    """Two that start at once miscount memory. The gateway asks for them while a run still writes units."""
    found = made(by_turns("chat", "coder", "kept", resident=("kept",)))
    assert [each.gpus for each in found.deployed.engines] == [[0]] * 3
    kept = texts(found)["winhost-engine-kept.service"]
    assert "WantedBy=multi-user.target" in kept
    assert "After=network-online.target docker.service\n" in kept, "it waits for none that the gateway starts"
    for name in ("chat", "coder"):
        text = texts(found)[f"winhost-engine-{name}.service"]
        assert "After=network-online.target docker.service winhost-engine-kept.service\n" in text
        assert "\nWants=winhost-engine-kept.service\n" in text
        assert "\nAssertPathExists=/usr/local/lib/systemd/system/winhost-engine-kept.service\n" in text


@pytest.mark.costly
def test_models_that_take_turns_are_applied_verified_and_taken_back(tmp_path: Path) -> None:
    here = served_world(tmp_path, by_turns("chat", "coder"))
    before = here.state()
    assert here.apply(here.plan()).holds
    units = here.own.linux.part(ServedEngines).units
    assert {each["active"] for each in units.values()} == {False}, "the gateway starts them"
    assert here.own.linux.part(ServedEngines).serves()
    here.own.linux.part(ServedEngines).update_unit(
        "winhost-engine-chat.service", active=True
    )  # its turn came: no drift
    assert not [*here.plan().steps]
    assert here.rollback().outcome == "rolled back"
    assert here.state() == before


@pytest.mark.costly
def test_a_model_begins_to_take_turns_and_is_kept_again(tmp_path: Path) -> None:
    here = served_world(tmp_path, request("chat"))
    assert here.apply(here.plan()).holds
    name = "winhost-engine-chat.service"
    stack_on(here, by_turns("chat", "coder"))
    assert here.apply(here.plan()).holds
    unit = here.own.linux.part(ServedEngines).units[name]
    assert (unit["enabled"], unit["active"]) == (False, False)
    assert here.rollback().outcome == "rolled back"
    unit = here.own.linux.part(ServedEngines).units[name]
    assert (unit["enabled"], unit["active"]) == (True, True)


# --- Video beside the models -----------------------------------------------------------------------------------------


def with_video(**changed: Any) -> StackRequest:
    return replace(request("chat", **changed), workload=replace(request("chat").workload, video=Video(2, GiB)))


@pytest.mark.costly
def test_ffmpeg_comes_with_the_libraries_that_the_drivers_set_lacks(tmp_path: Path) -> None:
    bare = "ubuntu-2xl4-no-driver"
    found = stack(linux(bare), with_video())
    names = "ffmpeg libnvidia-decode-580-server libnvidia-encode-580-server"
    assert [each["key"] for each in list[Any](found.entries) if each["title"] == "FFmpeg"] == [{"packages": names}]
    assert video_packages(linux(HOST)) == "ffmpeg", "a driver of another source brings them"
    here = served_world(tmp_path, with_video(), bare)
    before = here.state()
    assert here.apply(here.plan()).holds
    assert here.rollback().outcome == "rolled back"
    assert here.state() == before


def test_a_workload_without_video_brings_no_ffmpeg() -> None:
    assert "ffmpeg" not in str(made().entries)


def test_wsl_has_the_libraries_of_windows() -> None:
    assert video_packages(shipped("win11-pro-1gpu")) == "ffmpeg"


# --- CRIU, where it is asked for -------------------------------------------------------------------------------------


def with_criu(must: bool = True) -> StackRequest:
    needs = Needs(must=("criu",)) if must else Needs(nice=("criu",))
    return replace(request("chat"), workload=replace(request("chat").workload, needs=needs))


def with_set(**state: Any) -> HostFacts:
    """Facts with what apt would do about the package."""
    known = {"installed": False, "held": False, "to_change": [], "to_change_foreign": [], "to_remove": []}
    one = Record({**known, "needed_by": [], "restart_due": False, **state}, {"packages": "criu"})
    facts = linux(HOST).document
    others = [each for each in list[Any](facts.resources["AptPackages"]) if each.key != one.key]
    return HostFacts(replace(facts, resources={**facts.resources, "AptPackages": (*others, one)}))


OFFERED, MISSING = {"to_add": ["criu 4.2-1ubuntu2"]}, {"to_add": {"unavailable": "AptSource"}}


@pytest.mark.parametrize("must", [True, False])
@pytest.mark.parametrize("state", [OFFERED, {"installed": True, "to_add": []}])
def test_criu_comes_where_it_is_asked_for(must: bool, state: Any) -> None:
    found = stack(with_set(**state), with_criu(must))
    assert [each["key"] for each in list[Any](found.entries) if each["title"] == "CRIU"] == [{"packages": "criu"}]
    assert "CRIU" not in str(stack(with_set(**state), request("chat")).entries)


def test_criu_that_no_source_has_is_refused_where_it_is_needed() -> None:
    with raises("NoCriu", match="no package source"):
        stack(with_set(**MISSING), with_criu())
    assert "CRIU" not in str(stack(with_set(**MISSING), with_criu(must=False)).entries)


# --- What it does ----------------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("example", [HOST, "ubuntu-2xl4-no-driver"])
def test_it_is_applied_verified_and_taken_back(tmp_path: Path, example: str) -> None:
    here = served_world(tmp_path, request("chat"), example)
    before = here.state()
    assert here.apply(here.plan()).holds
    assert here.own.linux.part(ServedEngines).serves()
    assert here.apply(here.plan()).changed == 0
    assert here.rollback().outcome == "rolled back"
    assert here.state() == before


@pytest.mark.costly
def test_another_image_is_there_before_its_engine_starts_and_the_old_one_comes_back(tmp_path: Path) -> None:
    here = served_world(tmp_path)
    assert here.apply(here.plan()).holds
    first = here.own.linux.part(ServedEngines).units["winhost-engine-chat.service"]["text"]
    newer = type(IMAGE)(f"registry.example.com/vllm/vllm-openai@sha256:{'12' * 32}")
    stack_on(here, request(image=newer))
    plan = here.plan()
    order = [step.resource for step in plan.steps]
    assert order.index("ContainerImage") < order.index("EngineUnit")
    assert here.apply(plan).holds
    assert here.own.linux.part(ServedEngines).units["winhost-engine-chat.service"]["text"] != first
    assert here.rollback().outcome == "rolled back"
    assert here.own.linux.part(ServedEngines).units["winhost-engine-chat.service"]["text"] == first
    assert here.own.linux.part(ServedEngines).serves()


@pytest.mark.costly
def test_a_unit_that_runs_is_restarted_once_all_that_it_names_is_there(tmp_path: Path) -> None:
    """Its file is what restarts it: the gateway's program and libraries come before, and on the way back go after."""
    here = served_world(tmp_path)
    assert here.apply(here.plan()).holds
    wheels = PythonWheels("3.12", "/srv/wheels", (f"sha256:{'0' * 64} 1 vllm-0.33.0-py3-none-any.whl",))
    stack_on(here, request(engine_wheels=wheels, listen=("127.0.0.1", 9443)))
    plan = here.plan()
    order = [(step.resource, str(next(iter(step.key.values())))) for step in plan.steps if step.key]
    unit = order.index(("LinuxFile", "/usr/local/lib/systemd/system/winhost-gateway.service"))
    others = [
        number for number, each in enumerate(order) if each[0] in ("LinuxFolder", "PythonVenv") or "/opt/" in each[1]
    ]
    assert len(others) >= 3
    assert max(others) < unit
    assert here.apply(plan).holds
    assert here.rollback().outcome == "rolled back"


def test_an_engine_that_ended_is_drift(tmp_path: Path) -> None:
    here = served_world(tmp_path)
    assert here.apply(here.plan()).holds
    here.own.linux.part(ServedEngines).update_unit("winhost-engine-chat.service", active=False)
    titles = [step.title for step in here.plan().steps]
    assert titles == ["Engine of chat", "A completion of each model"]


def test_a_model_without_its_files_starts_nothing(tmp_path: Path) -> None:
    here = linux_world(tmp_path)
    found = stack_on(here, request())
    assert here.resources is not None
    here.resources = [each for each in here.resources if each["resource"] != "ModelFiles"]
    assert FILES["revision"] in str(found.entries)
    assert KEY in str(found.entries)
    with pytest.raises(RunInterrupted, match="its model is not there"):
        here.apply(here.plan())


def test_what_to_do_next_is_told_where_it_serves(tmp_path: Path) -> None:
    here = served_world(tmp_path)
    said = lines_at_the_end(here, here.apply(here.plan()))
    assert said[0] == "Served:   chat, each after a completion of its own"
    assert said[-2:] == ["  winhost chat llm-01 'Say hello'", "  winhost serve status llm-01"]


def test_a_limit_of_memory_is_set_by_docker_and_by_compose() -> None:
    limited = Container(memory=24 * GiB)
    assert docker_options(limited) == ["--memory=24g"]
    assert compose_options(limited)["mem_limit"] == "24g"
