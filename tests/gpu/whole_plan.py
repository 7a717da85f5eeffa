"""One plan carried out on a Linux with a GPU, and undone, by the command line; each command goes to a transcript.

    python -m tests.gpu.whole_plan TRANSCRIPT.json

Where `Given.lacking` says nothing it runs unattended, offline, in minutes: from `winhost detect` of a booted Ubuntu to
a comparison of its files with what they were. See docs/evidence/whole-plan-on-a-gpu.md.
"""

import http.client
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.machine import GpuLinux, differences, nodes
from tests.gpu.served_files import COMMIT, MODEL, ServedFiles, serving
from tests.gpu.standin_files import standin_model, standin_wheels
from tests.linux.debian import INSIDE, OUTSIDE
from winhost.gateway.api_keys import new_key

NAME = "gpu-01"
PORT = 8443
MODELS = ("chat", "coder")
VLLM = "0.24.0"
NEWER = f"{VLLM}.post1"
SHAPE = {"layers": 8, "kv_heads": 8, "head_dim": 128, "hidden": 4096, "vocabulary": 258}
PARAMETERS, LITTLE = 1_757_000_000, 10_000_000
CLIENTS, TOKENS, SWAPS = 64, 128, 8
KEY_VARIABLE, METRICS_VARIABLE = "WHOLE_PLAN_KEY", "WHOLE_PLAN_METRICS_KEY"
LONGEST, LONG = 3600, 6000
NO_UPGRADE = "WINHOST_GPU_NO_UPGRADE"
TREE, WHEELS, MODEL_FOLDER, STANDIN = (f"WINHOST_GPU_{name}" for name in ("TREE", "WHEELS", "MODEL", "STANDIN"))


@dataclass(frozen=True)
class Given:
    """tree: an Ubuntu 24.04 with systemd and sshd; wheels: a folder of wheels, of vLLM and all that it needs; model: a
    folder with the files of a model; stand_in: so many GPUs are pretended, no vLLM is there, and the wheels are aiohttp
    and all that it needs.
    """

    tree: Path | None
    wheels: Path | None
    model: Path | None
    stand_in: int

    @property
    def gpus(self) -> int:
        return self.stand_in or sum(Path(node).name.removeprefix("nvidia").isdigit() for node in nodes())

    @classmethod
    def from_environment(cls) -> "Given":
        def folder(name: str) -> Path | None:
            return Path(os.environ[name]) if os.environ.get(name) else None

        return cls(folder(TREE), folder(WHEELS), folder(MODEL_FOLDER), int(os.environ.get(STANDIN) or 0))

    def lacking(self) -> list[str]:
        """What a run needs and is not here, in words."""
        found = [] if platform.system() == "Linux" and os.geteuid() == 0 else ["root on Linux"]
        if not self.stand_in and not nodes():
            found.append("an NVIDIA GPU (/dev/nvidia0)")
        wanted = {TREE: self.tree, WHEELS: self.wheels} | ({} if self.stand_in else {MODEL_FOLDER: self.model})
        found += [f"a folder in ${name}" for name, path in wanted.items() if path is None or not path.is_dir()]
        machine_id = Path("/etc/machine-id")  # of which systemd-nspawn makes the addresses of its adapters
        found += [] if machine_id.is_file() and machine_id.read_text().strip() else [f"an id in {machine_id}"]
        lacking = [
            tool for tool in GpuLinux.tools if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None
        ]
        return [*found, *(f"the program {tool}" for tool in lacking)]


@dataclass
class Transcript:
    """What was done and what came of it, written after each command."""

    file: Path
    about: dict[str, Any] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(
        self, stage: str, command: list[str], code: int | None, wanted: tuple[int, ...], seconds: float, said: str
    ) -> None:
        fine = code in wanted
        if not fine:
            self.failed.append(f"{stage}: exit code {code}, not {wanted}")
        entry = {"stage": stage, "command": " ".join(command), "exit": code, "fine": fine, "seconds": round(seconds, 2)}
        self.commands.append({**entry, "said": said if len(said) < LONG else f"{said[:LONG]}\n…\n{said[-LONG:]}"})
        self.write()
        print(f"{time.monotonic() - self.began:7.1f} {stage}: exit {code} after {seconds:.1f} s", flush=True)  # noqa: T201
        if not fine:
            print(said[:LONG], flush=True)  # noqa: T201

    def number(self, stage: str, value: Any) -> None:
        self.numbers[stage] = value
        self.write()
        print(f"{time.monotonic() - self.began:7.1f} {stage}: {json.dumps(value)[:1500]}", flush=True)  # noqa: T201

    def check(self, stage: str, fine: bool, value: Any) -> None:
        if not fine:
            self.failed.append(f"{stage}: {json.dumps(value)[:500]}")
        self.number(stage, value)

    def write(self) -> None:
        whole = {"about": self.about, "failed": self.failed, "commands": self.commands, "numbers": self.numbers}
        whole["seconds"] = round(time.monotonic() - self.began, 1)
        self.file.write_text(json.dumps(whole, indent=1) + "\n")


