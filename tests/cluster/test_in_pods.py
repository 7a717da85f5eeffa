"""What runs in pods, run for real: the model's download, a Ray group's start, and the gateway as it is mounted."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.cluster.clusters import WORKLOADS, made, the
from tests.processes import PATIENCE_S, started
from winhost.cluster import fetch_model

SCRIPTS = Path(fetch_model.__file__).parent
WEIGHTS, CONFIG = b"weights" * 1000, b"{}"
LISTED = [
    f"sha256:{hashlib.sha256(WEIGHTS).hexdigest()} {len(WEIGHTS)} model.safetensors",
    f"git-sha1:{hashlib.sha1(b'blob 2' + bytes(1) + CONFIG).hexdigest()} {len(CONFIG)} sub/config.json",
]
# The library that vLLM's image has, as far as it is asked: it writes what it was told, and where.
HUB = """
import json, os
from pathlib import Path

class Entry:
    def __init__(self, **said):
        self.__dict__.update(said)

class HfApi:
    def __init__(self, endpoint):
        assert endpoint == os.environ["HF_ENDPOINT"]

    def list_repo_tree(self, repo, *, recursive, revision, token):
        with open(os.environ["SAID"], "a") as file:
            file.write(json.dumps(["list", repo, revision, token]) + "\\n")
        yield Entry(path="sub", tree_id="x")
        for line in json.loads(os.environ["LISTS"]):
            kind, size, path = line.split(" ", 2)
            digest = kind.partition(":")[2]
            lfs = Entry(sha256=digest, size=int(size)) if kind.startswith("sha256") else None
            yield Entry(path=path, size=int(size), blob_id=digest, lfs=lfs)

def snapshot_download(repo, *, revision, local_dir, allow_patterns, token):
    said = [os.environ["HF_ENDPOINT"], repo, revision, sorted(allow_patterns), token]
    with open(os.environ["SAID"], "a") as file:
        file.write(json.dumps(said) + "\\n")
    for name, text in json.loads(Path(os.environ["SERVES"]).read_text()).items():
        path = Path(local_dir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
"""


class Download:
    """One pod's volume, and a hub beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("lib", "volume"):
            (folder / name).mkdir()
        (folder / "lib/huggingface_hub.py").write_text(HUB)
        (folder / "said").touch()
        listing = {"source": "https://hub.example.com/org/model", "revision": "a" * 40, "files": LISTED}
        (folder / "model.json").write_text(json.dumps(listing))
        self.serves({"model.safetensors": WEIGHTS.decode(), "sub/config.json": CONFIG.decode()})

    def serves(self, files: dict[str, str]) -> None:
        (self.folder / "serves.json").write_text(json.dumps(files))

    def run(self, **more: str) -> subprocess.CompletedProcess[str]:
        here = {"PYTHONPATH": str(self.folder / "lib"), "SAID": str(self.folder / "said"), "LISTS": json.dumps(LISTED)}
        environment = {**os.environ, **here, "SERVES": str(self.folder / "serves.json"), **more}
        words = [sys.executable, str(SCRIPTS / "fetch_model.py"), "model.json", "volume/model"]
        return subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )

    @property
    def said(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "said").read_text().splitlines()]


def test_a_model_comes_at_its_commit_and_once(tmp_path: Path) -> None:
    here = Download(tmp_path)
    assert here.run(HF_TOKEN="hf_secret").returncode == 0
    names = ["model.safetensors", "sub/config.json"]
    assert here.said == [["https://hub.example.com", "org/model", "a" * 40, names, "hf_secret"]]
    assert (tmp_path / "volume/kv").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "volume/cache").is_dir()
    assert here.run().returncode == 0
    assert len(here.said) == 1, "what was checked is not asked for again"
    (tmp_path / "volume/model/model.safetensors").write_bytes(b"other")
    assert here.run().returncode == 0
    assert (tmp_path / "volume/model/model.safetensors").read_bytes() == WEIGHTS
    assert here.said[-1][-1] is False, "without a token none is looked for"


def test_files_that_the_manifests_do_not_list_are_asked_for_once(tmp_path: Path) -> None:
    here = Download(tmp_path)
    listing = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**listing, "files": None}))
    here.serves({"model.safetensors": "changed" * 1000, "sub/config.json": CONFIG.decode()})
    assert (here.run().returncode, here.run().returncode) == (1, 1)
    here.serves({"model.safetensors": WEIGHTS.decode(), "sub/config.json": CONFIG.decode()})
    assert (here.run(LISTS="[]").returncode, here.run(LISTS="[]").returncode) == (0, 0)
    asked = [each[0] for each in here.said]
    assert (asked.count("list"), len(asked)) == (1, 4)
    (tmp_path / "volume/model" / fetch_model.LISTED_FILE).unlink()
    assert here.run(LISTS=json.dumps([f"git-sha1:{'a' * 40} 2 ../../x"])).returncode == 1


