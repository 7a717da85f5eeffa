"""What a real kubectl makes of our folders, and of the words that the agent gives it, at an API of a few lines."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.cases import FASTEST
from tests.cluster.clusters import WORKLOADS, made
from tests.linux.test_cluster import CLAIM, ENGINE, PLUGIN, SPACE, listed
from tests.processes import PATIENCE_S
from winhost.cluster.rendering import folder

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not there"),
]

# https://kubernetes.io/docs/reference/using-api/api-concepts/: what kubectl asks before it asks for anything.
KINDS = {
    "v1": {"namespaces": "Namespace", "persistentvolumeclaims": "PersistentVolumeClaim", "secrets": "Secret"},
    "apps/v1": {"daemonsets": "DaemonSet", "deployments": "Deployment"},
}
_OBJECT = re.compile(r"/(?:api|apis/[^/]+)/v1(?:/namespaces/([^/]+)(?=/))?/([a-z]+)(?:/([^/]+))?")


def discovery(path: str) -> Mapping[str, Any] | None:
    """Which kinds there are."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        version = {"groupVersion": "apps/v1", "version": "v1"}
        group = {"name": "apps", "versions": [version], "preferredVersion": version}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    group_version = path.removeprefix("/apis/").removeprefix("/api/")
    if group_version not in KINDS:
        return None
    verbs = ["create", "delete", "get", "list", "patch"]
    resources = [
        {"name": name, "singularName": kind.lower(), "namespaced": kind != "Namespace", "kind": kind, "verbs": verbs}
        for name, kind in KINDS[group_version].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


class Server:
    """objects: by resource, namespace and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        keeps = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, document = keeps.answer(self.command, self.path.partition("?")[0], given)
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, verb: str, path: str, given: bytes) -> tuple[int, Mapping[str, Any]]:
        if found := discovery(path):
            return 200, found
        named = _OBJECT.fullmatch(path)
        if named is None:
            return 404, {"kind": "Status", "reason": "NotFound", "code": 404}
        resource, place = named[2], named[1] or ""
        if verb == "POST":
            made_of = json.loads(given)
            self.objects[resource, place, made_of["metadata"]["name"]] = made_of
            return 201, made_of
        key = (resource, place, str(named[3]))
        if key not in self.objects:
            return 404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": path}
        if verb == "DELETE":
            del self.objects[key]
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return 200, self.objects[key]


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def kubectl(tmp_path: Path, server: Server | None, *words: str, given: str = "") -> str:
    config = tmp_path / "config"
    if server is not None:
        url = f"http://127.0.0.1:{server.http.server_port}"
        contexts = [{"name": "a", "context": {"cluster": "a", "user": "a"}}]
        document = {"clusters": [{"name": "a", "cluster": {"server": url}}], "contexts": contexts}
        users = {"users": [{"name": "a", "user": {}}], "current-context": "a"}
        config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **document, **users}))
    environment = {**os.environ, "KUBECONFIG": str(config), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["kubectl", *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("workload", WORKLOADS)
def test_kustomize_reads_the_folder_as_it_was_made(workload: str, tmp_path: Path) -> None:
    found = made(WORKLOADS[workload], "l4")
    for name, text in folder(found).items():
        (tmp_path / name).write_text(text, "utf-8")
    read = [*yaml.load_all(kubectl(tmp_path, None, "kustomize", str(tmp_path)), FASTEST)]
    assert sorted(map(str, map(_ordered, read))) == sorted(map(str, map(_ordered, found.manifests)))


def _ordered(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, sort_keys=True)


def test_the_words_of_the_agent_mean_what_it_takes_them_for(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "objects.json"
    file.write_text(listed(SPACE, PLUGIN, CLAIM, ENGINE))
    get = ("get", "--filename", str(file), "--ignore-not-found", "--output", "json")
    assert kubectl(tmp_path, server, *get) == "", "of what is not there nothing is told"
    kubectl(tmp_path, server, "apply", "--validate=false", "--filename", str(file))
    assert len(json.loads(kubectl(tmp_path, server, *get))["items"]) == 4
    delete = ("delete", "--namespace", "winhost", "--ignore-not-found")
    for _ in range(2):
        kubectl(tmp_path, server, *delete, "Deployment.apps", "engine-chat")
        kubectl(tmp_path, server, *delete, "PersistentVolumeClaim", "engine-chat")
    plugin = ("--namespace", "kube-system", "--ignore-not-found", "DaemonSet.apps", PLUGIN["metadata"]["name"])
    kubectl(tmp_path, server, "delete", *plugin)
    assert json.loads(kubectl(tmp_path, server, *get))["kind"] == "Namespace", "one is told by itself"


def test_a_secret_comes_by_stdin_and_goes(server: Server, tmp_path: Path) -> None:
    where = ("hub-token", "--namespace", "winhost", "--ignore-not-found")
    place = {"name": "hub-token", "namespace": "winhost"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": place, "stringData": {"token": "x"}}
    kubectl(tmp_path, server, "create", "--validate=false", "--filename", "-", given=json.dumps(secret))
    assert kubectl(tmp_path, server, "get", "secret", *where, "--output", "name") == "secret/hub-token\n"
    for _ in range(2):
        kubectl(tmp_path, server, "delete", "secret", *where)
    assert kubectl(tmp_path, server, "get", "secret", *where, "--output", "name") == ""
