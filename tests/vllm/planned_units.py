"""What a plan starts, started on real GPUs: the engine by its unit's own command and environment, behind the gateway.

    python -m tests.vllm.planned_units write FOLDER      on a computer with winhost: what plans would put there
    python3 planned_units.py run FOLDER NUMBERS.json [NVCOMP.whl]   on a throw-away machine with GPUs, as root

The second needs vLLM for `python3` (PYTHONPATH), torch and transformers, and nothing of winhost. It takes the
part of systemd, which such a machine may lack: user, private network, folders, limits and credentials of the units. Of
their other protections it has none. Files are put where a plan puts them.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VERSION = "0.24.0"
PROGRAM = "/opt/vllm/bin/vllm"
ADDRESS = ("127.0.0.1", 8443)
KEY = "wh-" + "k" * 40
SHAPE = {"layers": 8, "kv_heads": 8, "head_dim": 128, "hidden": 4096, "vocabulary": 258}
# GPUs of one model, what leads to that Linux, and the format of the weights.
SCENARIOS = {
    "bare-metal, one GPU": (1, "none", "auto"),
    "bare-metal, both GPUs": (2, "none", "auto"),
    "DDA, both GPUs": (2, "microsoft", "auto"),
    "bare-metal, one GPU, packed": (1, "none", "packed"),
    "bare-metal, both GPUs, packed": (2, "none", "packed"),
}
GATEWAY_UNIT = "winhost-gateway.service"


# ---- on a computer with winhost


def write(folder: Path) -> None:
    """The entries of each scenario, as a plan has them."""
    import yaml

    from winhost.lab.hostfile import expand
    from winhost.model.workloadfile import load_workload
    from winhost.resources.host import HostFacts
    from winhost.serving.entries import PythonWheels
    from winhost.serving.stack import StackRequest, stack

    nvcomp = PythonWheels("3.12", "/srv/wheels", (f"sha256:{'0' * 64} 1 nvcomp-6.0.0-py3-none-any.whl",))

    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, (gpus, virtualization, form)) in enumerate(SCENARIOS.items(), 1):
        facts, _ = expand(Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json")
        facts.resources["LinuxSystem"][0].state["virtualization"] = virtualization  # type: ignore[index]
        model = {"id": "org/tiny", "parameters": 1_757_000_000, "dtype": "bfloat16", "context": 4096, "sequences": 64}
        model |= {"shape": SHAPE, "parallel": {"tensor": gpus}, "load_format": form}
        text = {"schema": "winhost.workload/1", "models": {"tiny": model}, "versions": {"vllm": VERSION}}
        (folder / "workload.yaml").write_text(yaml.safe_dump(text))
        request = StackRequest(
            workload=load_workload(folder / "workload.yaml"),
            runtime=PROGRAM,
            image=None,
            files={"tiny": {"source": "Hugging Face", "files": [f"sha256:{'0' * 64} 0 model.safetensors"]}},
            keys=(f"alice sha256:{sha256(KEY.encode()).hexdigest()}",),
            listen=ADDRESS,
            nvcomp=nvcomp if form == "packed" else None,
        )
        made = stack(HostFacts(facts), request)
        profile = next(note for note in made.notes if "profile" in note)
        out = {"scenario": name, "profile": profile, "entries": list(made.entries)}
        (folder / f"{number}-{re.sub('[^a-z0-9]+', '-', name.lower())}.json").write_text(json.dumps(out, indent=1))


# ---- on a machine with GPUs


class Unit:
    """What of a unit's text is done here."""

    def __init__(self, text: str) -> None:
        pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
        self.values = {name: [value for key, _, value in pairs if key == name] for name, _, _ in pairs}

    def one(self, name: str) -> str:
        return self.values.get(name, [""])[-1]

    def words(self, name: str) -> list[list[str]]:
        """Of its commands, without what systemd means by their first character."""
        return [
            shlex.split(line.replace("%%", "%").replace("$$", "$").lstrip("-+")) for line in self.values.get(name, [])
        ]

    @property
    def environment(self) -> dict[str, str]:
        return dict(shlex.split(line)[0].split("=", 1) for line in self.values.get("Environment", []))