def test_of_a_group_one_fetches_and_the_others_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Download(tmp_path)
    monkeypatch.setattr(fetch_model, "POLL_SECONDS", 0.05)
    ended: list[int] = []
    words = (str(tmp_path / "model.json"), str(tmp_path / "volume/model"), "wait")
    waits = Thread(target=lambda: ended.append(fetch_model.main(*words)), daemon=True)
    waits.start()
    assert here.run().returncode == 0
    waits.join(PATIENCE_S)
    assert (ended, len(here.said)) == ([0], 1)


@pytest.mark.parametrize("wrong", ["changed" * 1000, "short"])
def test_a_file_with_another_hash_or_size_is_not_taken(wrong: str, tmp_path: Path) -> None:
    here = Download(tmp_path)
    here.serves({"model.safetensors": wrong, "sub/config.json": CONFIG.decode()})
    done = here.run()
    assert done.returncode == 1
    assert done.stderr == "model.safetensors came with another hash or size\n"
    assert not (tmp_path / "volume/model/model.safetensors").exists()
    assert not (tmp_path / "volume/model" / fetch_model.CHECKED_FILE).exists()


def ray(folder: Path, script: str) -> dict[str, str]:
    """`ray`, and a `python3` that counts nodes: one more each time."""
    (folder / "ray").write_text(f'#!/bin/sh\necho "$@" >> {folder}/said\n{script}\n')
    (folder / "python3").write_text(f"#!/bin/sh\necho x >> {folder}/asked\nwc -l < {folder}/asked\n")
    (folder / "sleep").write_text("#!/bin/sh\n")
    for name in ("ray", "python3", "sleep"):
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "VLLM_HOST_IP": "10.42.0.7"}


def group(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(SCRIPTS / "ray_group.sh"), *words]
    return subprocess.run(command, env=ray(folder, script), capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_leader_waits_for_all_nodes_and_becomes_the_engine(tmp_path: Path) -> None:
    done = group(tmp_path, "exit 0", "leader", "3", "echo", "serve", "a b")
    assert done.stdout == "serve a b\n"
    assert len((tmp_path / "asked").read_text().splitlines()) == 3
    said = (tmp_path / "said").read_text()
    assert said.startswith("start --head --port=6379 --node-ip-address=10.42.0.7")
    assert "--include-dashboard=false" in said


def test_a_worker_joins_as_soon_as_there_is_a_head(tmp_path: Path) -> None:
    second = f"[ $(wc -l < {tmp_path}/said) -ge 2 ]"
    done = group(tmp_path, second, "worker", "engine-wide-0.engine-wide.winhost")
    assert done.returncode == 0
    first, *_ = lines = (tmp_path / "said").read_text().splitlines()
    assert len(lines) == 2
    assert "--address=engine-wide-0.engine-wide.winhost:6379" in first


def test_the_gateway_runs_as_it_is_mounted(tmp_path: Path) -> None:
    found = made(WORKLOADS["one"])
    pod = the(found, "Deployment", "gateway")["spec"]["template"]["spec"]
    data = the(found, "ConfigMap", "gateway")["data"]
    (secret,) = (each for each in found.manifests if each["kind"] == "Secret")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = json.loads(data["settings.json"])
    data = {**data, "settings.json": json.dumps({**settings, "listen": {"address": "127.0.0.1", "port": port}})}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in pod["containers"][0]["volumeMounts"]:
        folder = tmp_path / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True)
        for item in volumes[mount["name"]].get("configMap", {}).get("items", []):
            (folder / item["path"]).write_text(data[item["key"]])
    (tmp_path / "run/winhost-keys/keys").write_text(secret["stringData"]["keys"])
    container = pod["containers"][0]
    command = [sys.executable, *container["command"][1:-1], str(tmp_path / container["command"][-1].lstrip("/"))]
    (variable,) = container["env"]
    environment = {**os.environ, variable["name"]: str(tmp_path / variable["value"].lstrip("/"))}
    cwd = tmp_path / container["workingDir"].lstrip("/")
    with started(command, cwd=cwd, env=environment, stderr=subprocess.DEVNULL) as gateway:
        assert _answer(f"http://127.0.0.1:{port}/health") == 200
        assert _answer(f"http://127.0.0.1:{port}/v1/models") == 401
        gateway.terminate()


def _answer(url: str) -> int:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
