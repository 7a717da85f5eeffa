"""What the demos serve: a workload, a hub that lists its model, a key, and who answers."""

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from winhost.cli.demo_steps import RealEndpoint, environment, run, say
from winhost.core.dataclass import dataclass

MODEL, KEY = "tiny", "DEMO_KEY"
_ID = "demo/tiny"
_REVISION = sha256(b"a model that there is none of").hexdigest()[:40]
_IMAGE = f"registry.example.com/vllm/vllm-openai@sha256:{sha256(b'an image that there is none of').hexdigest()}"
_WORKLOAD = {
    "schema": "winhost.workload/1",
    "models": {
        MODEL: {
            "id": _ID,
            "revision": _REVISION,
            "parameters": 1_000_000_000,
            "dtype": "bfloat16",
            "context": 4096,
            "shape": {"layers": 28, "kv_heads": 4, "head_dim": 128, "hidden": 1536, "vocabulary": 151936},
        }
    },
    "versions": {"vllm": "0.33.0"},
}
_FILES = [
    {"type": "file", "path": "config.json", "size": 2, "oid": "1" * 40},
    {"type": "file", "path": "model.safetensors", "size": 2_000_000_000, "oid": "2" * 40}
    | {"lfs": {"oid": "3" * 64, "size": 2_000_000_000}},
]


@dataclass(frozen=True)
class ServedDemo:
    """words: of `winhost plan`, for the endpoint."""

    words: tuple[str, ...]
    real: RealEndpoint | None

    def ask(self, host: str) -> None:
        """The endpoint of a host, once it serves."""
        if self.real is not None:
            say("The completion above is by a real vLLM on this computer's processor, through a real gateway.")
            return
        run("serve", "test", host, "--key", f"env:{KEY}")
        say("A stand-in of the simulator answered, not a model: make demo-vllm has a real vLLM answer.")


@contextmanager
def served_demo(folder: Path, real: RealEndpoint | None) -> Iterator[ServedDemo]:
    """While this is open, its hub lists the model, and its key is in the environment."""
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump(_WORKLOAD, sort_keys=False), encoding="utf-8")
    with _hub() as hub, environment(**{KEY: real.key if real else secrets.token_hex(32)}):
        named = ("--workload", str(file), "--api-key", f"alice=env:{KEY}")
        yield ServedDemo((*named, "--engine-image", _IMAGE, "--hub", hub), real)


@contextmanager
def _hub() -> Iterator[str]:
    """Lists the files of the model as a hub does, and has none of them: a simulated Linux takes them as downloaded."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there = self.path.startswith(f"/api/models/{_ID}/tree/{_REVISION}")
            content = json.dumps(_FILES if there else {}).encode()
            self.send_response(200 if there else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