class Service:
    """A unit that runs, as a user of its own."""

    def __init__(self, text: str, uid: int, log: Path) -> None:
        self.unit, self.uid, self.log_file = Unit(text), uid, log
        self.group = self.unit.one("SupplementaryGroups")
        self.runtime = self._folder("/run", "RuntimeDirectory", self.unit.one("RuntimeDirectoryMode") or "0755")
        self._folder("/var/cache", "CacheDirectory", "0755")
        self.process = self._start(self.unit.words("ExecStart")[0])

    def _folder(self, above: str, name: str, mode: str) -> Path | None:
        if not self.unit.one(name):
            return None
        made = Path(above) / self.unit.one(name)
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(int(mode, 8))
        os.chown(made, self.uid, self.uid)
        return made

    def _start(self, command: list[str]) -> "subprocess.Popen[bytes]":
        who = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--no-new-privs", "--bounding-set=-all"]
        who += [f"--groups={group_number(self.group)}" if self.group else "--clear-groups", "--inh-caps=-all", "--"]
        if self.unit.one("PrivateNetwork") == "yes":
            who = ["unshare", "--net", "--", sys.executable, str(Path(__file__).resolve()), "in-own-network", *who]
        named = dict.fromkeys(("USER", "LOGNAME"), "winhost")  # as systemd says, of a dynamic user as well
        if find_spec("flashinfer") is None:  # a vLLM without it does not start by itself
            named["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        environment = {**os.environ, **named, **self.unit.environment, **self._credentials()}
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [*who, *command],
                cwd=self.unit.one("WorkingDirectory") or "/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=int(self.unit.one("UMask") or "022", 8),
                start_new_session=True,
            )

    def _credentials(self) -> dict[str, str]:
        loaded = [line.partition(":") for line in self.unit.values.get("LoadCredential", [])]
        if not loaded:
            return {}
        folder = Path(f"/run/credentials-{self.uid}")
        folder.mkdir(mode=0o700, exist_ok=True)
        for name, _, path in loaded:
            shutil.copyfile(path, folder / name)
        for each in (folder, *folder.iterdir()):
            os.chown(each, self.uid, self.uid)
        return {"CREDENTIALS_DIRECTORY": str(folder)}

    def after_start(self) -> float:
        """Seconds until what is to run after its start has ended."""
        began = time.monotonic()
        for command in self.unit.words("ExecStartPost"):
            beside = subprocess.Popen(command)
            while beside.poll() is None:
                if self.process.poll() is not None:
                    beside.kill()
                    raise RuntimeError(f"it ended with {self.process.returncode}:\n{self.log[-3000:]}")
                time.sleep(0.2)
            if beside.returncode:
                raise RuntimeError(f"{command} ended with {beside.returncode}")
        return round(time.monotonic() - began, 1)

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8", "replace")

    def stop(self) -> float:
        """Seconds until it ended by SIGTERM to its first process; what is left of it is killed."""
        began = time.monotonic()
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(300)
        took = round(time.monotonic() - began, 1)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.runtime:
            shutil.rmtree(self.runtime, ignore_errors=True)
        return took


def in_own_network(command: list[str]) -> None:
    """With its loopback up, as systemd has it in a private network."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up = struct.pack("16sh", b"lo", 1)  # IFF_UP
        fcntl.ioctl(any_socket, 0x8914, up)  # SIOCSIFFLAGS
    os.execvp(command[0], command)


def group_number(name: str) -> int:
    import grp

    with suppress(KeyError):
        return grp.getgrnam(name).gr_gid
    subprocess.run(["groupadd", "--system", name], check=True, timeout=300)
    return grp.getgrnam(name).gr_gid


def put(entries: list[dict[str, Any]]) -> None:
    """Its files, where a plan puts them."""
    for each in entries:
        if each["resource"] == "LinuxFile":
            path = Path(each["key"]["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(each["desired"]["text"], "utf-8")
        if each["resource"] == "LinuxFolder":
            folder = Path(each["key"]["path"])
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in each["desired"]["files"].items():
                (folder / name).write_text(text, "utf-8")


def pack(entries: list[dict[str, Any]], wheel: Path) -> dict[str, Any]:
    """As a plan packs a model: by its own command, but without the sandbox that systemd-run gives it."""
    desired = next(each["desired"] for each in entries if each["resource"] == "PackedModel")
    words, python = desired["command"], str(Path(PROGRAM).with_name("python3"))
    settings = (word.removeprefix("--setenv=") for word in words if word.startswith("--setenv="))
    environment = dict(each.split("=", 1) for each in settings)
    for each in wheel.parent.glob("*.whl"):  # nvCOMP's own, and its library's
        unzip = [sys.executable, "-m", "zipfile", "-e", str(each), environment["PYTHONPATH"].split(":")[1]]
        subprocess.run(unzip, check=True, timeout=300)
    began, source, folder = time.monotonic(), Path(words[-2]), Path(words[-1])
    folder.mkdir(parents=True, exist_ok=True)
    command = words[words.index(python) :]
    subprocess.run(command, check=True, env={**os.environ, **environment}, timeout=600)
    sizes = {str(each): sum(file.stat().st_size for file in each.iterdir()) for each in (source, folder)}
    return {"seconds": round(time.monotonic() - began, 1), "bytes": sizes}


def model_of_random_weights(folder: Path) -> None:
    """1.76 billion parameters in bf16, and a tokenizer of letters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=4096, intermediate_size=14_336, num_attention_heads=32,
        num_key_value_heads=8, num_hidden_layers=SHAPE["layers"], max_position_embeddings=4096, dtype="bfloat16",
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(0)
    with torch.device("cuda"):
        LlamaForCausalLM(config).save_pretrained(folder)


