"""Where the image of a vLLM's processes ends to be of use: another GPU of the same model, and tensor parallel over two.

    python3 tests/vllm/image_edges.py --json numbers.json --model FOLDER [--vllm FOLDER] [--logs FOLDER] [--edges NAME…]

As root on a throw-away machine with two NVIDIA GPUs of one kind, with vLLM and CRIU. MODEL is one of takeover.py's.
winhost's program that starts engines from images runs in a network of its own; this takes the part of the keeper, and
of GPUs that the gateway's settings refuse. Each step that fails says why, and ends that edge.
"""

import argparse
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.vllm.two_models import ROOT, Numbers

sys.path.insert(0, str(ROOT / "winhost"))
driver = import_module("gateway.gpu_calls")  # without the rest of winhost
WORK = Path("/var/lib/image-edges")
PLAIN_NCCL = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
TWO = ["--tensor-parallel-size=2", "--enforce-eager"]
EDGES: dict[str, tuple[list[str], dict[str, str], bool]] = {
    "another GPU": ([], {"CUDA_VISIBLE_DEVICES": "1"}, True),
    "two GPUs, nothing shared": ([*TWO, "--disable-custom-all-reduce"], PLAIN_NCCL, False),
    "two GPUs, as they start": (TWO, {}, False),
}


class Pair(ctypes.Structure):
    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class RestoreArguments(ctypes.Structure):
    _fields_ = (("pairs", ctypes.POINTER(Pair)), ("count", ctypes.c_uint), ("zeros", ctypes.c_ubyte * 116))


class UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("x", timeout=300)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(300)
        self.sock.connect(str(self.path))


class Engine:
    def __init__(self, name: str, model: Path, vllm: str | None, logs: Path) -> None:
        options, more, self.moves = EDGES[name]
        self.folder = WORK / name.replace(" ", "-").replace(",", "")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, mode=0o700)
        self.socket = self.folder / "engine.sock"
        self.log = logs / f"{self.folder.name}.log"
        self.environment = {
            **os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **({"PYTHONPATH": vllm} if vllm else {}), **more,
        }  # fmt: skip
        self.command = ["unshare", "--net", "--", sys.executable, str(ROOT / "tests/vllm/planned_units.py")]
        self.command += ["in-own-network", sys.executable, str(ROOT / "winhost/serving/process_image.py")]
        self.command += [str(self.folder), str(model), "root", "--", sys.executable, "-m"]
        self.command += ["vllm.entrypoints.cli.main", "serve", str(model), f"--uds={self.socket}"]
        self.command += ["--served-model-name=m", "--max-model-len=4096", "--gpu-memory-utilization=0.2"]
        self.command += ["--enable-sleep-mode", *options]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def until_well(self) -> None:
        until = time.monotonic() + 300
        while True:
            with suppress(OSError):
                if self.call("GET", "/health")[0] == 200:
                    return
            assert self.process
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("it does not come up")
            time.sleep(0.2)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = UnixConnection(self.socket)
        connection.request(
            method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()

    def text(self) -> str:
        body = {"model": "m", "prompt": "Say it", "max_tokens": 16, "temperature": 0}
        status, answer = self.call("POST", "/v1/completions", body)
        if status != 200:
            raise RuntimeError(f"the engine answered {status}: {answer[:200].decode('utf-8', 'replace')}")
        return str(json.loads(answer)["choices"][0]["text"])

    def control(self, what: str) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as to:
            to.settimeout(300)
            to.connect(str(self.folder / "control"))
            to.sendall(json.dumps({"do": what}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(to.makefile().readline())
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        return answer

    def with_driver(self) -> list[int]:
        """Its processes that have the driver open, those that compute first."""
        assert self.process
        computing = driver.GpuLibrary().processes()
        found = [pid for pid in below(self.process.pid) if opened(pid)]
        return sorted(found, key=lambda pid: (pid not in computing, pid))

    def kill(self) -> None:
        if self.process:
            for pid in [*below(self.process.pid), self.process.pid]:
                with suppress(OSError):
                    os.kill(pid, 9)
            self.process.wait(300)


def below(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *below(child)]
    return found


def opened(pid: int) -> bool:
    with suppress(OSError):
        return any(str(each.readlink()).startswith("/dev/nvidia") for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def used_mib() -> list[int]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, timeout=300).stdout.split()]


def resume_swapped(pid: int) -> None:
    """Each GPU becomes the other one."""
    uuids = [bytes.fromhex(gpu["uuid"].removeprefix("GPU-").replace("-", "")) for gpu in driver.GpuLibrary().state()]
    made = [
        Pair((ctypes.c_ubyte * 16)(*old), (ctypes.c_ubyte * 16)(*new))
        for old, new in zip(uuids, reversed(uuids), strict=True)
    ]
    arguments = RestoreArguments((Pair * len(made))(*made), len(made))
    library = driver._load_cuda()
    driver._call_cuda(library, "cuCheckpointProcessRestore", ctypes.c_int(pid), ctypes.byref(arguments))
    driver._call_cuda(library, "cuCheckpointProcessUnlock", ctypes.c_int(pid), None)


def tried(engine: Engine, row: dict[str, Any]) -> None:
    def step(name: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return work()
        except Exception as error:
            row["failed"] = f"{name}: {type(error).__name__}: {error}"
            raise
        finally:
            row[f"{name}_s"] = round(time.monotonic() - began, 1)

    engine.start()
    step("start", engine.until_well)
    step("first", engine.text)
    before = engine.text()
    row["used_mib"] = used_mib()
    step("sleep", lambda: engine.call("POST", "/sleep?level=1"))
    pids = engine.with_driver()
    row["processes"] = len(pids)
    for pid in pids:
        step(f"suspend {pids.index(pid)}", lambda pid=pid: driver.suspend(pid))
    row["suspended_mib"] = used_mib()
    row["image"] = step("take", lambda: engine.control("take"))
    assert engine.process
    engine.process.wait(300)
    engine.start()
    step("restore", engine.until_well)
    row["began"] = engine.control("look")
    resume = resume_swapped if engine.moves else driver.resume
    for pid in pids:
        if driver.is_suspended(pid):
            step(f"resume {pids.index(pid)}", lambda pid=pid: resume(pid))
    step("wake", lambda: engine.call("POST", "/wake_up"))
    after = step("answer", engine.text)
    row |= {"same": after == before, "text": after, "used_after_mib": used_mib()}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--json", type=Path, required=True)
    given.add_argument("--model", type=Path, required=True)
    given.add_argument("--vllm")
    given.add_argument("--logs", type=Path, default=Path("/tmp"))
    given.add_argument("--edges", nargs="+", choices=EDGES, default=list(EDGES))
    words = given.parse_args()
    numbers = Numbers(words.json)
    for name in words.edges:
        engine = Engine(name, words.model, words.vllm, words.logs)
        row: dict[str, Any] = {}
        try:
            tried(engine, row)
        except Exception as error:  # noqa: BLE001 - the other edges go on, and this one says why
            row.setdefault("failed", f"{type(error).__name__}: {error}")
        finally:
            engine.kill()
            shutil.rmtree(engine.folder, ignore_errors=True)
        numbers.add(**{name: row})


if __name__ == "__main__":
    main()
