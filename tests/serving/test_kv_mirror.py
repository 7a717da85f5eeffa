"""KV caches written through to a disk, or to a server beside each engine: their units, and what keeps them small."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.processes import PATIENCE_S
from tests.serving.one_plan import CONSENTS, hub_of_model, inside, join, windows
from tests.serving.situations import linux, model
from tests.serving.stacks import request, served_world
from winhost.lab.linux.serving import ServedEngines
from winhost.model.errors import RefusedError
from winhost.model.units import GiB
from winhost.model.workload import Availability, KvMirror, Mirror, ModelState
from winhost.serving import prune_kv
from winhost.serving.stack import Stack, StackRequest, stack

PROGRAM = "/opt/vllm/bin/vllm"
VIDEO = {"streams": 1, "each": "1 GiB"}


def mirrored(
    through: Mirror, *names: str, runtime: str = "podman", vllm: str = "0.33.0", **changed: Any
) -> StackRequest:
    plain = request(*(names or ("chat",)), vllm=vllm)
    models = tuple(model(name, **changed) for name in names or ("chat",))
    mirror = KvMirror(through, 10 * GiB, 50 * GiB)
    asked = replace(plain, workload=replace(plain.workload, models=models, kv_mirror=mirror), runtime=runtime)
    return replace(asked, image=None) if "/" in runtime else asked


def made(asked: StackRequest) -> Stack:
    return stack(linux("ubuntu-2xh100"), asked)


def texts(asked: StackRequest) -> dict[str, str]:
    entries: list[Any] = list(made(asked).entries)
    return {next(iter(each["key"].values())): each["desired"]["text"] for each in entries if "text" in each["desired"]}


def config_in(unit: str) -> dict[str, Any]:
    """What the engine is told, as systemd reads the unit."""
    begin = unit.index('"--kv-transfer-config=') + 1
    end = next(i for i in range(begin, len(unit)) if unit[i] == '"' and unit[i - 1] != "\\")
    found: dict[str, Any] = json.loads(unit[begin:end].partition("=")[2].replace('\\"', '"'))
    return found


# --- On a disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["podman", PROGRAM])
def test_blocks_go_to_a_folder_that_nobody_else_enters(runtime: str) -> None:
    unit = texts(mirrored(Mirror.TIERS, runtime=runtime))["winhost-engine-chat.service"]
    config = config_in(unit)
    assert (config["kv_connector"], config["kv_role"]) == ("OffloadingConnector", "kv_both")
    assert config["kv_load_failure_policy"] == "recompute"
    extra = config["kv_connector_extra_config"]
    assert (extra["cpu_bytes_to_use"], extra["offload_prompt_only"]) == (10 * GiB, False)
    assert "PYTHONHASHSEED=0" in unit, "or the next process finds none of its blocks"
    assert [tier["root_dir"] for tier in extra["secondary_tiers"]] == ["/var/lib/winhost-kv-chat"]
    if runtime == PROGRAM:
        assert {"StateDirectory=winhost-kv-chat", "StateDirectoryMode=0700"} <= {*unit.splitlines()}
    else:
        assert '"--volume=/var/lib/winhost-kv-chat:/var/lib/winhost-kv-chat"' in unit
        made_first = unit.index("install -d -m 0700 -o root -g root /var/lib/winhost-kv-chat")
        assert made_first < unit.index("ExecStart=/usr")


def test_a_timer_keeps_all_of_them_within_their_size() -> None:
    asked = mirrored(Mirror.TIERS, "chat", "coder")
    found = texts(asked)
    service = found["/usr/local/lib/systemd/system/winhost-kv-prune.service"]
    assert f" {50 * GiB} /var/lib/winhost-kv-chat /var/lib/winhost-kv-coder\n" in service
    assert "CapabilityBoundingSet=CAP_DAC_OVERRIDE\n" in service
    assert "OnUnitActiveSec=10min" in found["/usr/local/lib/systemd/system/winhost-kv-prune.timer"]
    (program,) = (path for path in found if path.endswith("/prune_kv.py"))
    assert f"ExecStart=/usr/bin/python3 -I {program} " in service
    assert any("rm -r /var/lib/winhost-kv-chat /var/lib/winhost-kv-coder" in note for note in made(asked).notes)


# --- A server beside each engine -------------------------------------------------------------------------------------


def test_each_engine_has_a_server_of_its_own_in_a_network_of_their_own() -> None:
    found = texts(mirrored(Mirror.LMCACHE, "chat", "coder"))
    for name in ("chat", "coder"):
        server, engine = found[f"winhost-engine-{name}--lmcache.service"], found[f"winhost-engine-{name}.service"]
        assert f"--name=winhost-engine-{name}--lmcache --rm --pull=never --network=none --ipc=host" in server
        assert "--l1-size-gb=10 --eviction-policy=LRU" in server
        assert '"--device=nvidia.com/gpu=all"' in server
        assert f'"--network=container:winhost-engine-{name}--lmcache"' in engine
        assert f"Requires=winhost-engine-{name}--lmcache.service" in engine
        assert "--network=host" not in engine + server
        extra = config_in(engine)["kv_connector_extra_config"]
        assert extra == {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 5555}
        assert "--port=5555" in server


def test_without_containers_both_have_one_user_and_one_network() -> None:
    found = texts(mirrored(Mirror.LMCACHE, runtime=PROGRAM))
    server, engine = found["winhost-engine-chat--lmcache.service"], found["winhost-engine-chat.service"]
    assert "ExecStart=/opt/vllm/bin/lmcache server --host=127.0.0.1" in server
    for text, other in ((server, "winhost-engine-chat"), (engine, "winhost-engine-chat--lmcache")):
        lines = {*text.splitlines()}
        assert {"User=winhost-chat", "DynamicUser=yes", "PrivateNetwork=yes"} <= lines
        assert f"JoinsNamespaceOf={other}.service" in lines


@pytest.mark.parametrize("through", Mirror)
@pytest.mark.parametrize("runtime", ["podman", PROGRAM])
def test_systemd_finds_nothing_wrong_with_its_units(through: Mirror, runtime: str, tmp_path: Path) -> None:
    """Programs are not where the units say, which alone may be said."""
    names = ("winhost-engine-", "winhost-kv-prune")
    for name, text in texts(mirrored(through, "chat", runtime=runtime)).items():
        if Path(name).name.startswith(names) and Path(name).suffix in (".service", ".timer"):
            (tmp_path / Path(name).name).write_text(text)
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        )
    except FileNotFoundError:
        pytest.skip("no systemd-analyze")
    ours = [line for line in done.stderr.splitlines() if "winhost-" in line and "is not executable" not in line]
    assert ours == []


# --- There and back --------------------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("through", Mirror)
def test_it_is_applied_verified_and_taken_back(through: Mirror, tmp_path: Path) -> None:
    here = served_world(tmp_path, mirrored(through, runtime="docker"))
    before = here.state()
    assert here.apply(here.plan()).holds
    assert here.own.linux.part(ServedEngines).serves()
    units = here.own.linux.part(ServedEngines).units
    if through is Mirror.LMCACHE:
        assert units["winhost-engine-chat--lmcache.service"]["active"] is True
    else:
        assert here.own.linux.systemd.state("winhost-kv-prune.timer")["active"] is True
    assert here.apply(here.plan()).changed == 0
    assert here.rollback().outcome == "rolled back"
    assert here.state() == before


@pytest.mark.costly
@pytest.mark.parametrize(
    ("path", "through", "unit"),
    [("wsl2", "tiers", "winhost-engine-chat.service"), ("dda", "lmcache", "winhost-engine-chat--lmcache.service")],
)
def test_from_windows_it_is_one_plan_too(tmp_path: Path, path: str, through: str, unit: str) -> None:
    here = windows(tmp_path, path)
    with hub_of_model() as hub:
        join(here, tmp_path, hub, more={"kv_mirror": {"through": through, "staging": "1 GiB"}, "video": VIDEO})
        assert here.apply(here.plan(), CONSENTS).holds
    assert inside(here).part(ServedEngines).units[unit]["active"] is True
    assert "ffmpeg" in inside(here).apt.packages
    assert here.rollback(CONSENTS).outcome == "rolled back"


# --- Two engines of one model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["podman", PROGRAM])
def test_both_engines_of_a_model_have_one_folder_and_one_user(runtime: str) -> None:
    plain = mirrored(Mirror.TIERS, runtime=runtime)
    found = texts(replace(plain, workload=replace(plain.workload, availability=Availability(standby=("chat",)))))
    units = {name: text for name, text in found.items() if name.startswith("winhost-engine-")}
    assert [*units] == ["winhost-engine-chat.service", "winhost-engine-chat-standby.service"]
    first, second = map(config_in, units.values())
    assert first == second
    assert first["kv_connector_extra_config"]["secondary_tiers"][0]["root_dir"] == "/var/lib/winhost-kv-chat"
    for text in units.values():
        assert "PYTHONHASHSEED=0" in text
        if runtime == PROGRAM:  # one user that exists while either runs: systemd gives the folder to nobody else
            lines = {*text.splitlines()}
            assert {"User=winhost-chat", "DynamicUser=yes", "StateDirectory=winhost-kv-chat"} <= lines
        else:
            assert "/var/lib/winhost-kv-chat:/var/lib/winhost-kv-chat" in text
            assert "/srv/winhost/models/chat:/model:ro" in text
    assert "winhost-kv-chat-standby" not in str(found)


# --- What does not go together ---------------------------------------------------------------------------------------


def test_tiers_beside_a_sleep_that_was_asked_for_are_refused_by_name() -> None:
    asleep = {"state": ModelState.SLEEPING, "sleep_level": 1}
    with pytest.raises(RefusedError, match="tiers does not go with") as refused:
        made(mirrored(Mirror.TIERS, vllm="0.23.0", **asleep))
    assert refused.value.code == "MirrorConflict"
    assert "[kv-write-through.with-sleep: tiers, and asleep: chat]" in refused.value.meaning


def test_tiers_of_models_whose_rest_is_left_open_are_stopped_instead() -> None:
    found = made(mirrored(Mirror.TIERS, vllm="0.23.0", state=ModelState.SLEEPING))
    (settings,) = (text for name, text in _files(found) if name.endswith("settings.json"))
    assert json.loads(settings)["models"][0]["turns"]["between"] == "stop"


def _files(found: Stack) -> list[tuple[str, str]]:
    entries: list[Any] = list(found.entries)
    return [(each["key"]["path"], each["desired"]["text"]) for each in entries if each["resource"] == "LinuxFile"]


def test_a_server_that_maps_what_is_to_be_suspended_is_refused_by_name() -> None:
    asked = mirrored(Mirror.LMCACHE, runtime=PROGRAM, state=ModelState.SLEEPING, suspend=True)
    with pytest.raises(RefusedError, match="lmcache does not go with") as refused:
        made(asked)
    assert "[kv-lmcache.suspended: suspended: chat]" in refused.value.meaning
    driver = replace(asked.workload, versions={**asked.workload.versions, "driver": Version("610.10")})
    assert made(replace(asked, workload=driver)).entries


def test_files_of_kv_need_a_vllm_that_has_them() -> None:
    with pytest.raises(RefusedError, match="does not offer what this workload takes") as refused:
        made(mirrored(Mirror.TIERS, vllm="0.21.0"))
    assert "kv-write-through.old-vllm" in refused.value.meaning


# --- What keeps it small ---------------------------------------------------------------------------------------------

FILES = st.lists(st.tuples(st.floats(0, 10_000), st.integers(0, 1000)), max_size=30)


@given(FILES, st.integers(0, 10_000))
def test_no_more_goes_than_has_to_and_the_least_used_first(files: list[tuple[float, int]], most: int) -> None:
    now = 5_000.0
    told = [(used, size, "a", str(number)) for number, (used, size) in enumerate(files)]
    gone = {int(name) for _, name in prune_kv.least_recently_used(told, most, now)}
    kept = [each for number, each in enumerate(files) if number not in gone]
    old = [size for used, size in kept if used <= now - prune_kv.YOUNG_S]
    left = sum(size for _, size in kept)
    assert left <= most or not old, "what is old goes until the rest fits"
    assert all(files[number][0] <= now - prune_kv.YOUNG_S for number in gone)
    if gone:
        last = max(gone, key=lambda number: (files[number][0], files[number][1]))
        assert left + files[last][1] > most, "the last one had to go"
        assert all(used >= files[last][0] for used, _ in kept)


def test_files_go_and_links_lead_nowhere(tmp_path: Path) -> None:
    """As systemd makes it: a link to a folder that the engine owns, in which it put links to others' files."""
    private, others = tmp_path / "private", tmp_path / "others"
    (private / "deep/er").mkdir(parents=True)
    others.mkdir()
    (others / "kept").write_bytes(b"k" * 900)
    for number in range(5):
        file = private / f"deep/er/{number}"
        file.write_bytes(b"x" * 100)
        os.utime(file, (number, number))
    (private / "config.json").write_text("{}" * 100)
    os.utime(private / "config.json", (0, 0))
    (private / "link").symlink_to(others)
    (private / "deep/file").symlink_to(others / "kept")
    mirror = tmp_path / "mirror"
    mirror.symlink_to(private)
    program = Path(prune_kv.__file__)
    done = subprocess.run(
        [sys.executable, "-I", str(program), "300", str(mirror), str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (private / "deep/er").iterdir()) == ["3", "4"] or sorted(
        path.name for path in (private / "deep/er").iterdir()
    ) == ["2", "3", "4"]
    assert (others / "kept").read_bytes() == b"k" * 900
    assert (private / "config.json").exists(), "blocks are of no use without it"
