"""Two models take turns on one NVIDIA GPU: real vLLM engines behind the gateway as it is installed. Numbers as JSON.

    python3 tests/vllm/two_models.py --json numbers.json [--vllm FOLDER] [--gib 14] [--plan plan.json] [--parts P,P]

It needs an NVIDIA GPU, vLLM (in FOLDER, or as Python finds it) and aiohttp; no network. It makes models with random
weights, starts their engines as the keeper would, and ends everything it started. Each part is written when it is done.
--plan: command lines and settings as a plan writes them (tests/vllm/planned_engines.py), instead of those of this file.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KEY, METRICS_KEY = "wh-" + "k" * 40, "wh-" + "m" * 40
KEYS = (("alice", KEY, ""), ("prometheus", METRICS_KEY, " metrics"))
NAMES = ("a", "b")
SHARE = 0.8
ASLEEP_MIB = 2780  # the most that was seen, so that the second engine finds room
ROUNDS = 6
IDLE_S = 15
KV_METRICS = {"external", "offload", "connector"}
TAKES = """
import sys, torch
torch.zeros(1, device="cuda"); print("ready", flush=True); sys.stdin.readline()
x = torch.empty(20 << 30, dtype=torch.uint8, device="cuda"); print("taken", flush=True); sys.stdin.read()
"""
OTHER_MIB = 1536  # above its share an engine takes up to 2.3 GiB; measured again below


def model(folder: Path, gib: float, seed: int, saved: bool) -> None:
    """A Llama with about so many GiB of random weights in bf16, and a tokenizer of letters. saved: the weights are
    there, so that level 2 can read them again; else an engine makes its own.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    layer = (4096 * 4096 * 2 + 4096 * 1024 * 2 + 4096 * 14336 * 3) * 2 / 2**30
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=4096,
        intermediate_size=14_336,
        num_attention_heads=32,
        num_key_value_heads=8,
        num_hidden_layers=max(2, round(gib / layer) + seed),
        max_position_embeddings=4096,
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    if saved:
        import torch
        from transformers import LlamaForCausalLM

        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            found = LlamaForCausalLM(config)
        found.save_pretrained(folder)
        del found
        torch.cuda.empty_cache()


