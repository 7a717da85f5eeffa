"""One of two real vLLM engines is killed, stopped, or loses its core in the middle of streams. Numbers as JSON.

    python3 tests/vllm/takeover.py --json numbers.json [--vllm FOLDER] [--gib 2] [--logs FOLDER] [--faults NAME…]

It needs an NVIDIA GPU, on which both engines find room, and vLLM (in FOLDER, or as Python finds it); no network. The
model has random weights, the same in both engines. It runs beside two_models.py, whose engines and models it uses.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.vllm import two_models as two

STREAMS, TOKENS, FAULT_AFTER = 4, 600, 150
FAULTS = {
    "killed": lambda engine: engine.kill(),
    "stopped": lambda engine: engine.signal_all(signal.SIGSTOP),
    "core_killed": lambda engine: os.kill(engine.core(), signal.SIGKILL),
    "core_stopped": lambda engine: os.kill(engine.core(), signal.SIGSTOP),  # and its server answers on
}
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if not loop.last %}[/]{% endif %}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}[assistant]{% else %}[/]{% endif %}"


class Twin(two.Engine):
    """One of two engines of the model `m`, which read the same files."""

    @property
    def model(self) -> Path:
        return self.work / "model-a"

    @property
    def options(self) -> list[str]:
        found = [f"--uds={self.socket}", "--served-model-name=m", "--max-model-len=4096"]
        found += ["--gpu-memory-utilization=0.3", "--enforce-eager", f"--chat-template={self.work / 'template'}"]
        return found

    def signal_all(self, number: int) -> None:
        assert self.process
        os.killpg(self.process.pid, number)


class Trial:
    twin = Twin

    def __init__(self, work: Path, numbers: two.Numbers, vllm: str | None) -> None:
        source, ignore = two.ROOT / "winhost/gateway", shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, work / "gateway", ignore=ignore, dirs_exist_ok=True)
        self.work, self.numbers = work, numbers
        self.engines = {name: self.twin(name, work, vllm) for name in ("a", "b")}
        self.programs: list[subprocess.Popen[bytes]] = []

    async def up(self, name: str) -> float:
        began = time.monotonic()
        self.engines[name].start()
        while True:
            with suppress(OSError):
                status, _ = await self.call(self.engines[name].socket, "GET", "/health")
                if status == 200:
                    return round(time.monotonic() - began, 1)
            process = self.engines[name].process
            if time.monotonic() - began > 250 or (process and process.poll() is not None):
                raise RuntimeError(f"{name} does not start")
            await asyncio.sleep(0.5)

    def start_gateway(self) -> None:
        first, second = ({"socket": str(each.socket)} for each in self.engines.values())
        model = {"name": "m", "engine": first, "standby": {"engine": second}}
        self.run_programs({"listen": {"socket": str(self.work / "door.sock")}, "models": [model]}, ("program",))

    def run_programs(self, settings: dict[str, Any], names: tuple[str, ...], **environment: str) -> None:
        (self.work / "settings.json").write_text(json.dumps(settings))
        lines = [f"{name} sha256:{sha256(key.encode()).hexdigest()}{use}\n" for name, key, use in two.KEYS]
        (self.work / "keys").write_text("".join(lines))
        for name in names:
            with (self.work / f"{name}.log").open("ab") as log:
                words = [sys.executable, "-B", "-m", f"gateway.{name}", str(self.work / "settings.json")]
                there = {**os.environ, "CREDENTIALS_DIRECTORY": str(self.work), **environment}
                self.programs.append(subprocess.Popen(words, cwd=self.work, stderr=log, env=there))

    def end(self) -> None:
        for engine in self.engines.values():
            engine.kill()
        for program in self.programs:
            program.kill()
            program.wait(300)
        self.programs.clear()
        (self.work / "door.sock").unlink(missing_ok=True)

    def prompt(self, number: int) -> str:
        return f"Say {number}"

    async def call(self, socket: Path, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_unix_connection(socket)
        key = two.METRICS_KEY if path == "/metrics" else two.KEY
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]

    async def stream(self, number: int, chat: bool, seen: list[tuple[float, str]]) -> dict[str, Any]:
        """seen: when each part of the text came, while it comes."""
        body: dict[str, Any] = {
            "model": "m",
            "stream": True,
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
        }
        body |= {"stream_options": {"include_usage": True}}
        prompt = self.prompt(number)
        body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        reader, writer = await asyncio.open_unix_connection(self.work / "door.sock")
        path, data = "/v1/chat/completions" if chat else "/v1/completions", json.dumps(body).encode()
        head = f"POST {path} HTTP/1.0\r\nHost: x\r\nAuthorization: Bearer {two.KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        found: dict[str, Any] = {"ids": set(), "finish": [], "usage": None, "done": False, "error": None}
        while line := (await reader.readline()).decode():
            if not line.startswith("data: "):
                continue
            if line.startswith("data: [DONE]"):
                found["done"] = True
                continue
            event = json.loads(line[6:])
            found["error"] = event.get("error") or found["error"]
            found["usage"] = event.get("usage") or found["usage"]
            found["ids"].add(event.get("id"))
            for choice in event.get("choices", []):
                text = choice["delta"].get("content") or "" if chat else choice["text"]
                if text:
                    seen.append((time.monotonic(), text))
                found["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
        writer.close()
        return {**found, "ids": len(found["ids"]), "text": "".join(text for _, text in seen)}

    async def streams(self, fault: Any = None) -> tuple[list[dict[str, Any]], list[float]]:
        """What clients saw, and seconds from the fault to the next text of each."""
        seen: list[list[tuple[float, str]]] = [[] for _ in range(STREAMS)]
        work = [asyncio.ensure_future(self.stream(n, n % 2 == 0, seen[n])) for n in range(STREAMS)]
        at = None
        if fault:
            while min(map(len, seen)) < FAULT_AFTER and not any(each.done() for each in work):
                await asyncio.sleep(0.002)
            await asyncio.to_thread(fault)
            at = time.monotonic()
        found = await asyncio.gather(*work)
        if not all(map(len, seen)):
            raise RuntimeError(f"no text came: {found}")
        gaps = [max(b - a for (a, _), (b, _) in pairwise(each)) for each in seen]
        return found, [round(each, 3) for each in gaps] if at else []

    async def answers(self) -> str:
        _, text = await self.call(self.work / "door.sock", "GET", "/metrics")
        (line,) = (each for each in text.decode().split("\n") if each.startswith("winhost_gateway_standby_state{"))
        return "a" if 'state="first"' in line else "b"

    async def run(self, faults: list[str]) -> None:
        self.numbers.add(starts_s=[await self.up("a"), await self.up("b")])
        self.start_gateway()
        await two.until((self.work / "door.sock").exists, 20)
        await self.streams()  # what compiles, compiles here
        calm, _ = await self.streams()
        self.numbers.add(calm=[told(each, each) for each in calm])
        for name in faults:
            fault = FAULTS[name]
            victim = self.engines[await self.answers()]
            whole = {"model": "m", "prompt": "Say it", "max_tokens": 1500, "ignore_eos": True}
            other = asyncio.ensure_future(self.call(self.work / "door.sock", "POST", "/v1/completions", whole))
            found, gaps = await self.streams(lambda victim=victim, fault=fault: fault(victim))
            status, _ = await other
            same = [told(each, before) for each, before in zip(found, calm, strict=True)]
            self.numbers.add(**{name: {"gap_s": gaps, "streams": same, "without_a_byte": status}})
            victim.kill()
            if name != faults[-1]:
                self.numbers.add(**{f"{name}_restart_s": await self.up(victim.name)})
        _, text = await self.call(self.work / "door.sock", "GET", "/metrics")
        self.numbers.add(metrics=[each for each in text.decode().split("\n") if "standby" in each and each[0] != "#"])


def told(found: dict[str, Any], calm: dict[str, Any]) -> dict[str, Any]:
    text, before = found["text"], calm["text"]
    same = next((at for at, pair in enumerate(zip(text, before, strict=False)) if pair[0] != pair[1]), len(text))
    kept = {name: found[name] for name in ("ids", "finish", "usage", "done", "error")}
    return {**kept, "characters": len(text), "as_undisturbed": same}


def say_letters(folder: Path) -> None:
    """Let the model say letters alone: half of a character is no text yet, and nobody could see where it was cut."""
    from safetensors.torch import load_file, save_file

    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    for path in folder.glob("*.safetensors"):
        weights = load_file(path)
        if (head := weights.get("lm_head.weight")) is not None:
            head[[number for word, number in words.items() if word not in ascii_lowercase]] = 0
            save_file(weights, path, {"format": "pt"})


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--json", type=Path, required=True)
    given.add_argument("--vllm")
    given.add_argument("--gib", type=float, default=2)
    given.add_argument("--logs", type=Path)
    given.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="in this order")
    words = given.parse_args()
    if words.vllm:
        sys.path.insert(0, words.vllm)
    numbers = two.Numbers(words.json)
    with tempfile.TemporaryDirectory(prefix="take-") as name:
        work = Path(name)
        (work / "template").write_text(TEMPLATE)
        two.model(work / "model-a", words.gib, 0, saved=True)
        say_letters(work / "model-a")
        trial = Trial(work, numbers, words.vllm)
        try:
            asyncio.run(trial.run(words.faults))
        finally:
            trial.end()
            for log in work.glob("*.log") if words.logs else ():
                shutil.copy(log, words.logs)


if __name__ == "__main__":
    main()
