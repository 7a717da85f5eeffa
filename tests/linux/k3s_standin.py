#!/usr/bin/python3
"""A stand-in for the program k3s: its documented commands `server`, `agent` and `kubectl`, as far as winhost uses
them. `server` and `agent` read /etc/rancher/k3s/config.yaml, refuse options that k3s does not have, notify systemd
when they are ready, and run until they are stopped. A server has an API: nodes join it with its token, and manifests
are applied to it. Deployments become available after some requests; the device plugin makes nodes offer GPUs; a
gateway answers /ready.
"""

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONFIG, DATA = Path("/etc/rancher/k3s/config.yaml"), Path("/var/lib/rancher/k3s")
ADMIN = Path("/etc/rancher/k3s/k3s.yaml")
KUBELET = DATA / "agent/kubelet.kubeconfig"
# https://docs.k3s.io/cli/agent, all of which a server has as well, and https://docs.k3s.io/cli/server
OF_AGENTS = {"server", "token", "token-file", "node-name", "node-label", "node-taint", "node-ip", "flannel-iface"}
OF_SERVERS = {"disable", "write-kubeconfig-mode", "secrets-encryption", "tls-san", "cluster-init"}
GPU = "nvidia.com/gpu"
AVAILABLE_AFTER = 2  # requests


def fail(message):
    sys.stderr.write(message + "\n")
    sys.exit(1)


def config():
    """Parse lines of `key: value`, and lists of `- value` below a key."""
    found, key = {}, ""
    for line in CONFIG.read_text().splitlines() if CONFIG.exists() else []:
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(("- ", "  - ")):
            found[key] = [*(found.get(key) or []), json_or_text(line.strip()[2:])]
        else:
            key, _, value = line.partition(":")
            found[key] = json_or_text(value.strip())
    return found


def json_or_text(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def run(role):
    options = config()
    unknown = set(options) - OF_AGENTS - (OF_SERVERS if role == "server" else set())
    if unknown:
        fail("flag provided but not defined: -" + sorted(unknown)[0])
    if role == "agent" and not options.get("server"):
        fail("--server is required")
    token = options.get("token") or (Path(options["token-file"]).read_text().strip() if "token-file" in options else "")
    if role == "agent" and not token:
        fail("--token is required")
    node = {"name": options.get("node-name") or socket.gethostname(), "labels": options.get("node-label") or []}
    images = sorted(each.name for each in (DATA / "agent/images").glob("*.tar*"))
    if role == "server":
        begin(Api(token or secrets.token_hex(16)), node, options)
    else:
        join(options["server"], token, node)
    (DATA / "agent").mkdir(parents=True, exist_ok=True)
    (DATA / "agent/imported").write_text(json.dumps(images))
    tell_systemd()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        time.sleep(3600)


def begin(api, node, options):
    (DATA / "server").mkdir(parents=True, exist_ok=True)
    (DATA / "server/node-token").write_text(api.token + "\n")
    server = ThreadingHTTPServer(("127.0.0.1", 6443), api.handler())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    api.nodes[node["name"]] = node
    write_kubeconfig(ADMIN, "http://127.0.0.1:6443", int(str(options.get("write-kubeconfig-mode", "0600")), 8))
    write_kubeconfig(KUBELET, "http://127.0.0.1:6443", 0o600)


def join(server, token, node):
    request = urllib.request.Request(server + "/join", json.dumps({"token": token, "node": node}).encode())
    try:
        urllib.request.urlopen(request, timeout=300).close()
    except urllib.error.HTTPError as error:
        fail(f"failed to validate token: {error.code}")
    except OSError as error:
        fail(f"failed to get CA certs: {error}")
    write_kubeconfig(KUBELET, server, 0o600)


def write_kubeconfig(path, server, mode):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"server": server}))
    path.chmod(mode)


def tell_systemd():
    to = os.environ.get("NOTIFY_SOCKET", "")
    if to:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(b"READY=1", "\0" + to[1:] if to.startswith("@") else to)