class Engine:
    """One vLLM process group."""

    def __init__(self, name: str, work: Path, vllm: str | None, planned: dict[str, Any] | None = None) -> None:
        self.name, self.work, self.planned = name, work, planned
        self.socket = work / f"{name}.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": "127.0.0.1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **({"PYTHONPATH": vllm} if vllm else {}),
        }  # fmt: skip
        if planned:
            self.environment.pop("VLLM_SERVER_DEV_MODE")
            self.environment |= {**planned["environment"], "VLLM_CACHE_ROOT": str(work / "cache")}

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.socket.unlink(missing_ok=True)
        words = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)]
        words += self.options
        with (self.work / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                words, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def model(self) -> Path:
        return self.work / f"model-{self.name}"

    @property
    def options(self) -> list[str]:
        """As the plan has them, but for the place of the socket."""
        given = [f"--uds={self.socket}", f"--served-model-name={self.name}"]
        if not list(self.model.glob("*.safetensors")):
            given.append("--load-format=dummy")
        given += ["--max-model-len=4096", f"--gpu-memory-utilization={SHARE}", "--enable-sleep-mode"]
        if self.planned is None:
            return given
        return [given[0] if word.startswith("--uds=") else word for word in self.planned["words"]]

    def kill(self) -> None:
        """All its processes, as systemd does with a unit that does not stop."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(300)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(300)
        self.kill()

    def core(self) -> int:
        """The process that has the GPU."""
        assert self.process
        for folder in Path("/proc").iterdir():
            try:
                if os.getpgid(int(folder.name)) == self.process.pid and "EngineCor" in (folder / "comm").read_text():
                    return int(folder.name)
            except (ValueError, OSError):
                continue
        raise RuntimeError(f"{self.name} has no EngineCore")


class Numbers:
    """What was measured, written after each part."""

    def __init__(self, file: Path) -> None:
        self.file, self.found, self.began = file, dict[str, Any](), time.monotonic()

    def add(self, **parts: Any) -> None:
        self.found |= {**parts, "seconds": round(time.monotonic() - self.began, 1)}
        self.file.write_text(json.dumps(self.found, indent=2) + "\n")
        print(json.dumps(parts), flush=True)  # noqa: T201


class Trial:
    """The gateway with both engines."""

    def __init__(self, work: Path, numbers: Numbers, vllm: str | None, planned: dict[str, Any] | None = None) -> None:
        shutil.copytree(ROOT / "winhost/gateway", work / "gateway", ignore=shutil.ignore_patterns("__pycache__"))
        sys.path.insert(0, str(work))
        self.driver = import_module("gateway.gpu_calls")  # as it is installed, without the rest of winhost
        self.work, self.numbers, self.gpu = work, numbers, self.driver.GpuLibrary()
        self.vllm, self.planned = vllm, planned
        self.engines = {name: Engine(name, work, vllm, planned and planned["engines"][name]) for name in NAMES}
        self.gateway: subprocess.Popen[bytes] | None = None
        self.awake_mib, self.total = 1, self.free()

    def free(self) -> int:
        return int(self.gpu.free_mib()[0])

    async def keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As the keeper answers, for processes instead of units."""
        request = json.loads(await reader.readline())
        answer: dict[str, Any] = {"done": request["do"]}
        engine = self.engines.get(str(request.get("unit", ""))[15:-8])
        try:
            if engine is None:
                answer["free_mib"] = {"0": self.free()}
            elif request["do"] in ("suspend", "resume"):
                how = self.driver.suspend if request["do"] == "suspend" else self.driver.resume
                await asyncio.to_thread(how, engine.core())
            else:
                if request["do"] == "look":
                    answer["runs"] = engine.process is not None and engine.process.poll() is None
                else:
                    await asyncio.to_thread(engine.start if request["do"] == "start" else engine.stop)
        except (self.driver.DriverError, RuntimeError) as error:
            answer = {"error": str(error)}
        writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    async def start_gateway(self, awake_mib: int, **more: Any) -> None:
        idle = {"idle": more.pop("idle")} if "idle" in more else {}
        turns = {"gpus": [0], "version": "0.24.0", "awake_mib": awake_mib, "asleep_mib": ASLEEP_MIB, **more}
        if "between" in more:
            turns = {name: value for name, value in turns.items() if name not in ("version", "asleep_mib")}
        models = [
            {
                "name": name,
                "engine": {"socket": str(engine.socket)},
                "turns": {**turns, "unit": f"winhost-engine-{name}.service"},
            }
            for name, engine in self.engines.items()
        ]
        settings = {
            "listen": {"socket": str(self.work / "door.sock")},
            "models": models,
            "limits": {"hold": 200},
            "turns": {"keeper": str(self.work / "keeper.sock"), "stay": 0, "release": 5, **idle},
        }
        if self.planned:
            settings |= {"models": self._as_planned(more), "turns": {**self.planned["turns"], **settings["turns"]}}
        (self.work / "settings.json").write_text(json.dumps(settings))
        lines = [f"{name} sha256:{sha256(key.encode()).hexdigest()}{use}\n" for name, key, use in KEYS]
        (self.work / "keys").write_text("".join(lines))
        (self.work / "door.sock").unlink(missing_ok=True)
        with (self.work / "gateway.log").open("ab") as log:
            self.gateway = subprocess.Popen(
                [sys.executable, "-B", "-m", "gateway.program", str(self.work / "settings.json")],
                cwd=self.work, stderr=log, env={**os.environ, "CREDENTIALS_DIRECTORY": str(self.work)},
            )  # fmt: skip
        await until((self.work / "door.sock").exists, 20)

    def _as_planned(self, more: dict[str, Any]) -> list[dict[str, Any]]:
        """The plan's models, with sockets of this trial."""
        assert self.planned
        return [
            {
                **model,
                "engine": {"socket": str(self.engines[model["name"]].socket)},
                "turns": {**model["turns"], **more},
            }
            for model in self.planned["models"]
        ]

    def stop_gateway(self) -> None:
        if self.gateway is not None:
            self.gateway.terminate()
            self.gateway.wait(300)
            self.gateway = None

    async def call(self, socket: Path, method: str, path: str, body: Any = None) -> tuple[int, Any, float]:
        import aiohttp

        headers = {"Authorization": f"Bearer {METRICS_KEY if path == '/metrics' else KEY}"}
        began = time.monotonic()
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)), timeout=aiohttp.ClientTimeout(total=260)
            ) as session,
            session.request(method, f"http://x{path}", json=body, headers=headers) as answer,
        ):
            found: Any = await answer.read()
            if "json" in answer.headers.get("Content-Type", ""):
                found = json.loads(found)
            return answer.status, found, round(time.monotonic() - began, 3)

    async def ask(self, name: str, prompt: str = "Once upon a time", tokens: int = 8) -> tuple[int, str, float]:
        body = {"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        status, answer, took = await self.call(self.work / "door.sock", "POST", "/v1/completions", body)
        return status, answer.get("model", answer.get("error", {}).get("code")), took

    async def metrics(self) -> dict[str, float | str]:
        _, text, _ = await self.call(self.work / "door.sock", "GET", "/metrics")
        found: dict[str, float | str] = {}
        for line in text.decode().splitlines():
            if line.startswith("winhost_gateway_engine_state"):
                found[line.split('"')[1]] = line.split('"')[3]
            elif "_seconds_sum{" in line or "_seconds_count{" in line or "engine_failures_total{" in line:
                found[line.rpartition(" ")[0].removeprefix("winhost_gateway_")] = float(line.rpartition(" ")[2])
        return found

    async def states(self, *wanted: str) -> bool:
        found = await self.metrics()
        return sorted(str(found.get(name)) for name in NAMES) == sorted(wanted)

    # ---- the parts

    async def prepared(self) -> None:
        """Both start, one after the other, and sleep once, while nobody waits."""
        total = self.free()
        began = time.monotonic()
        self.awake_mib = int(total * SHARE) + OTHER_MIB
        await self.start_gateway(self.awake_mib)
        ok = await until_true(lambda: self.states("awake", "asleep"), 400)
        await asyncio.sleep(3)
        free = self.free()
        self.numbers.add(
            prepared=ok, prepared_s=round(time.monotonic() - began, 1), free_before_mib=total,
            free_with_both_mib=free, metrics=await self.metrics(),
        )  # fmt: skip
        if not ok:
            raise RuntimeError("not prepared")

    async def swaps(self, label: str) -> None:
        """From one model to the other and back, as a client sees it."""
        rounds = [await self.ask(name) for _ in range(ROUNDS) for name in ("b", "a")]
        self.numbers.add(**{f"{label}_s": [took for _, _, took in rounds]})
        self.numbers.add(**{f"{label}_right": all(each[:2] == (200, "ba"[i % 2]) for i, each in enumerate(rounds))})

    async def by_hand(self) -> None:
        """What the engines themselves take for it: sleep of one, wake of the other."""
        self.stop_gateway()
        took = []
        up, down = self.engines["a"].socket, self.engines["b"].socket
        for _ in range(ROUNDS):
            _, _, slept = await self.call(up, "POST", "/sleep?level=1&mode=wait")
            _, _, woken = await self.call(down, "POST", "/wake_up")
            body = {"model": "b" if down == self.engines["b"].socket else "a", "prompt": "x", "max_tokens": 8}
            _, _, first = await self.call(down, "POST", "/v1/completions", body)
            took.append({"sleep": slept, "wake": woken, "first": first})
            up, down = down, up
        self.numbers.add(engines_alone=took)

    async def many_clients(self, seconds: float) -> None:
        """Eight at once, each asking for either model. Every answer comes, and from the right one."""
        until_ = time.monotonic() + seconds
        outcomes: dict[str, int] = {}

        async def one(seed: int) -> None:
            choose = random.Random(seed)
            while time.monotonic() < until_:
                name = choose.choice(NAMES)
                status, said, _ = await self.ask(name, f"{seed} {choose.random()}", choose.choice((4, 64)))
                outcome = "right" if (status, said) == (200, name) else f"{status} {said}"
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                await asyncio.sleep(choose.random())

        before = await self.metrics()
        await asyncio.gather(*(one(seed) for seed in range(8)))
        self.numbers.add(many_clients=outcomes, many_before=before, many_after=await self.metrics())

    async def no_room(self) -> None:
        """Somebody else takes the memory: nothing is woken, and the request is answered once it is free."""
        await self.ask("a")
        pipe = subprocess.PIPE
        other = subprocess.Popen([sys.executable, "-c", TAKES], stdin=pipe, stdout=pipe)
        assert other.stdin
        assert other.stdout
        await asyncio.to_thread(other.stdout.readline)  # it has a context; only now does it take a moment
        for engine in self.engines.values():
            await self.call(engine.socket, "POST", "/sleep?level=1&mode=wait")  # behind the gateway's back
        other.stdin.write(b"go\n")
        other.stdin.flush()
        said = await asyncio.to_thread(other.stdout.readline)
        if said.strip() != b"taken":
            self.numbers.add(no_room={"not_tried": said.decode("utf-8", "replace")[:200]})
            return
        began = time.monotonic()
        asked = asyncio.ensure_future(self.ask("b"))
        await asyncio.sleep(8)
        answered_early = asked.done()
        other.stdin.close()
        await asyncio.to_thread(other.wait, 60)
        freed = time.monotonic() - began
        status, said, took = await asked
        self.numbers.add(no_room={"answered_early": answered_early, "freed_s": freed, "status": status, "by": said,
                                  "took_s": took, "metrics": await self.metrics()})  # fmt: skip

    async def killed(self) -> None:
        """The awake engine ends, with a request in it; the next request brings it back."""
        await self.ask("b")
        long = asyncio.ensure_future(self.ask("b", tokens=3000))
        await asyncio.sleep(1)
        self.engines["b"].kill()
        broken = await long
        self.numbers.add(killed={"request_in_it": broken, "next": await self.ask("b"), "metrics": await self.metrics()})

    async def suspended(self) -> None:
        """Sleep, then suspend: what stays on the GPU, and how long a swap takes."""
        self.stop_gateway()
        await self.start_gateway(self.awake_mib, suspend=True)
        await self.ask("a")
        await self.ask("b")
        rounds = [await self.ask(name) for _ in range(3) for name in ("a", "b")]
        self.numbers.add(suspended={"swaps": rounds, "free_mib": self.free(), "metrics": await self.metrics()})

    async def idle(self) -> None:
        """What each step of an idle release leaves on the GPU, and how long the next request then takes."""
        found: dict[str, Any] = {"idle_s": IDLE_S, "one_awake_mib": self.total - self.free()}
        steps: dict[str, tuple[str, int, dict[str, Any]]] = {
            "sleep-1": ("asleep", 3, {}),
            "sleep-2": ("asleep", 3, {"level": 2, "reloads": True}),
            "suspend": ("suspended", 3, {"suspend": True}),
            "stop": ("down", 2, {"between": "stop"}),
        }
        for step, (state, rounds, more) in steps.items():
            self.stop_gateway()
            for engine in self.engines.values() if step == "stop" else ():
                engine.kill()
            await self.start_gateway(self.awake_mib, idle=IDLE_S, **more)
            found[step] = []
            for name in NAMES if step != "stop" else ():
                await self.ask(name)  # so that each takes this step, and not the one before
            for _ in range(rounds):
                await asyncio.sleep(IDLE_S)  # before, one of them sleeps only to be prepared for later
                released = await until_true(lambda wanted=state: self.states(wanted, wanted), 400)
                await asyncio.sleep(2)
                used = self.total - self.free()
                cold, warm = await self.ask("a"), await self.ask("a")
                found[step].append({"released": released, "used_mib": used, "first": cold, "second": warm})
                self.numbers.add(idle=found)

    async def mirrored(self) -> None:
        """An engine that writes its KV cache through to files, killed and started again: what it reads back."""
        assert self.planned
        self.end()
        planned, root = self.planned["engines"]["kv"], self.work / "kv-cache"
        words = [word.replace("/var/lib/winhost-kv-kv", str(root)) for word in planned["words"]]
        engine = Engine("kv", self.work, self.vllm, {**planned, "words": words})
        root.mkdir()
        found: dict[str, Any] = {}
        prompt = " ".join(str(number) for number in range(400))
        try:
            for turn in ("first", "after_it_was_killed"):
                began = time.monotonic()
                await asyncio.to_thread(engine.start)
                await until_true(lambda: self.serves(engine), 200)
                up = round(time.monotonic() - began, 1)
                body = {"model": "kv", "prompt": prompt, "max_tokens": 128, "temperature": 0}
                status, answer, took = await self.call(engine.socket, "POST", "/v1/completions", body)
                await asyncio.sleep(5)
                _, metrics, _ = await self.call(engine.socket, "GET", "/metrics")
                files = [path for path in root.rglob("*") if path.is_file()]
                found[turn] = {
                    "up_s": up, "status": status, "took_s": took, "text": str(answer)[-200:],
                    "files": len(files), "bytes": sum(path.stat().st_size for path in files),
                    "metrics": [line for line in metrics.decode().splitlines() if tells_of_kv(line)][:40],
                }  # fmt: skip
                self.numbers.add(mirrored=found)
                engine.kill()
        finally:
            engine.kill()

    async def serves(self, engine: Engine) -> bool:
        """It binds its socket long before it answers."""
        try:
            return (await self.call(engine.socket, "GET", "/health"))[0] == 200
        except OSError:
            return False

    async def all(self, chosen: list[str]) -> None:
        server = await asyncio.start_unix_server(self.keep, str(self.work / "keeper.sock"))
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "prepared": self.prepared, "swaps": lambda: self.swaps("swaps"), "clients": lambda: self.many_clients(30),
            "by_hand": self.by_hand, "again": self.again, "killed": self.killed, "no_room": self.no_room,
            "suspended": self.suspended, "idle": self.idle, **({"mirrored": self.mirrored} if self.planned else {}),
        }  # fmt: skip
        try:
            for name in chosen or parts:
                await parts[name]()
        finally:
            server.close()

    async def again(self) -> None:
        """The gateway starts before engines that are there already."""
        began = time.monotonic()
        await self.start_gateway(self.awake_mib)
        answered = await self.ask("b")
        self.numbers.add(gateway_restarted={"first": answered, "seconds": time.monotonic() - began})

    def end(self) -> None:
        self.stop_gateway()
        for engine in self.engines.values():
            engine.kill()  # one that is suspended would not end by itself