@dataclass
class WholePlan:
    """The controller: its folder with fleet, workload, locks and plans, and the machine that it manages."""

    given: Given
    transcript: Transcript
    folder: Path
    served: ServedFiles
    machine: GpuLinux
    key: str
    metrics_key: str

    # ---- the command line

    @property
    def environ(self) -> dict[str, str]:
        here = {"WINHOST_FLEET": str(self.folder / "fleet.yaml"), "WINHOST_STATE": str(self.folder / "state")}
        return {
            **os.environ,
            **here,
            "HOME": str(self.folder),
            KEY_VARIABLE: self.key,
            METRICS_VARIABLE: self.metrics_key,
        }

    def winhost(self, stage: str, *words: str, wanted: tuple[int, ...] = (0,)) -> str:
        command = [sys.executable, "-m", "winhost", *words]
        began = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environ, cwd=self.folder, timeout=LONGEST
        )
        said = done.stdout + done.stderr
        self.transcript.add(stage, ["winhost", *words], done.returncode, wanted, time.monotonic() - began, said)
        return done.stdout

    def runs(self) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-m", "winhost", "runs", "--json"],
            capture_output=True,
            text=True,
            env=self.environ,
            timeout=LONGEST,
        )
        return list(json.loads(done.stdout)["results"])

    # ---- files of the controller

    def write_files(self) -> None:
        host_key = (self.machine.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()
        ssh = {"user": "root", "key": f"file:{self.machine.key}", "host_key": host_key}
        host = {"kind": "linux", "address": INSIDE, "ssh": ssh}
        (self.folder / "fleet.yaml").write_text(json.dumps({"schema": "winhost.fleet/1", "hosts": {NAME: host}}))
        model = {
            "id": MODEL,
            "revision": COMMIT,
            "parameters": LITTLE if self.given.stand_in else PARAMETERS,
            "context": 4096,
            "sequences": CLIENTS,
        }
        model |= {"shape": SHAPE, "state": "sleeping"}
        if self.given.gpus > 1:
            model["parallel"] = {"tensor": self.given.gpus}
        workload = {"schema": "winhost.workload/1", "exposure": "lan", "versions": {"vllm": VLLM}}
        workload |= {"models": dict.fromkeys(MODELS, model), "needs": {"must": ["sleep-l1"]}}
        (self.folder / "workload.yaml").write_text(json.dumps(workload))
        assert self.given.wheels is not None
        for name, other in (("lock.txt", NEWER), ("newer.txt", VLLM)):
            text = self.served.lock(self.given.wheels, frozenset({("vllm", other)}))
            (self.folder / name).write_text(text)

    # ---- what is done

    def go(self) -> None:
        self.write_files()
        before = self.machine.look()
        self.transcript.number("gpu memory before, MiB", self.gpu_memory())
        self.look()
        self.plan("plan", "lock.txt", "plan.json")
        known = len(self.transcript.failed)
        first = self.apply_killed("offline/plan.json")
        self.winhost("verify", "verify", "offline/plan.json")
        if len(self.transcript.failed) == known:
            if self.given.gpus > 1:
                self.without_peers()
            self.serve("")
            self.clients()
            if not os.environ.get(NO_UPGRADE):
                self.upgrade()
        self.keep_logs(self.transcript.file.with_suffix(".log"))
        self.winhost("rollback", "rollback", first, "--yes", "--accept", "network")
        time.sleep(2)
        self.transcript.number("gpu memory after, MiB", self.gpu_memory())
        after = self.machine.look()
        left = differences(before, after)
        self.transcript.check("files, before and after", not any(left.values()), left)
        self.winhost("detect again", "detect", NAME, "-o", "after")
        self.winhost("facts compared", "diff", f"facts/{NAME}.json", f"after/{NAME}.json", wanted=(0, 4))

    def look(self) -> None:
        self.winhost("detect", "detect", NAME, "-o", "facts")
        also = [] if self.given.stand_in else ["--also", "checkpoint,nccl"]
        self.winhost("probe", "probe", NAME, *also, "-o", "probed", wanted=(0, 1) if self.given.stand_in else (0,))
        self.winhost("assess", "assess", NAME, "--workload", "workload.yaml")

    def plan(self, stage: str, lock: str, plan: str) -> None:
        words = ["plan", NAME, "--path", "linux", "--allow-unverified", "--workload", "workload.yaml"]
        words += ["--engine-lock", lock, "--index", self.served.index, "--hub", self.served.url]
        words += ["--listen", f"{INSIDE}:{PORT}", "--allow", f"{OUTSIDE}/32", "--plain-http"]
        words += ["--api-key", f"alice=env:{KEY_VARIABLE}", "--metrics-key", f"prometheus=env:{METRICS_VARIABLE}"]
        self.winhost(stage, *words, "-o", plan)
        self.winhost(f"{stage}: fetch", "fetch", plan, "-o", "offline")

    def apply_killed(self, plan: str) -> str:
        """Killed (SIGKILL) within the step that makes the engine's environment, and gone on with. The run."""
        command = [sys.executable, "-m", "winhost", "apply", plan, "--yes", "--accept", "network"]
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environ, cwd=self.folder, text=True
        )
        journal = self.folder / "state/runs"
        while process.poll() is None and not within(journal, "PythonVenv"):
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=LONGEST)
        self.transcript.add(
            "apply, killed", command[2:], process.returncode, (-signal.SIGKILL,), time.monotonic() - began, said
        )
        run = str(self.runs()[-1]["run"])
        self.winhost("resume", "resume", run, "--yes", "--accept", "network")
        return run

    def without_peers(self) -> None:
        """In a guest a plan takes the way between GPUs for closed until it is measured: the profile of a DDA guest."""
        unit = self.machine.run("systemctl", "cat", "winhost-engine-chat.service")
        words = ("NCCL_P2P_DISABLE=1", "--disable-custom-all-reduce", f"--tensor-parallel-size={self.given.gpus}")
        told = {each: each in unit for each in words}
        self.transcript.check("options without peers", all(told.values()), told)
        if self.given.stand_in:
            return
        log = self.machine.run("sh", "-c", "journalctl --no-pager -o cat -u 'winhost-engine-*'")
        ways = Counter(re.findall(r"NCCL INFO Channel .* via ([A-Za-z0-9/_-]+)", log))
        closed = bool(ways) and all(way.startswith("SHM") for way in ways)
        self.transcript.check("transports of NCCL, lines", closed, ways)

    def serve(self, suffix: str) -> None:
        self.winhost(f"serve status{suffix}", "serve", "status", NAME, "--metrics-key", f"env:{METRICS_VARIABLE}")
        self.winhost(f"serve test{suffix}", "serve", "test", NAME, "--api-key", f"env:{KEY_VARIABLE}")

    def upgrade(self) -> None:
        self.plan("upgrade", "newer.txt", "newer.json")
        self.winhost("upgrade: apply", "apply", "offline/plan.json", "--yes", "--accept", "network")
        self.serve(" of the newer")
        self.winhost("way back", "rollback", str(self.runs()[-1]["run"]), "--yes", "--accept", "network")
        # The gateway starts them one after the other, when their turn comes.
        self.winhost("serve test after the way back", "serve", "test", NAME, "--api-key", f"env:{KEY_VARIABLE}")
        self.winhost("serve status after it", "serve", "status", NAME, "--metrics-key", f"env:{METRICS_VARIABLE}")

    # ---- clients

    def clients(self) -> None:
        swaps = [self.asked(MODELS[number % 2], 8) for number in range(SWAPS)]
        self.transcript.check(
            "swaps, s", all(status == 200 for status, _, _ in swaps), [round(s, 2) for _, s, _ in swaps]
        )
        for name, models in (("64 clients, one model", MODELS[:1]), ("64 clients, two models", MODELS)):
            self.many(name, models)
        refused = {"no key": self.asked("chat", 1, key=""), "other model": self.asked("nobody", 1)}
        found = {name: status for name, (status, _, _) in refused.items()}
        self.transcript.check("refused", found == {"no key": 401, "other model": 404}, found)

    def asked(self, model: str, tokens: int, key: str | None = None) -> tuple[int, float, int]:
        """Status, seconds until the whole answer, and tokens as the engine counts them."""
        connection = http.client.HTTPConnection(INSIDE, PORT, timeout=600)
        body = {"model": model, "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key if key is None else key}"}
        began = time.monotonic()
        with closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            said = answer.read()
        usage = json.loads(said).get("usage") or {} if answer.status == 200 else {}
        return answer.status, time.monotonic() - began, usage.get("completion_tokens", 0)

    def many(self, stage: str, models: tuple[str, ...]) -> None:
        found: list[tuple[int, float, int]] = []

        def one(number: int) -> None:
            found.append(self.asked(models[number % len(models)], TOKENS))

        self.asked(models[0], 8)
        began = time.monotonic()
        threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(LONGEST)
        took = time.monotonic() - began
        times = sorted(seconds for _, seconds, _ in found)
        tokens = sum(count for _, _, count in found)
        value = {
            "answers": len(found),
            "statuses": sorted({status for status, _, _ in found}),
            "whole": sum(count == TOKENS for _, _, count in found),
            "median_s": round(times[len(times) // 2], 2) if times else None,
            "longest_s": round(times[-1], 2) if times else None,
            "tokens_per_s": round(tokens / took),
        }
        self.transcript.check(stage, value["whole"] == CLIENTS, value)

    def gpu_memory(self) -> list[int]:
        said = self.machine.run("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        return [int(line) for line in said.split()]

    def keep_logs(self, to: Path) -> None:
        said = self.machine.run("sh", "-c", "journalctl --no-pager -o short-monotonic -n 20000 || true")
        to.write_text(said)


def within(runs: Path, resource: str) -> bool:
    """Whether a step of this type has begun, by a journal."""
    for file in runs.glob("*.jsonl"):
        for line in file.read_text("utf-8", "replace").splitlines():
            if ('"event": "begin"' in line and f'"{resource}"' in line) or (
                '"event":"begin"' in line and f'"{resource}"' in line
            ):
                return True
    return False


def about(given: Given) -> dict[str, Any]:
    smi = shutil.which("nvidia-smi")
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpus = subprocess.run([smi, *query], capture_output=True, text=True, timeout=300).stdout.splitlines() if smi else []
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "gpus": gpus,
        "stand_in": given.stand_in,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
    }


@contextmanager
def machine_of(given: Given, folder: Path) -> Iterator[GpuLinux]:
    (folder / "offline").mkdir()
    at = folder / "machine"
    at.mkdir()
    assert given.tree is not None
    machine = GpuLinux(given.tree, at, folder / "offline", stand_in=given.stand_in)
    try:
        yield machine
    finally:
        machine.close()


def whole_plan(given: Given, file: Path) -> Transcript:
    transcript = Transcript(file, about(given))
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="whole-plan-", ignore_cleanup_errors=True))
        )
        assert given.wheels is not None
        if given.stand_in:
            wheels, model = folder / "wheels", folder / "model"
            standin_wheels(wheels, VLLM, NEWER, given.wheels)
            standin_model(model)
            given = Given(given.tree, wheels, model, given.stand_in)
            assert given.wheels is not None
        assert given.model is not None
        served = stack.enter_context(serving(ServedFiles([given.wheels], given.model)))
        transcript.number(
            "wheels", {"files": len(served.wheels), "bytes": sum(w.path.stat().st_size for w in served.wheels)}
        )
        machine = stack.enter_context(machine_of(given, folder))
        transcript.number("booted", machine.run("systemctl", "--version").splitlines()[0])
        keys = new_key("alice")[0], new_key("prometheus")[0]
        done = WholePlan(given, transcript, folder, served, machine, *keys)
        try:
            done.go()
        except Exception as error:  # noqa: BLE001 - the transcript says how far it came
            transcript.failed.append(f"{type(error).__name__}: {error}")
        finally:
            transcript.write()
    return transcript


def main(words: list[str]) -> int:
    given = Given.from_environment()
    if lacking := given.lacking():
        print("Not run, for lack of " + ", ".join(lacking))  # noqa: T201
        return 77
    transcript = whole_plan(given, Path(words[0]))
    for each in transcript.failed:
        print(f"FAILED {each}", flush=True)  # noqa: T201
    return int(bool(transcript.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