def asked(method: str, path: str, body: Any = None, key: str = KEY, wait: float = 120) -> tuple[int, bytes]:
    connection = HTTPConnection(*ADDRESS, timeout=wait)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {**headers, "Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def held_or_refused(completion: Any) -> int | str:
    """What becomes of a request whose engine has just ended: its unit might start it anew."""
    try:
        return asked("POST", "/v1/completions", completion, wait=5)[0]
    except TimeoutError:
        return "held"


def streamed(tokens: int, prompt: str) -> tuple[int, float, int]:
    """The status, seconds to the first text, and tokens as the engine counts them."""
    connection = HTTPConnection(*ADDRESS, timeout=300)
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    began = time.monotonic()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer, first, count = connection.getresponse(), 0.0, 0
    for line in answer:
        if line.startswith(b"data: {"):
            piece = json.loads(line[6:])
            first = first or time.monotonic() - began
            count = (piece.get("usage") or {}).get("completion_tokens", count)
    return answer.status, first, count


def many(clients: int, tokens: int) -> dict[str, Any]:
    found: list[tuple[int, float, int]] = []

    def one(number: int) -> None:
        found.append(streamed(tokens, f"{number} " * 8))

    began = time.monotonic()
    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(300)
    firsts = sorted(first for _, first, _ in found)
    return {
        "clients": clients,
        "statuses": sorted({status for status, _, _ in found}),
        "whole": sum(count == tokens for _, _, count in found),
        "first_token_ms": round(firsts[len(firsts) // 2] * 1000, 1),
        "tokens_per_s": round(sum(count for _, _, count in found) / (time.monotonic() - began)),
    }


def listening() -> set[tuple[str, int]]:
    """TCP sockets that this machine listens on, outside private networks."""
    found = set()
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text().splitlines()[1:]:
            where, state = line.split()[1], line.split()[3]
            if state == "0A":
                address, _, port = where.rpartition(":")
                found.add((address, int(port, 16)))
    return found


def reaches(path: str, uid: int) -> bool:
    """Whether a local user without any group gets through to an engine's socket."""
    program = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
    who = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    return subprocess.run([*who, "/usr/bin/python3", "-c", program], capture_output=True, timeout=300).returncode == 0


def used_mib() -> list[int]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, timeout=300).stdout.split()]


@contextmanager
def running(entries: list[dict[str, Any]], logs: Path, name: str) -> Iterator[tuple[Service, Service, float]]:
    put(entries)
    engine_text = next(each["desired"]["text"] for each in entries if each["resource"] == "EngineUnit")
    gateway_text = Path(f"/usr/local/lib/systemd/system/{GATEWAY_UNIT}").read_text("utf-8")
    group_number("winhost-engines")
    gateway = Service(gateway_text.replace("/usr/bin/python3", sys.executable), 64002, logs / f"{name}.gateway.log")
    engine = Service(engine_text, 64001, logs / f"{name}.engine.log")
    try:
        yield engine, gateway, engine.after_start()
    finally:
        engine.stop()
        gateway.stop()


def said(number: int) -> str:
    """What it says to a prompt, greedily: the same with any format of the same weights."""
    body = {"model": "tiny", "prompt": f"{number} times", "max_tokens": 32, "temperature": 0}
    return str(json.loads(asked("POST", "/v1/completions", body)[1])["choices"][0]["text"])


def tried(given: dict[str, Any], logs: Path, name: str, wheel: Path | None) -> dict[str, Any]:
    entries = given["entries"]
    packed = any(each["resource"] == "PackedModel" for each in entries)
    if packed:
        put(entries)
        made = pack(entries, wheel or Path())
    before, memory = listening(), used_mib()
    completion = {"model": "tiny", "prompt": "Once", "max_tokens": 8, "temperature": 0}
    with running(given["entries"], logs, name) as (engine, _, seconds):
        socket_file = "/run/winhost-engines/tiny/engine.sock"
        found = {
            "profile": given["profile"],
            "command": " ".join(engine.unit.words("ExecStart")[0][1:]),
            "started_s": seconds,
            "texts": sha256(json.dumps([said(number) for number in range(8)]).encode()).hexdigest()[:16],
            **({"packed": made} if packed else {}),
            "ready": asked("GET", "/ready", key="")[0],
            "completion": asked("POST", "/v1/completions", completion)[0],
            "chat": asked(
                "POST", "/v1/chat/completions", {**completion, "messages": [{"role": "user", "content": "x"}]}
            )[0],
            "wrong_model": asked("POST", "/v1/completions", {**completion, "model": "nobody"})[0],
            "no_key": asked("POST", "/v1/completions", completion, key="")[0],
            "wrong_key": asked("POST", "/v1/completions", completion, key="wh-" + "x" * 40)[0],
            "dev_endpoints": {path: asked("POST", path)[0] for path in ("/sleep", "/wake_up", "/collective_rpc")},
            "one": many(1, 256),
            "sixteen": many(16, 256),
            "sixty_four": many(64, 256),
            "listens_beyond_the_gateway": sorted(map(str, listening() - before - {("0100007F", ADDRESS[1])})),
            "socket_reached_by_another_user": reaches(socket_file, 64009),
            "gpu_memory_mib": used_mib(),
            "nccl": sorted(set(re.findall(r"via (\S+)", engine.log)))[:4],
            "warnings": sorted(set(re.findall(r"WARNING [^\n]*?\] ([^\n]{0,160})", engine.log)))[:12],
        }
        found["stopped_s"] = engine.stop()
        found["without_its_engine"] = held_or_refused(completion)
    time.sleep(2)
    return {**found, "gpu_memory_left_mib": [now - then for now, then in zip(used_mib(), memory, strict=True)]}


def run(folder: Path, numbers: Path, wheel: Path | None = None) -> None:
    program = Path(PROGRAM)
    program.parent.mkdir(parents=True, exist_ok=True)
    there = os.environ.get("PYTHONPATH", "")
    python = f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{there}" exec {sys.executable}'
    for file, words in ((program, " -m vllm.entrypoints.cli.main"), (program.with_name("python3"), "")):
        file.write_text(f'#!/bin/sh\n{python}{words} "$@"\n')
        file.chmod(0o755)
    began = time.monotonic()
    model = Path("/srv/winhost/models/tiny")
    # By another process, which leaves nothing on the GPU; engines are nobody who may read what only root may.
    subprocess.run([sys.executable, str(Path(__file__).resolve()), "make-model", str(model)], check=True, timeout=600)
    for file in model.iterdir():
        file.chmod(0o644)
    found: dict[str, Any] = {"model_made_s": round(time.monotonic() - began, 1), "host": socket.gethostname()}
    for file in sorted(folder.glob("*.json")):
        given = json.loads(file.read_text())
        try:
            found[given["scenario"]] = tried(given, numbers.parent, file.stem, wheel)
        except Exception as error:  # noqa: BLE001 - the other scenarios go on, and this one says why
            found[given["scenario"]] = {"failed": f"{type(error).__name__}: {error}"}
        numbers.write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps({given["scenario"]: found[given["scenario"]]}), flush=True)  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    elif sys.argv[1] == "make-model":
        model_of_random_weights(Path(sys.argv[2]))
    elif sys.argv[1] == "in-own-network":
        in_own_network(sys.argv[2:])
    else:
        run(*map(Path, sys.argv[2:]))
