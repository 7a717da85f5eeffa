"""What manifests have to say that no schema asks for."""

import json
import re
from dataclasses import replace
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.cluster.clusters import FFMPEG, IMAGE, WORKLOADS, machine, made, of_kind, pods, request, the, wide
from tests.serving.situations import model
from tests.serving.stacks import FILES, KEY
from winhost.cluster.engine_manifests import EnginePod, engine_manifests
from winhost.cluster.render_request import ClusterRequest, engine_name, literal
from winhost.cluster.rendering import stream
from winhost.gateway.gateway_settings import parse_settings
from winhost.model.errors import RefusedError
from winhost.model.secrets import SecretRef
from winhost.model.units import GiB
from winhost.model.workload import (
    Body,
    Exposure,
    KeyLimit,
    KvMirror,
    LoadFormat,
    Mirror,
    Parallel,
    PerKey,
    Video,
)
from winhost.serving.choice import serving
from winhost.serving.profile import NAMES, profile
from winhost.sizing.memories import engine_ram

PLACES = [(workload, "wsl" if workload == "over-two-gpus" else "l4") for workload in WORKLOADS]


def engine(found: Any, name: str = "engine-chat") -> dict[str, Any]:
    return dict(the(found, "Deployment", name)["spec"]["template"]["spec"])


def vllm(pod: dict[str, Any]) -> dict[str, Any]:
    return dict(pod["containers"][0])


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


