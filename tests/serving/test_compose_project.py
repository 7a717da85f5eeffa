"""What `winhost render compose` prints: one project, in which only the gateway is reached."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.cases import FASTEST
from tests.serving.situations import linux, model, shipped
from tests.serving.situations import workload as situation
from tests.serving.stacks import FILES, IMAGE, KEY
from winhost.compat.stated import stated_linux
from winhost.gateway.gateway_settings import parse_settings
from winhost.model.errors import UsageError
from winhost.model.measured import AllReduce, Measurement, PartOutcome, ProbeAnswer, ReduceRate
from winhost.model.secrets import SecretRef
from winhost.model.units import GiB
from winhost.model.workload import (
    Availability,
    KvMirror,
    LoadFormat,
    Mirror,
    ModelState,
    Parallel,
    PerKey,
    Workload,
    YieldTo,
)
from winhost.resources.host import HostFacts
from winhost.serving.compose_project import ComposeProject, ComposeRequest, compose_project

REVISION = FILES["revision"]


def asked(*names: str, **changed: Any) -> ComposeRequest:
    """Names of models; what is changed of them, or else of the request."""
    of_request = {key: changed.pop(key) for key in ("listen", "tls", "plain_http", "path", "hub") if key in changed}
    models = tuple(model(name, revision=REVISION, **changed) for name in names or ("chat",))
    plain = ComposeRequest(situation(*models), IMAGE.pinned, (KEY,), ("127.0.0.1", 8443))
    return replace(plain, **of_request)


def made(request: ComposeRequest, facts: HostFacts | None = None) -> ComposeProject:
    return compose_project(facts or linux("ubuntu-2xh100"), request, "0.1.0")


def services(project: ComposeProject) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(project.text, FASTEST)["services"]
    return found


def test_an_engine_has_no_port_and_no_network_and_the_gateway_none_but_its_own() -> None:
    found = services(made(asked("chat", "coder")))
    assert [*found] == ["model-chat", "engine-chat", "model-coder", "engine-coder", "gateway"]
    for service in found.values():
        assert "ports" not in service
        assert "privileged" not in service
        assert (service["image"], service["cap_drop"]) == (IMAGE.pinned, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert {found[name]["network_mode"] for name in ("engine-chat", "engine-coder")} == {"none"}
    assert found["gateway"]["user"] == "65534:0"


def mirrored(through: Mirror) -> ComposeRequest:
    plain = asked("chat", "coder")
    return replace(plain, workload=replace(plain.workload, kv_mirror=KvMirror(through, 10 * GiB, 50 * GiB)))


def test_mirrors_are_volumes_of_their_engines_and_kept_within_their_size() -> None:
    project = made(mirrored(Mirror.TIERS))
    found, document = services(project), yaml.load(project.text, FASTEST)
    assert "kv-chat:/var/lib/winhost-kv-chat" in found["engine-chat"]["volumes"]
    assert not any("kv-coder" in each for each in found["engine-chat"]["volumes"])
    assert {"kv-chat", "kv-coder"} <= document["volumes"].keys()
    prune = found["kv-prune"]
    places = ["/var/lib/winhost-kv-chat", "/var/lib/winhost-kv-coder"]
    assert prune["command"] == ["/opt/winhost/prune_kv.py", str(50 * GiB), *places]
    assert (prune["network_mode"], prune["cap_drop"]) == ("none", ["ALL"])
    assert prune["configs"] == [{"source": "kv-prune", "target": "/opt/winhost/prune_kv.py"}]
    assert "os.unlink" in document["configs"]["kv-prune"]["content"]
    with pytest.raises(ValueError, match="lmcache takes a server beside each engine"):
        made(mirrored(Mirror.LMCACHE))


def test_packed_weights_take_a_plan() -> None:
    with pytest.raises(ValueError, match="load_format: packed takes a step that packs"):
        made(asked("chat", load_format=LoadFormat.PACKED))


@pytest.mark.parametrize(
    "wanted", [{"standby": ("chat",)}, {"idle": 600}, {"yield_to": YieldTo()}, {"test_on_boot": True}]
)
def test_what_takes_a_plan_is_refused_by_name(wanted: dict[str, Any]) -> None:
    plain, (name,) = asked(), wanted
    other = replace(plain.workload, availability=Availability(**wanted))
    with pytest.raises(ValueError, match=rf"availability\.{name}: a plan sets up .* leave it out"):
        made(replace(plain, workload=other))


def test_engines_do_not_reach_each_other() -> None:
    found = services(made(asked("chat", "coder")))
    mounted = {name: {each.split(":")[0] for each in found[name]["volumes"]} for name in found}
    assert mounted["engine-chat"] & mounted["engine-coder"] == {"winhost-vllm"}
    assert mounted["gateway"] == {"socket-chat", "socket-coder"}
    assert all(each.endswith(":ro") for each in found["gateway"]["volumes"])
    volumes = yaml.load(made(asked()).text, FASTEST)["volumes"]
    assert volumes["socket-chat"]["driver_opts"] == {"type": "tmpfs", "device": "tmpfs", "o": "mode=0770"}


def test_the_gateway_finds_what_it_reads() -> None:
    document = yaml.load(made(asked("chat", "coder")).text, FASTEST)
    contents = {
        each["target"]: document["configs"][each["source"]]["content"].replace("$$", "$")
        for each in document["services"]["gateway"]["configs"]
    }
    settings = parse_settings(contents["/opt/winhost/settings.json"])
    assert [*settings.models] == ["chat", "coder"]
    sockets = {str(each.engine.socket).rpartition("/")[0] for each in settings.models.values()}
    assert sockets == {each.split(":")[1] for each in document["services"]["gateway"]["volumes"]}
    assert contents["/run/winhost-credentials/keys"] == f"{KEY}\n"
    for path, text in contents.items():
        if path.endswith(".py"):
            compile(text, path, "exec")
    assert len(contents) == len({*contents}) == len(document["configs"])


def test_limits_of_keys_are_settings_of_the_gateway() -> None:
    plain = asked()
    limited = replace(plain, workload=replace(plain.workload, per_key=PerKey(concurrent=4)))
    settings = yaml.load(made(limited).text, FASTEST)["configs"]["gateway-settings-json"]["content"]
    assert parse_settings(settings).per_key.each.concurrent == 4


def test_engines_of_one_gpu_start_one_after_the_other() -> None:
    found = services(made(asked("chat", "coder")))
    done, well = ({"condition": f"service_{word}"} for word in ("completed_successfully", "healthy"))
    assert found["engine-chat"]["depends_on"] == {"model-chat": done}
    assert found["engine-coder"]["depends_on"] == {"model-coder": done, "engine-chat": well}


@pytest.mark.parametrize("vllm", ["0.24.0", "0.33.0"])
def test_development_mode_is_never_switched_on(vllm: str) -> None:
    turning = asked("chat", "coder", state=ModelState.SLEEPING)
    turning = replace(turning, workload=situation(*turning.workload.models, vllm=vllm))
    project = made(turning)
    found = services(project)
    for name in ("engine-chat", "engine-coder"):
        assert "VLLM_SERVER_DEV_MODE" not in found[name]["environment"]
        assert "--enable-sleep-mode" not in found[name]["command"]
        assert found[name]["profiles"] == ["by-turns"], "two of them would not fit"
    assert any("none of these starts by itself" in note for note in project.notes)


def test_a_model_is_downloaded_at_its_commit_with_a_token_that_does_not_stand_there() -> None:
    request = asked(token=SecretRef("env", "MY_TOKEN"), hub="https://hub.example.com")
    service = services(made(request))["model-chat"]
    assert service["command"] == ["chat", REVISION]
    assert service["environment"]["HF_TOKEN"].startswith("${HF_TOKEN:?")
    assert service["environment"]["HF_ENDPOINT"] == "https://hub.example.com"
    assert "MY_TOKEN" not in made(request).text
    with pytest.raises(UsageError, match="has no revision"):
        made(replace(request, workload=Workload((model(),), versions=request.workload.versions)))


def test_nothing_of_it_is_expanded() -> None:
    request = asked(id="org/${HOME}-$x")
    assert services(made(request))["model-chat"]["command"] == ["org/$${HOME}-$$x", REVISION]
    assert services(made(asked()))["engine-chat"]["entrypoint"][2].endswith('exec vllm serve "$$0" "$$@"')


def test_beyond_the_machine_it_takes_a_certificate_or_the_users_word() -> None:
    with pytest.raises(ValueError, match="can be read on their way"):
        made(asked(listen=("0.0.0.0", 8443)))
    found = services(made(asked(listen=("0.0.0.0", 8443), tls=("/etc/ssl/it.pem", "/etc/ssl/it.key"))))["gateway"]
    assert "/etc/ssl/it.key:/run/winhost-credentials/key:ro" in found["volumes"]
    assert made(asked(listen=("0.0.0.0", 8443), plain_http=True)).notes[-1].startswith("Others reach the endpoint")


def test_gpus_are_those_of_the_facts_or_what_is_said_of_them() -> None:
    linux_of_its_own, wsl = made(asked()), made(asked(path="wsl2"), shipped("win11-pro-1gpu"))
    (by_cdi,), (all_,) = (
        services(each)["engine-chat"]["deploy"]["resources"]["reservations"]["devices"]
        for each in (linux_of_its_own, wsl)
    )
    assert (by_cdi["driver"], by_cdi["device_ids"]) == ("cdi", ["nvidia.com/gpu=all"])
    assert (all_["driver"], all_["count"]) == ("nvidia", "all")
    stated = made(asked(parallel=Parallel(2)), stated_linux("2x48GiB", 256 * GiB))
    assert "--disable-custom-all-reduce" in services(stated)["engine-chat"]["command"], "nobody said that they can"
    for wrong in ("2", "0x48GiB", "2x48", "x"):
        with pytest.raises(ValueError, match="such as 2"):
            stated_linux(wrong, 256 * GiB)


def test_in_a_guest_gpus_copy_to_each_other_once_that_was_measured() -> None:
    guest = linux("ubuntu-2xh100", "microsoft")
    ran = PartOutcome("nccl", "done", 1.8)
    for transports, apart in ((("P2P/CUMEM",), False), (("SHM/direct/direct",), True), (None, True)):
        reduced = AllReduce(22803, 2, transports, (ReduceRate(268435456, 896.0, 299.6),), True) if transports else None
        answer = ProbeAnswer("6.8.0", (ran,), nccl=reduced)
        probe = Measurement("linux", "ubuntu-2xh100", "2026-11-25T00:00:00+00:00", "0" * 64, answer)
        shown = HostFacts(replace(guest.document, measured=(probe,)))
        engine = services(made(asked(parallel=Parallel(2)), shown))["engine-chat"]
        assert ("--disable-custom-all-reduce" in engine["command"]) is apart, transports
        assert (engine["environment"].get("NCCL_P2P_DISABLE") == "1") is apart, transports