class Api:
    def __init__(self, token):
        self.token, self.nodes, self.objects, self.asked = token, {}, {}, {}
        self.gateway = None

    def apply(self, items):
        for each in items:
            name, kind = each["metadata"]["name"], each["kind"]
            namespace = each["metadata"].get("namespace", "")
            if namespace not in ("", "kube-system", "default") and ("Namespace", "", namespace) not in self.objects:
                raise ValueError(f'namespaces "{namespace}" not found')
            self.objects[kind, namespace, name] = each
            self.asked.pop((kind, namespace, name), None)
            if kind == "Service" and name == "gateway":
                self.gateway = self.gateway or serve_ready()

    def shown(self, identity):
        found = json.loads(json.dumps(self.objects[identity]))
        found["metadata"]["generation"] = 1
        if identity[0] == "Deployment":
            self.asked[identity] = self.asked.get(identity, 0) + 1
            up = int(self.asked[identity] > AVAILABLE_AFTER)
            found["status"] = {"observedGeneration": 1, "availableReplicas": up, "updatedReplicas": 1}
        if identity[0] == "Service" and identity[2] == "gateway":
            found["spec"]["clusterIP"] = "127.0.0.1"
            found["spec"]["ports"] = [{**found["spec"]["ports"][0], "port": self.gateway, "name": "http"}]
        return found

    def node(self, name):
        labels = dict(each.split("=", 1) for each in self.nodes[name]["labels"])
        plugins = any(kind == "DaemonSet" and "device-plugin" in called for kind, _, called in self.objects)
        offers = {GPU: "2"} if plugins and labels.get("nvidia.com/gpu.present") == "true" else {}
        ready = {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}
        return {
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"conditions": [ready], "allocatable": {"cpu": "8", **offers}},
        }

    def handler(self):
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    status, answer = api.answer(self.path, given)
                except (KeyError, ValueError) as error:
                    status, answer = 404, {"message": str(error)}
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler

    def answer(self, path, given):
        if path == "/join":
            if given["token"] != self.token:
                return 401, {}
            self.nodes[given["node"]["name"]] = given["node"]
            return 200, {}
        if path == "/node":
            if given["name"] not in self.nodes:
                return 404, {"message": "nodes {name} not found".format(**given)}
            return 200, self.node(given["name"])
        if path == "/apply":
            return 200, self.apply(given["items"]) or {}
        if path == "/get":
            there = [tuple(each) for each in given["identities"]]
            return 200, {"kind": "List", "items": [self.shown(each) for each in there if each in self.objects]}
        if path == "/delete":
            return 200, {"gone": self.objects.pop(tuple(given["identity"]), None) is not None}
        return 404, {"message": path}


def serve_ready():
    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503 if Path("/run/models-are-away").exists() else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


# --- kubectl


def understood(words):
    """Parse the options, and return the remaining arguments."""
    options, rest, words = {}, [], list(words)
    while words:
        word = words.pop(0)
        if word == "--ignore-not-found":
            options[word] = True
        elif word.startswith("--"):
            options[word] = words.pop(0)
        else:
            rest.append(word)
    return options, rest


def kubectl(words):
    options, rest = understood(words)
    path = Path(options.get("--kubeconfig", str(ADMIN)))
    if not path.exists():
        fail(f"error: stat {path}: no such file or directory")
    server = json.loads(path.read_text())["server"]
    verb = " ".join(rest[:2]) if rest[0] == "get" else rest[0]
    if verb not in VERBS:
        fail("error: unknown command " + " ".join(rest))
    VERBS[verb](server, options, rest)


def apply(server, options, rest):
    ask(server, "/apply", json.loads(Path(options["--filename"]).read_text()))


def create(server, options, rest):
    ask(server, "/apply", {"items": [json.loads(sys.stdin.read())]})


def get_node(server, options, rest):
    tell(ask(server, "/node", {"name": rest[2]}))


def get_secret(server, options, rest):
    found = ask(server, "/get", {"identities": [["Secret", options["--namespace"], rest[2]]]})
    sys.stdout.write(f"secret/{rest[2]}\n" if found["items"] else "")


def get_listed(server, options, rest):
    items = json.loads(Path(options["--filename"]).read_text())["items"]
    found = ask(server, "/get", {"identities": [identity(each) for each in items]})
    if found["items"]:
        tell(found)


def delete(server, options, rest):
    kind = {"secret": "Secret"}.get(rest[1], rest[1].split(".")[0])
    ask(server, "/delete", {"identity": [kind, options.get("--namespace", ""), rest[2]]})


VERBS = {
    "apply": apply,
    "create": create,
    "delete": delete,
    "get": get_listed,
    "get node": get_node,
    "get secret": get_secret,
}


def tell(document):
    sys.stdout.write(json.dumps(document) + "\n")


def identity(each):
    return [each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]]


def ask(server, path, given):
    try:
        with urllib.request.urlopen(server + path, json.dumps(given).encode(), timeout=300) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        fail("Error from server: " + str(json.loads(error.read()).get("message", error.code)))
    except OSError as error:
        fail(f"The connection to the server {server} was refused - did you specify the right host or port? ({error})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["kubectl"]:
        kubectl(sys.argv[2:])
    elif sys.argv[1:] in (["server"], ["agent"]):
        run(sys.argv[1])
    else:
        fail("No help topic for " + " ".join(sys.argv[1:]))