# --- The engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workload", "machine"), PLACES)
def test_every_pod_is_shut_in(workload: str, machine: str) -> None:
    """As the standard `restricted` asks, which the namespace enforces; images by their digests."""
    found = made(WORKLOADS[workload], machine)
    (namespace,) = of_kind(found, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(found):
        containers = [*pod.get("initContainers", []), *pod["containers"]]
        assert all(re.search(r"@sha256:[0-9a-f]{64}$", each["image"]) for each in containers)
        assert pod["automountServiceAccountToken"] is False
        for each in containers:
            assert each["securityContext"]["allowPrivilegeEscalation"] is False
            assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in each["resources"]["limits"]
        if pod.get("priorityClassName") != "system-node-critical":
            assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsGroup"]) == (True, 0)
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["enableServiceLinks"] is False
            assert not any("hostPath" in volume for volume in pod["volumes"])


def test_an_engine_is_what_its_profile_says_and_no_development_mode() -> None:
    container = vllm(engine(made(request(model("chat", context=8192)))))
    assert container["command"][:4] == ["vllm", "serve", "/model", "--served-model-name=chat"]
    assert {"--host=0.0.0.0", "--port=8000", "--max-model-len=8192"} <= {*container["command"]}
    assert any(each.startswith("--gpu-memory-utilization=0.") for each in container["command"])
    assert not any(each.startswith(("--uds", "--enable-sleep-mode")) for each in container["command"])
    said = environment(container)
    assert "VLLM_SERVER_DEV_MODE" not in said
    assert said["HF_HUB_OFFLINE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in said, "the plugin shows it its own GPUs alone"


def test_every_option_of_a_container_has_its_place_in_a_pod() -> None:
    """One that profiles get later is not left out unseen."""
    rows = [row for name in NAMES for row in profile(name).rows if row.kind == "container"]
    elsewhere = {"network", "network_of", "mount", "shm", "gpus", "cdi", "ipc"}  # EnginePod says where
    assert {row.name for row in rows} == {*elsewhere, "stop"}
    socket, cache = "${engine.folder}", "${cache.volume}"  # in a pod the socket is a port
    assert {row.value for row in rows if row.name == "mount"} == {socket, cache, "${model.folder}", "${kv.folder}"}


def test_shared_memory_counts_in_the_limit_of_the_pod() -> None:
    tiers = request(kv_mirror=KvMirror(Mirror.TIERS, 10 * GiB))
    for asked, least in ((request(), 8), (tiers, 18), (request(model("chat", parallel=Parallel(2))), 8)):
        pod = engine(made(asked))
        (shm,) = (volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")
        assert shm["medium"] == "Memory"
        size = int(shm["sizeLimit"].removesuffix("Gi"))
        assert size >= least
        memory = vllm(pod)["resources"]["limits"]["memory"]
        assert int(memory.removesuffix("Gi")) * GiB >= size * GiB + engine_ram(asked.workload.models[0])
        assert vllm(pod)["resources"]["requests"]["memory"] == memory
        assert {"name": "shm", "mountPath": "/dev/shm"} in vllm(pod)["volumeMounts"]


def test_a_mirror_is_on_the_volume_and_kept_within_its_size() -> None:
    found = made(WORKLOADS["mirrored"])
    pod = engine(found)
    (config,) = (word for word in vllm(pod)["command"] if word.startswith("--kv-transfer-config="))
    (tier,) = json.loads(config.partition("=")[2])["kv_connector_extra_config"]["secondary_tiers"]
    _, prune = pod["containers"]
    for each in (vllm(pod), prune):
        assert {"name": "model", "mountPath": tier["root_dir"], "subPath": "kv"} in each["volumeMounts"]
    assert prune["command"][-2:] == [str(100 * GiB), tier["root_dir"]]
    assert "prune_kv.py" in the(found, "ConfigMap", "engine-chat")["data"]
    claim = the(found, "PersistentVolumeClaim", "engine-chat")["spec"]["resources"]["requests"]["storage"]
    assert int(claim.removesuffix("Gi")) > 100
    assert "limits" not in prune.get("resources", {}) or "nvidia.com/gpu" not in prune["resources"]["limits"]


def test_no_engine_is_killed_while_it_loads() -> None:
    deployment = the(made(), "Deployment", "engine-chat")["spec"]
    container = vllm(deployment["template"]["spec"])
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 3600
    assert deployment["progressDeadlineSeconds"] > 3600
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    alive = container["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 180
    assert deployment["strategy"] == {"type": "Recreate"}
    assert deployment["template"]["spec"]["terminationGracePeriodSeconds"] > 30


@pytest.mark.parametrize(("machine", "gpus", "visible"), [("metal", "2", None), ("wsl", "1", "0,1")])
def test_gpus_come_from_the_plugin(machine: str, gpus: str, visible: str | None) -> None:
    """In WSL all of them are one device, and the engine takes its own by their numbers."""
    pod = engine(made(request(model("chat", parallel=Parallel(2))), machine))
    assert vllm(pod)["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert pod["runtimeClassName"] == "nvidia"
    assert environment(vllm(pod)).get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize("models", [("a", "b"), ("a", "b", "c")])
def test_models_get_their_gpus_whole(models: tuple[str, ...]) -> None:
    """Another model of the workload takes nothing of a share: it has GPUs of its own, here or on another node."""
    alone = vllm(engine(made(request(model("a"))), "engine-a"))["command"]
    beside = made(request(*map(model, models)))
    assert vllm(engine(beside, "engine-a"))["command"] == alone


def test_what_wsl_cannot_run_is_refused_by_the_rule_that_assess_has() -> None:
    with pytest.raises(RefusedError, match="cannot run the pods") as refused:
        made(request(model("a"), model("b")), "wsl")
    assert "kubernetes-per-gpu.one-device" in str(refused.value.meaning)
    (note,) = (each for each in made(request(), "wsl").notes if "one-device" in each)
    assert "In WSL, all GPUs are one device to Kubernetes" in note


def test_nothing_is_claimed_of_video_on_gpus_without_an_encoder() -> None:
    with pytest.raises(RefusedError) as refused:
        made(request(video=Video(2), video_image=FFMPEG))
    assert "video-codec.no-encoder" in str(refused.value.meaning)


# --- Who reaches what ------------------------------------------------------------------------------------------------


def test_the_gateway_alone_reaches_an_engine() -> None:
    found = made(WORKLOADS["two"])
    closed = the(found, "NetworkPolicy", "closed")["spec"]
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": []}
    for name in ("engine-chat", engine_name("Coder.7B")):
        policy = the(found, "NetworkPolicy", name)["spec"]
        labels = the(found, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        (rule,) = policy["ingress"]
        (peer,) = rule["from"]
        gateway = the(found, "Deployment", "gateway")["spec"]["template"]["metadata"]["labels"]
        assert peer == {"podSelector": {"matchLabels": {"app.kubernetes.io/name": gateway["app.kubernetes.io/name"]}}}
        assert rule["ports"] == [{"protocol": "TCP", "port": 8000}]


def addresses(policy: dict[str, Any], address: str) -> set[int]:
    """The ports at which a policy lets its pods reach an address."""
    ports: set[int] = set()
    for rule in policy["spec"]["egress"]:
        for block in (peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer):
            inside = [ip_address(address) in ip_network(each) for each in (block["cidr"], *block.get("except", ()))]
            if inside[0] and not any(inside[1:]):
                ports |= {each["port"] for each in rule.get("ports", [{"port": 0}])}
    return ports


def peers(policy: dict[str, Any]) -> list[tuple[str, list[int] | None]]:
    """The pods that a policy lets its pods reach, and at what ports; None: all."""
    return [
        (
            next(iter(peer["podSelector"]["matchLabels"].values())),
            [e["port"] for e in rule["ports"]] if "ports" in rule else None,
        )
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        if "podSelector" in peer
    ]


@pytest.mark.parametrize(("workload", "machine"), PLACES)
def test_no_pod_reaches_what_the_workload_does_not_name(workload: str, machine: str) -> None:
    found = made(WORKLOADS[workload], machine)
    named = {each["metadata"]["name"] for each in of_kind(found, "NetworkPolicy")}
    for kind in ("Deployment", "LeaderWorkerSet"):
        assert {each["metadata"]["name"] for each in of_kind(found, kind)} <= named
    for each in of_kind(found, "NetworkPolicy"):
        assert each["spec"]["policyTypes"] == ["Ingress", "Egress"]
        for metadata in ("169.254.169.254", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fe80::1"):
            assert addresses(each, metadata) == set()


def test_an_engine_reaches_the_hub_that_its_files_come_from() -> None:
    public = {"chat": {**FILES, "source": "https://huggingface.co/org/model"}}
    policy = the(made(request(files=public)), "NetworkPolicy", "engine-chat")
    assert peers(policy) == [("kube-dns", [53, 53])]
    assert (addresses(policy, "3.5.7.9"), addresses(policy, "2600:9000::1")) == ({443}, {443})
    for private in ("10.1.2.3", "172.20.0.1", "192.168.1.1", "100.100.100.200", "127.0.0.1", "fd12::1"):
        assert addresses(policy, private) == set()

    own = {"chat": {**FILES, "source": "http://hub.example.com:8080/org/model"}}  # it may be on a private address
    policy = the(made(request(files=own)), "NetworkPolicy", "engine-chat")
    assert (addresses(policy, "10.1.2.3"), addresses(policy, "3.5.7.9")) == ({443, 8080}, {443, 8080})

    own = {"chat": {**FILES, "source": "https://10.1.2.3/org/model"}}
    policy = the(made(request(files=own)), "NetworkPolicy", "engine-chat")
    assert (addresses(policy, "10.1.2.3"), addresses(policy, "10.1.2.4"), addresses(policy, "3.5.7.9")) == (
        {443},
        set(),
        set(),
    )


def test_an_engine_reaches_hosts_of_media_that_the_workload_names() -> None:
    body = Body(media=("images.example.org", "media.example.org:9000"), most={"n": 4})
    files = {"chat": {**FILES, "source": "https://huggingface.co/org/model"}}
    found = made(request(model("chat", body=body), files=files))
    policy = the(found, "NetworkPolicy", "engine-chat")
    assert addresses(policy, "3.5.7.9") == {80, 443, 9000}
    assert addresses(policy, "10.1.2.3") == set()
    command = vllm(engine(found))["command"]
    at = command.index("--allowed-media-domains")
    assert command[at + 1 : at + 3] == ["images.example.org", "media.example.org"]
    assert command[at + 3].startswith("--")
    (published,) = parse_settings(the(found, "ConfigMap", "gateway")["data"]["settings.json"]).models.values()
    assert published.body.media == {"images.example.org", "media.example.org:9000"}
    assert published.body.most == {"n": 4}


def test_an_engine_without_hosts_of_media_fetches_none() -> None:
    container = vllm(engine(made()))
    assert "--allowed-media-domains=media.invalid" in container["command"]
    assert environment(container)["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_the_gateway_reaches_engines_alone_and_nodes_of_a_group_each_other() -> None:
    gateway = the(made(WORKLOADS["two"]), "NetworkPolicy", "gateway")
    engines = [("engine-chat", [8000]), (engine_name("Coder.7B"), [8000])]
    assert peers(gateway) == [("kube-dns", [53, 53]), *engines]
    assert addresses(gateway, "3.5.7.9") == addresses(gateway, "10.1.2.3") == set()
    assert addresses(gateway, "169.254.20.10") == {53}  # the cache of names on a node
    group = the(made(WORKLOADS["over-two-nodes"]), "NetworkPolicy", "engine-wide")
    assert ("engine-wide", None) in peers(group)
    video = the(made(WORKLOADS["with-video"], "l4"), "NetworkPolicy", "ffmpeg")
    assert video["spec"]["egress"] == video["spec"]["ingress"] == []


@pytest.mark.parametrize(
    ("exposure", "kind", "rules"),
    [("loopback", "ClusterIP", 0), ("cluster", "ClusterIP", 1), ("lan", "LoadBalancer", 1)],
)
def test_the_exposure_decides_who_reaches_the_gateway(exposure: str, kind: str, rules: int) -> None:
    found = made(request(exposure=Exposure(exposure), allow=("10.0.0.0/8",)))
    assert len(the(found, "NetworkPolicy", "gateway")["spec"]["ingress"]) == rules
    service = the(found, "Service", "gateway")["spec"]
    assert service["type"] == kind
    assert service.get("loadBalancerSourceRanges") == (["10.0.0.0/8"] if exposure == "lan" else None)


def test_the_gateway_knows_the_proxies_of_the_workload() -> None:
    found = the(made(request(trusted_proxies=("10.42.0.0/16",))), "ConfigMap", "gateway")
    assert [*map(str, parse_settings(found["data"]["settings.json"]).trusted_proxies)] == ["10.42.0.0/16"]


def test_the_gateway_starts_with_its_settings() -> None:
    """They are its own parser's, and lead to Services that are there."""
    found = made(WORKLOADS["two"])
    data = the(found, "ConfigMap", "gateway")["data"]
    settings = parse_settings(data["settings.json"])
    services = {f"{each['metadata']['name']}.winhost.svc" for each in of_kind(found, "Service")}
    assert {published.engine.service for published in settings.models.values()} < services
    assert {"program.py", "front_door.py"} <= data.keys()
    assert sum(map(len, data.values())) < 1_000_000, "a ConfigMap holds 1 MiB"


def test_limits_of_keys_are_settings_of_the_gateway() -> None:
    def limited(name: str) -> ClusterRequest:
        plain = request()
        own = {name: KeyLimit(concurrent=4)}
        return replace(plain, workload=replace(plain.workload, per_key=PerKey(requests_per_minute=60, keys=own)))

    settings = parse_settings(the(made(limited("alice")), "ConfigMap", "gateway")["data"]["settings.json"])
    assert (settings.per_key.keys["alice"].concurrent, settings.per_key.each.requests_per_minute) == (4, 60)
    with pytest.raises(ValueError, match="bob has no API key here"):
        made(limited("bob"))


def test_packed_weights_are_refused_because_no_manifest_packs_them() -> None:
    plain = request()
    models = (replace(plain.workload.models[0], load_format=LoadFormat.PACKED),)
    with pytest.raises(ValueError, match="load_format: packed takes a step that packs"):
        made(replace(plain, workload=replace(plain.workload, models=models)))


def test_a_changed_key_makes_new_pods() -> None:
    def read(**changed: Any) -> str:
        template = the(made(request(**changed)), "Deployment", "gateway")["spec"]["template"]
        return str(template["metadata"]["annotations"]["winhost/read"])

    assert read() == read() != read(keys=(KEY.replace("alice", "bob"),))


# --- Secrets ---------------------------------------------------------------------------------------------------------


def test_a_token_is_a_reference_and_a_key_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    asked = request(model("chat", token=SecretRef.parse("env:HF_TOKEN")))
    text = stream(made(asked))
    assert "hf_canary" not in text
    (token,) = (each for each in engine(made(asked))["initContainers"][0]["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub-token", "key": "token"}}
    assert not any(each["name"] == "HF_TOKEN" for each in vllm(engine(made(asked)))["env"]), "the engine needs none"
    (secret,) = of_kind(made(asked), "Secret")
    assert secret["stringData"] == {"keys": f"{KEY}\n"}


def test_keys_may_be_in_the_cluster_already() -> None:
    found = made(WORKLOADS["bare"])
    assert of_kind(found, "Secret") == []
    (keys,) = (
        each
        for each in the(found, "Deployment", "gateway")["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "keys"
    )
    assert keys["projected"]["sources"][0]["secret"]["name"] == "mine"


# --- Models ----------------------------------------------------------------------------------------------------------


def test_the_volume_holds_the_model_and_the_engine_only_reads_it() -> None:
    found = made()
    claim = the(found, "PersistentVolumeClaim", "engine-chat")["spec"]
    assert int(claim["resources"]["requests"]["storage"].removesuffix("Gi")) * GiB > 15_000_000_000
    (mount,) = (each for each in vllm(engine(found))["volumeMounts"] if each["mountPath"] == "/model")
    assert mount["readOnly"] is True
    listing = json.loads(the(found, "ConfigMap", "engine-chat")["data"]["model.json"])
    assert listing == {name: FILES[name] for name in ("source", "revision", "files")}


def test_one_model_over_nodes_is_a_group_whose_leader_serves() -> None:
    found = made(request(wide()))
    group = the(found, "LeaderWorkerSet", "engine-wide")["spec"]["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    leader, worker = (group[each]["spec"]["containers"][0] for each in ("leaderTemplate", "workerTemplate"))
    spread = {"--tensor-parallel-size=2", "--pipeline-parallel-size=2", "--distributed-executor-backend=mp"}
    spread |= {"--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)"}
    assert spread <= {*leader["command"]}
    assert worker["command"] == [*leader["command"], "--headless"]
    assert "ray_group.sh" not in the(found, "ConfigMap", "engine-wide")["data"]
    assert "startupProbe" in leader
    assert "startupProbe" not in worker
    roles = [group[each]["spec"]["initContainers"][0]["command"][-1] for each in ("leaderTemplate", "workerTemplate")]
    assert roles == ["fetch", "wait"], "they share a volume"
    for each in (leader, worker):
        assert each["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert environment(each)["VLLM_HOST_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    names = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index"
    service = the(found, "Service", "engine-wide")["spec"]["selector"]
    assert service == dict(zip(names, ("engine-wide", "0"), strict=True))
    assert the(found, "PersistentVolumeClaim", "engine-wide")["spec"]["accessModes"] == ["ReadWriteMany"]
    gateway, itself = the(found, "NetworkPolicy", "engine-wide")["spec"]["ingress"]
    assert gateway["ports"]
    assert itself == {"from": [{"podSelector": {"matchLabels": {names[0]: "engine-wide"}}}]}


@pytest.mark.parametrize(("vllm_version", "ray"), [("0.18.1", False), ("0.33.0", True)])
def test_nodes_are_tied_together_by_ray_where_the_image_has_it(vllm_version: str, ray: bool) -> None:
    asked = request(wide(), ray=ray)
    asked = replace(asked, workload=replace(asked.workload, versions={"vllm": Version(vllm_version)}))
    found = made(asked)
    group = the(found, "LeaderWorkerSet", "engine-wide")["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[each]["spec"]["containers"][0]["command"] for each in ("leaderTemplate", "workerTemplate"))
    assert leader[:4] == ["/bin/sh", "/winhost/ray_group.sh", "leader", "$(LWS_GROUP_SIZE)"]
    assert "--distributed-executor-backend=ray" in leader
    assert not any(word.startswith("--nnodes") for word in leader)
    assert worker == ["/bin/sh", "/winhost/ray_group.sh", "worker", "$(LWS_LEADER_ADDRESS)"]
    assert "ray_group.sh" in the(found, "ConfigMap", "engine-wide")["data"]


@given(st.text())
def test_nothing_of_a_word_is_expanded(word: str) -> None:
    """As the kubelet reads it: `$(NAME)` is a variable, and `$$` a dollar sign that begins none."""
    assert re.sub(r"\$\$\(", "$(", literal(word)) == re.sub(r"\$\$\(", "$(", word.replace("$(", "$$("))
    assert not re.search(r"(?<!\$)\$\(", literal(word))


def test_a_manifest_says_what_nobody_has_seen() -> None:
    text = stream(made(request(wide())))
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    assert any("not seen them in a real cluster" in line for line in comments)
    assert any("LeaderWorkerSet" in line for line in comments)
    assert IMAGE in text


@cache
def _served() -> Any:
    return serving(machine("metal"), request().workload).models[0]


@given(
    tensor=st.integers(1, 8),
    stages=st.integers(1, 4),
    nodes=st.integers(1, 4),
    copies=st.integers(1, 4),
    staging=st.none() | st.integers(1, 1 << 42),
    weights=st.integers(1, 1 << 44),
)
def test_a_pod_has_room_for_what_its_engine_takes_whatever_the_workload(
    tensor: int, stages: int, nodes: int, copies: int, staging: int | None, weights: int
) -> None:
    chat = model("chat", parallel=Parallel(tensor, stages * nodes, 1 if nodes > 1 else copies, nodes))
    files = {"chat": {**FILES, "files": [f"sha256:{'ef' * 32} {weights} model.safetensors"]}}
    asked = request(chat, files=files, kv_mirror=KvMirror(Mirror.TIERS, staging) if staging else None)
    found = EnginePod(asked, chat, _served(), shared=False)
    memory = found.spec.container.memory
    assert memory is not None
    assert found.shared_memory % GiB == memory % GiB == 0
    assert found.shared_memory >= 8 * GiB + (staging or 0) * chat.parallel.data
    assert memory >= found.shared_memory + engine_ram(chat)
    manifests = {each["kind"]: each for each in list[Any](engine_manifests(found))}
    claim = manifests["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"]
    assert int(claim.removesuffix("Gi")) * GiB > weights
    serves = manifests["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["leaderTemplate"] if nodes > 1 else None
    pod = (serves or manifests["Deployment"]["spec"]["template"])["spec"]
    assert (
        int(vllm(pod)["resources"]["limits"]["nvidia.com/gpu"]) * nodes == tensor * stages * nodes * chat.parallel.data
    )