def tells_of_kv(line: str) -> bool:
    """Of what came from, or went to, outside of the engine."""
    words = {*line.split("{")[0].split("_")}
    return bool(KV_METRICS & words) and not line.startswith("#") and not line.endswith(" 0.0")


async def until(what: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError("it did not come up")
        await asyncio.sleep(0.1)


async def until_true(what: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if await what():
            return True
        await asyncio.sleep(0.5)
    return False


def main() -> int:
    read = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    read.add_argument("--json", type=Path, required=True, help="where the numbers go")
    read.add_argument("--vllm", help="a folder with vLLM, for PYTHONPATH")
    read.add_argument("--gib", type=float, default=14, help="weights of each model")
    read.add_argument("--plan", type=Path, help="what a plan writes")
    read.add_argument("--saved", action="store_true", help="models with weights, as the part `idle` needs them")
    read.add_argument("--parts", default="", help="only these, by name")
    read.add_argument("--logs", type=Path, help="a folder for the logs of engines and gateway")
    given = read.parse_args()
    numbers = Numbers(given.json)
    with tempfile.TemporaryDirectory(prefix="turns-") as folder:
        work = Path(folder)
        for seed, name in enumerate(NAMES):
            model(work / f"model-{name}", given.gib, seed, given.saved)
        planned = json.loads(given.plan.read_text()) if given.plan else None
        if planned:
            model(work / "model-kv", 1, 0, saved=False)
        trial = Trial(work, numbers, given.vllm, planned)
        try:
            asyncio.run(trial.all([each for each in given.parts.split(",") if each]))
        except Exception as error:  # noqa: BLE001 - what was measured by then stays, and why it ended is said
            numbers.add(ended=f"{type(error).__name__}: {error}")
            return 1
        finally:
            trial.end()
            for log in work.glob("*.log") if given.logs else ():
                shutil.copy(log, given.logs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
