"""What compose itself makes of our projects: three versions of it, as Ubuntu and Debian package them."""

import json
import subprocess
import urllib.request
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.cases import FASTEST
from tests.house.tree import HOUSE
from tests.processes import PATIENCE_S
from tests.serving.docker_api import serving_docker
from tests.serving.situations import linux, shipped
from tests.serving.stacks import request
from tests.serving.test_compose_project import asked, made
from winhost.model.secrets import SecretRef
from winhost.serving.choice import serving
from winhost.serving.engine_files import ServedEngine

pytestmark = pytest.mark.real

_UBUNTU = "http://archive.ubuntu.com/ubuntu/pool/universe/d/docker-compose-v2/docker-compose-v2_"
PACKAGES = {
    "2.24": (
        f"{_UBUNTU}2.24.6+ds1-0ubuntu2_amd64.deb",
        "db03a75e26c64e45e8febfd8bff877f9a1c405a0888cde7bebdb17368c6a9908",
    ),
    "2.26": (
        "http://deb.debian.org/debian/pool/main/d/docker-compose/docker-compose_2.26.1-4_amd64.deb",
        "47681197cb2b1ab88206b42a1a92fc75f50d9530a6322d03494a473eed0408ea",
    ),
    "2.40": (
        f"{_UBUNTU}2.40.3+ds1-0ubuntu1~24.04.1_amd64.deb",
        "192f3df16d0c832e1cbf2362889da56522267835cfb19541241b3dd0ed964039",
    ),
}
Compose = Callable[[str], dict[str, Any]]
GPUS = {
    "linux": {"Driver": "cdi", "Count": 0, "DeviceIDs": ["nvidia.com/gpu=all"]},
    "wsl2": {"Driver": "nvidia", "Count": -1, "DeviceIDs": None},
}


@pytest.fixture(scope="module", params=PACKAGES)
def program(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Path:
    return compose_program(request.param, pytestconfig.cache.mkdir("compose"))


@pytest.fixture(scope="module")
def compose(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Compose:
    folder = tmp_path_factory.mktemp("project")

    def parsed(text: str) -> dict[str, Any]:
        (folder / "compose.yaml").write_text(text)
        found: dict[str, Any] = json.loads(run(program, folder, "config", "--format", "json"))
        return found

    return parsed


def run(program: Path, folder: Path, *words: str, **environment: str) -> str:
    environment["HF_TOKEN"] = "hf_of-the-user"
    command = [program, "--file", folder / "compose.yaml", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compose_program(version: str, folder: Path) -> Path:
    """Compose's own program, of a package that is known by its hash."""
    address, digest = PACKAGES[version]
    place = folder / version
    if not place.exists():
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                package = answer.read()
        except OSError as error:
            pytest.skip(f"compose {version} cannot be fetched: {error}")
        assert sha256(package).hexdigest() == digest
        (folder / f"{version}.deb").write_bytes(package)
        subprocess.run(["dpkg-deb", "--extract", folder / f"{version}.deb", place], check=True, timeout=PATIENCE_S)
    return place / "usr/libexec/docker/cli-plugins/docker-compose"


def test_the_project_of_an_engine_is_what_we_mean(compose: Compose) -> None:
    plain = request("chat")
    served = serving(linux("ubuntu-2xh100"), plain.workload).models[0]
    files = ServedEngine(served, "compose", plain.image and plain.image.pinned).files
    service = compose(files["compose.yaml"])["services"]["engine"]
    assert (service["network_mode"], service["cap_drop"], service["shm_size"]) == ("none", ["ALL"], str(8 << 30))
    assert service["stop_grace_period"] == "1m0s"
    assert service["entrypoint"][-1].replace("$$", "$") == 'umask 0007; exec vllm serve "$0" "$@"'


@pytest.mark.parametrize("where", ["linux", "wsl2"])
def test_a_rendered_project_is_what_we_mean(compose: Compose, where: str) -> None:
    project = made(asked("chat", "coder"), linux("ubuntu-2xh100") if where == "linux" else shipped("win11-pro-1gpu"))
    ours, found = yaml.load(project.text, FASTEST), compose(project.text)
    assert found["services"].keys() == ours["services"].keys()
    for name, service in ours["services"].items():
        for key in (
            "command",
            "entrypoint",
            "cap_drop",
            "network_mode",
            "user",
            "read_only",
            "security_opt",
            "profiles",
        ):
            assert found["services"][name].get(key) == service.get(key), (name, key)
        ours_waits = {each: when["condition"] for each, when in service.get("depends_on", {}).items()}
        waits = {each: when["condition"] for each, when in found["services"][name].get("depends_on", {}).items()}
        assert waits == ours_waits
    for name, config in ours["configs"].items():
        assert found["configs"][name]["content"].replace("$$", "$") == config["content"].replace("$$", "$")


def test_a_token_is_asked_for_where_it_is_started(compose: Compose) -> None:
    project = made(asked(token=SecretRef("env", "MY_TOKEN")))
    assert compose(project.text)["services"]["model-chat"]["environment"]["HF_TOKEN"] == "hf_of-the-user"


@pytest.mark.parametrize("where", GPUS)
def test_docker_is_asked_for_what_we_mean(program: Path, where: str) -> None:
    """A name of CDI among `devices` came to Docker as the path of a device, by compose before 2.30."""
    project = made(asked("chat"), linux("ubuntu-2xh100") if where == "linux" else shipped("win11-pro-1gpu"))
    with TemporaryDirectory(dir="/tmp") as name, serving_docker(Path(name) / "docker.sock") as api:
        (Path(name) / "compose.yaml").write_text(project.text)
        run(program, Path(name), "create", "--no-build", DOCKER_HOST=f"unix://{name}/docker.sock")
    engine, gateway = api.created["winhost-engine-chat-1"], api.created["winhost-gateway-1"]
    (gpus,) = engine["HostConfig"]["DeviceRequests"]
    assert {key: gpus[key] for key in GPUS[where]} == GPUS[where]
    assert not engine["HostConfig"]["Devices"]
    assert (engine["HostConfig"]["NetworkMode"], engine["HostConfig"]["ShmSize"]) == ("none", 8 << 30)
    assert not gateway["HostConfig"]["DeviceRequests"]
    assert (gateway["User"], gateway["HostConfig"]["CapDrop"]) == ("65534:0", ["ALL"])
    assert api.volumes["winhost_socket-chat"]["DriverOpts"] == {
        "type": "tmpfs",
        "device": "tmpfs",
        "o": "mode=0770",
    }
    for path in [path for path in api.put if path.endswith(".py")]:  # later ones put files when they start it
        assert api.put[path] == (HOUSE / "gateway" / Path(path).name).read_text()
