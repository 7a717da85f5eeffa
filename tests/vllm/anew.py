"""A real vLLM is killed in the middle of streams, and they wait: for an engine that is started anew, cold or from the
image of its process, or for a second engine that reads their prompt from a KV cache on disk. Numbers as JSON.

    python3 tests/vllm/anew.py --json numbers.json [--vllm FOLDER] [--gib 3] [--logs FOLDER] [--parts NAME…]

It runs as root on a throw-away machine with an NVIDIA GPU, vLLM (in FOLDER, or as Python finds it) and, for the part
`image`, CRIU. Gateway and keeper are winhost's own; a small program takes the part of systemctl, with a cgroup and a
network for each engine. It uses the models and streams of two_models.py and takeover.py.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.vllm import takeover
from tests.vllm import two_models as two

GPU = int(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
UNIT = "winhost-engine-m.service"
IMAGES = Path("/var/lib/winhost-images/m")
CGROUP = Path("/sys/fs/cgroup/anew-m")
LENGTH, PROMPT = 32_768, 24_000  # tokens, of which each is a letter
SYSTEMCTL = """#!/usr/bin/env python3
import json, os, signal, subprocess, sys, time
from pathlib import Path

group, told = Path({group!r}), json.loads(Path({unit!r}).read_text())
words = [word for word in sys.argv[1:] if not word.startswith("--")]
pids = (group / "cgroup.procs").read_text().split() if group.exists() else []
if words[0] == "start" and not pids:
    group.mkdir(exist_ok=True)
    Path(told["socket"]).unlink(missing_ok=True)
    log = open(told["log"], "ab")
    enter = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    subprocess.Popen(told["command"], env=told["environment"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                     start_new_session=True, preexec_fn=enter)
elif words[0] == "stop" and pids:
    os.kill(int(pids[0]), signal.SIGTERM)
    until = time.monotonic() + 90
    while (group / "cgroup.procs").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    (group / "cgroup.kill").write_text("1")
elif words[0] == "kill" and pids:
    (group / "cgroup.kill").write_text("1")
elif words[0] == "show" and "--value" in sys.argv:
    print("/" + group.name)
elif words[0] == "show":
    print("ActiveState=" + ("active" if pids else "inactive"), "Job=0", sep="\\n")
"""


class Prompted(takeover.Trial):
    """Its streams have a prompt of so many letters, each another one, the same in each round of a name."""

    letters, round = 0, ""

    def prompt(self, number: int) -> str:
        said = f"{self.round} {number} "
        return (said * (self.letters // len(said) + 1))[: self.letters] or super().prompt(number)


class Anew(Prompted):
    """One engine that fits once."""

    def prepare(self, image: bool) -> None:
        engine = self.engines["a"]
        options = [f"--uds={engine.socket}", "--served-model-name=m", "--max-model-len=4096"]
        options += ["--gpu-memory-utilization=0.3", f"--chat-template={self.work / 'template'}"]
        options += ["--enable-sleep-mode"] if image else []
        vllm = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self.work / "model-a"), *options]
        own = ["unshare", "--net", "--", sys.executable, str(two.ROOT / "tests/vllm/planned_units.py")]
        own += ["in-own-network"]
        if image:
            own += [sys.executable, str(two.ROOT / "winhost/serving/process_image.py"), str(IMAGES)]
            own += [str(self.work / "model-a"), "root", "--"]
        told = {"command": own + vllm, "environment": engine.environment, "log": str(self.work / "a.log")}
        (self.work / "unit.json").write_text(json.dumps({**told, "socket": str(engine.socket)}))
        program = self.work / "bin/systemctl"
        program.parent.mkdir(exist_ok=True)
        program.write_text(SYSTEMCTL.format(group=str(CGROUP), unit=str(self.work / "unit.json")))
        program.chmod(0o755)
        turns: dict[str, Any] = {"gpus": [GPU], "unit": UNIT}
        if image:
            turns |= {"version": "0.24.0", "suspend": True, "image": True}
        else:
            turns |= {"between": "stop", "resident": True}
        model = {"name": "m", "engine": {"socket": str(engine.socket)}, "standby": {}, "turns": turns}
        settings = {"listen": {"socket": str(self.work / "door.sock")}, "models": [model]}
        settings |= {"turns": {"keeper": str(self.work / "keeper.sock")}, "limits": {"hold": 250}}
        self.run_programs(settings, ("keeper", "program"), PATH=f"{program.parent}:{os.environ['PATH']}")

    async def awake(self, image: bool) -> float:
        began = time.monotonic()

        async def is_awake() -> bool:
            _, text = await self.call(self.work / "door.sock", "GET", "/metrics")
            return 'winhost_gateway_engine_state{model="m",state="awake"}' in text.decode()

        ready = await two.until_true(is_awake, 400)
        if image:
            ready = ready and await two.until_true(lambda: asyncio.sleep(0, (IMAGES / "image").exists()), 200)
            ready = ready and await two.until_true(is_awake, 200)
        if not ready:
            raise RuntimeError("it does not come up")
        return round(time.monotonic() - began, 1)

    async def part(self, image: bool) -> None:
        name = "image" if image else "cold"
        if image:
            shutil.rmtree(IMAGES, ignore_errors=True)
            IMAGES.mkdir(mode=0o700, parents=True)
        self.prepare(image)
        await two.until((self.work / "door.sock").exists, 20)
        self.numbers.add(**{f"{name}_first_start_s": await self.awake(image)})
        if image:
            size = sum(each.stat().st_size for each in (IMAGES / "image").rglob("*") if each.is_file())
            self.numbers.add(image_bytes=size)
        await self.streams()
        calm, _ = await self.streams()
        for fault in ("killed", "killed again"):
            whole = {"model": "m", "prompt": "Say it", "max_tokens": 1500, "ignore_eos": True}
            other = asyncio.ensure_future(self.call(self.work / "door.sock", "POST", "/v1/completions", whole))
            found, gaps = await self.streams(lambda: (CGROUP / "cgroup.kill").write_text("1"))
            status, _ = await other
            same = [takeover.told(each, before) for each, before in zip(found, calm, strict=True)]
            row = {"gap_s": gaps, "streams": same, "without_a_byte": status}
            self.numbers.add(**{f"{name}: {fault}": row})
        _, text = await self.call(self.work / "door.sock", "GET", "/metrics")
        self.numbers.add(**{f"{name}_metrics": [each for each in text.decode().split("\n") if "standby" in each]})
        self.end()

    def end(self) -> None:
        super().end()
        if CGROUP.exists():
            (CGROUP / "cgroup.kill").write_text("1")
            time.sleep(2)


class Reading(takeover.Twin):
    """With a KV cache that it writes through to a folder, and reads from."""

    tier: dict[str, Any] | None = None

    @property
    def options(self) -> list[str]:
        given = [f"--max-model-len={LENGTH}" if "max-model-len" in each else each for each in super().options]
        return given + ([f"--kv-transfer-config={json.dumps(self.tier)}"] if self.tier else [])


class Shared(Prompted):
    """Two engines and one folder; then the same without it."""

    twin = Reading

    async def part(self, tier: dict[str, Any]) -> None:
        self.letters = PROMPT
        for each in self.engines.values():
            each.tier = tier
            each.environment["PYTHONHASHSEED"] = "0"  # as a plan says it
        self.numbers.add(shared_starts_s=[await self.up("a"), await self.up("b")])
        self.start_gateway()
        await two.until((self.work / "door.sock").exists, 20)
        await self.fail("with the tier")
        self.engines["a"].tier = None
        await self.up("a")
        await self.fail("without it")  # b answers, and a takes over
        self.end()

    async def fail(self, name: str) -> None:
        """Twice: what compiles at such a length, compiles in the first."""
        victim = self.engines[await self.answers()]
        other = next(each for each in self.engines.values() if each is not victim)
        await self.warm(other)
        self.round = name
        before = await self.reads(other)
        found, gaps = await self.streams(lambda: victim.kill())
        same = [takeover.told(each, each) for each in found]
        row = {"gap_s": gaps, "streams": same, "read": {"before": before, "after": await self.reads(other)}}
        files = [path for path in (self.work / "kv").rglob("*") if path.is_file()]
        row |= {"files": len(files), "bytes": sum(each.stat().st_size for each in files)}
        self.numbers.add(**{f"shared: {name}": row})

    async def warm(self, engine: two.Engine) -> None:
        body = {"model": "m", "prompt": "warm " * (PROMPT // 5), "max_tokens": 16, "temperature": 0}
        await self.call(engine.socket, "POST", "/v1/completions", body)

    async def reads(self, engine: two.Engine) -> list[str]:
        _, text = await self.call(engine.socket, "GET", "/metrics")
        lines = text.decode().splitlines()
        return [line for line in lines if two.tells_of_kv(line) or line.startswith("vllm:prompt_tokens_total")][:30]


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--json", type=Path, required=True)
    given.add_argument("--vllm")
    given.add_argument("--gib", type=float, default=3)
    given.add_argument("--keep", type=Path, help="where the model stays")
    given.add_argument("--logs", type=Path)
    given.add_argument("--parts", nargs="+", choices=("shared", "image", "cold"), default=["shared", "image", "cold"])
    given.add_argument("--kv", type=json.loads, help="--kv-transfer-config as a plan has it, for the part shared")
    words = given.parse_args()
    if words.vllm:
        sys.path.insert(0, words.vllm)
    numbers = two.Numbers(words.json)
    with tempfile.TemporaryDirectory(prefix="anew-") as name:
        work = Path(name)
        (work / "template").write_text(takeover.TEMPLATE)
        if words.logs:
            words.logs.mkdir(parents=True, exist_ok=True)
        # By another process, which leaves nothing on the GPU
        made = "import sys; from pathlib import Path; from tests.vllm import takeover as t; p = Path(sys.argv[1]); "
        made += "t.two.model(p, float(sys.argv[2]), 0, saved=True); t.say_letters(p)"
        environment = {**os.environ, "PYTHONPATH": f"{two.ROOT}:{words.vllm or ''}"}
        model = [sys.executable, "-c", made, str(work / "model-a"), str(words.gib)]
        subprocess.run(model, check=True, env=environment, timeout=600)
        config = json.loads((work / "model-a/config.json").read_text())
        (work / "model-a/config.json").write_text(json.dumps({**config, "max_position_embeddings": LENGTH}))
        if words.keep:
            shutil.copytree(work / "model-a", words.keep)
        for part in words.parts:
            trial = (Shared if part == "shared" else Anew)(work, numbers, words.vllm)
            try:
                if isinstance(trial, Shared):
                    tier = json.loads(json.dumps(words.kv).replace("/var/lib/winhost-kv-m", str(work / "kv")))
                    (work / "kv").mkdir()
                    asyncio.run(trial.part(tier))
                else:
                    asyncio.run(trial.part(part == "image"))
            except Exception as error:  # noqa: BLE001 - the other parts go on, and this one says why
                numbers.add(**{f"{part}_ended": f"{type(error).__name__}: {error}"})
            finally:
                trial.end()
                for log in work.glob("*.log") if words.logs else ():
                    shutil.move(log, words.logs / f"{part}-{log.name}")


if __name__ == "__main__":
    main()
