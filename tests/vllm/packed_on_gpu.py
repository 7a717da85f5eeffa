"""Packed weights on an NVIDIA GPU, with a real vLLM and nvCOMP. Each thing seen is a line of JSON in FOLDER/rows.jsonl.

    python3 tests/vllm/packed_on_gpu.py make FOLDER SOURCE           # three models, of the rows of SOURCE's matrices
    python3 tests/vllm/packed_on_gpu.py all FOLDER [SWAPS [SECONDS]]
    python3 tests/vllm/packed_on_gpu.py answer FOLDER a plain|packed GPUS

SOURCE is a safetensors file of a BERT with hidden size 384, such as all-MiniLM-L6-v2. `all` runs as root, for the page
cache and for cgroups, with the wheel of `winhost weights pack` on PYTHONPATH, and ends soon after SECONDS.
"""

import fcntl
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__)
SHAPES = {"big": (24, 4096, 14336, 32000), "a": (8, 2048, 5632, 8000), "b": (8, 2048, 5632, 8000)}
LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "attention.output.dense",
    "mlp.gate_proj": "intermediate.dense",
    "mlp.up_proj": "intermediate.dense",
    "mlp.down_proj": "output.dense",
    "input_layernorm": "attention.output.LayerNorm",
    "post_attention_layernorm": "output.LayerNorm",
}
LOADS = (  # bytes a second (0: no limit), page cache, loaders
    (10**9, False, ("default", "packed", "packed-direct")),
    (0, True, ("default", "packed")),
    (0, False, ("default", "packed", "packed-direct")),
)
EXTRA = {"packed": {"keep": True}, "packed-direct": {"keep": False}}
PART = 1 << 24
HOUR = 3600
BEGUN = time.monotonic()


def say(folder: Path, **row: Any) -> None:
    text = json.dumps({"at": round(time.monotonic() - BEGUN, 1), **row})
    with (folder / "rows.jsonl").open("a") as out:
        out.write(f"{text}\n")
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One at a time: vLLM takes memory that another process allocates while an engine goes to sleep for a fault."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(folder: Path, source: Path) -> None:
    import torch

    files = import_module("safetensors.torch")
    rows = {name: each.to(torch.bfloat16).cuda() for name, each in files.load_file(source).items()}
    for seed, (name, (layers, hidden, inner, words)) in enumerate(SHAPES.items()):
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def fill(kind: str, *shape: int, generator: Any = generator) -> Any:
            known = rows[f"{kind}.weight"]
            known, size = known.reshape(-1, 384 if known.dim() > 1 else 1), torch.Size(shape).numel()
            times = -(-size // known.numel())
            order = [torch.randperm(len(known), generator=generator, device="cuda") for _ in range(times)]
            return torch.cat([known[each] for each in order]).reshape(-1)[:size].reshape(shape).cpu()

        tensors = {"model.embed_tokens.weight": fill("embeddings.word_embeddings", words, hidden)}
        sizes = {"k_proj": (1024, hidden), "v_proj": (1024, hidden), "norm": (hidden,), "down_proj": (hidden, inner)}
        for number in range(layers):
            for each, kind in LAYER.items():
                shape = next((size for end, size in sizes.items() if each.endswith(end)), (hidden, hidden))
                shape = (inner, hidden) if each.endswith(("gate_proj", "up_proj")) else shape
                tensors[f"model.layers.{number}.{each}.weight"] = fill(f"encoder.layer.{number % 6}.{kind}", *shape)
        tensors["model.norm.weight"] = fill("embeddings.LayerNorm", hidden)
        tensors["lm_head.weight"] = fill("embeddings.word_embeddings", words, hidden)
        target = folder / name / "plain"
        target.mkdir(parents=True, exist_ok=True)
        names, count = sorted(tensors), 3 if name == "big" else 1
        for number in range(count):
            part = {each: tensors[each] for each in names[number::count]}
            files.save_file(
                part, target / f"model-{number + 1:05}-of-{count:05}.safetensors", metadata={"format": "pt"}
            )
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden}
        config |= {"intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": hidden // 128}
        config |= {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": words, "max_position_embeddings": 2048}
        config |= {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
        config |= {"torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
        (target / "config.json").write_text(json.dumps(config))
        say(folder, made=name, bytes=sum(each.numel() * 2 for each in tensors.values()), files=count)
    os.sync()


def packer(command: str, *folders: Path) -> list[str]:
    return [sys.executable, "-m", "winhost_weights", command, *map(str, folders)]


def pack_big(folder: Path) -> None:
    """Killed once after its first file, then run again."""
    plain, packed = folder / "big/plain", folder / "big/packed"
    first = subprocess.Popen(packer("pack", plain, packed), stdout=subprocess.PIPE, text=True)
    assert first.stdout
    first.stdout.readline()
    time.sleep(1)
    first.kill()
    first.communicate(timeout=HOUR)
    partial = [path.name for path in packed.glob("*.partial")]
    for command, folders in (("pack", (plain, packed)), ("verify", (packed,))):
        began = time.monotonic()
        done = subprocess.run(packer(command, *folders), stdout=subprocess.PIPE, text=True, check=False, timeout=HOUR)
        files = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        say(folder, step=command, left=partial, code=done.returncode, s=time.monotonic() - began, files=files)


def pack_small(folder: Path, name: str) -> None:
    plain, packed, back = (folder / name / each for each in ("plain", "packed", "back"))
    for command, folders in (("pack", (plain, packed)), ("unpack", (packed, back))):
        subprocess.run(packer(command, *folders), check=True, stdout=subprocess.DEVNULL, timeout=HOUR)
    same = all(path.read_bytes() == (back / path.name).read_bytes() for path in plain.iterdir())
    say(folder, step="unpack", model=name, same=same)


def digest(model: Any) -> str:
    import torch

    ramp = torch.arange(PART, device="cuda", dtype=torch.int32) * 1664525 + 1013904223
    sums = []
    for _, each in sorted(model.named_parameters()):
        flat = each.data.reshape(-1).view(torch.int16)
        for at in range(0, flat.numel(), PART):
            part = flat[at : at + PART].to(torch.int32)
            sums.append((part * ramp[: part.numel()]).sum(dtype=torch.int64))
    return hashlib.sha256(json.dumps(torch.stack(sums).tolist()).encode()).hexdigest()[:16]


def load(folder: Path, limit: int, warm: bool, loader: str) -> None:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    extra = EXTRA.get(loader)
    model = folder / "big" / ("packed" if extra else "plain")
    words = {"load_format": "packed" if extra else "auto", "model_loader_extra_config": extra or {}}
    config = EngineArgs(
        model=str(model), skip_tokenizer_init=True, enforce_eager=True, max_model_len=512, **words
    ).create_engine_config()
    if extra:
        for each in ("nvidia.nvcomp", "winhost_weights.loading"):
            import_module(each)  # not timed
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{20000 + os.getpid() % 20000}", 0, "nccl")
        ensure_model_parallel_initialized(1, 1)
        loads = get_model_loader(config.load_config)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            filled = initialize_model(vllm_config=config, model_config=config.model_config)
        for each in filled.parameters():
            each.data.fill_(float("nan"))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        os.sync()
        if not warm:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        for path in model.glob("*.safetensors") if warm else ():
            subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True, timeout=HOUR)
        if limit:
            (limited(folder, limit) / "cgroup.procs").write_text(str(os.getpid()))
        used, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        loads.load_weights(filled, config.model_config)
        torch.cuda.synchronize()
        took, then = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
        Path("/sys/fs/cgroup/cgroup.procs").write_text(str(os.getpid()))
        cpu = then.ru_utime + then.ru_stime - used.ru_utime - used.ru_stime
        peak = (torch.cuda.max_memory_allocated() - before) >> 20
        row = {"s": round(took, 2), "cpu_s": round(cpu, 2), "gpu_MiB": peak, "digest": digest(filled)}
        say(folder, load=loader, limit=limit, warm=warm, **row)


def limited(folder: Path, limit: int) -> Path:
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    whole = Path(f"/sys/dev/block/{name}").resolve()
    if (whole / "partition").exists():
        name = (whole.parent / "dev").read_text().strip()
    with suppress(OSError):  # it is so already
        Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+io")
    group = Path(f"/sys/fs/cgroup/packed-{limit}")
    group.mkdir(exist_ok=True)
    (group / "io.max").write_text(f"{name} rbps={limit}")
    return group


def engine(model: Path, *, eager: bool = True, gpus: int = 1) -> Any:
    from vllm import LLM

    packed = model.name == "packed"
    return LLM(
        tensor_parallel_size=gpus,
        model=str(model), load_format="packed" if packed else "auto", skip_tokenizer_init=True, enforce_eager=eager,
        max_model_len=512, gpu_memory_utilization=0.15, kv_cache_memory_bytes=1 << 30, enable_sleep_mode=True,
        max_num_seqs=16, compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8]} if not eager else None,
    )  # fmt: skip


def tokens(llm: Any, prompts: int, length: int = 16) -> list[list[int]]:
    """One after the other: with several at once, the default loader's differ between its own runs."""
    from vllm import SamplingParams

    found = []
    taken = SamplingParams(temperature=0, max_tokens=length, detokenize=False, ignore_eos=True)
    for number in range(prompts):
        prompt = {"prompt_token_ids": [1, *(7 + (37 * number + 11 * each) % 5000 for each in range(40))]}
        found.append(list(llm.generate([prompt], taken, use_tqdm=False)[0].outputs[0].token_ids))
    return found


def short(found: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def swap(llm: Any, path: Path | None = None) -> None:
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)} if path else {})
    llm.wake_up(tags=["kv_cache"])


def answer(folder: Path, name: str, form: str, gpus: int = 1) -> None:
    """Tokens of a model by an engine of its own; with a level-2 sleep between."""
    with alone(folder):
        began = time.monotonic()
        llm = engine(folder / name / form, gpus=gpus)
        up = time.monotonic() - began
        row: dict[str, Any] = {"up_s": round(up, 1), "tokens": short(tokens(llm, 8)), "digest": llm.apply_model(digest)}
        took = []
        for _ in range(3):
            began = time.monotonic()
            swap(llm)
            took.append(round(time.monotonic() - began, 2))
        row |= {"level_2_s": took, "after": short(tokens(llm, 8)), "digest_after": llm.apply_model(digest)}
        say(folder, engine=name, form=form, gpus=gpus, **row)


def swaps(folder: Path, form: str, eager: bool, count: int, until: float) -> None:
    """One warm engine, the weights of two models in turn: whether its tokens and parameters are always the right ones.

    Right is what it had of each the first time; whether that was right, the engines of `answer` say.
    """
    with alone(folder):
        llm = engine(folder / "a" / form, eager=eager)
    found = tokens(llm, 8)
    known, full = {"a": (short(found[:1]), llm.apply_model(digest))}, {"a": short(found)}
    took, wrong, done = [], [], 0
    while done < count and time.time() < until:
        name = "ba"[done % 2]
        with alone(folder):
            began = time.monotonic()
            swap(llm, folder / name / form)
            took.append(time.monotonic() - began)
        found = tokens(llm, 1 if name in full else 8)
        full.setdefault(name, short(found))
        seen = short(found[:1]), llm.apply_model(digest)
        if seen != known.setdefault(name, seen):
            wrong.append((done, name, seen))
        done += 1
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    took.sort()
    times = {"median_s": round(took[len(took) // 2], 3), "most_s": round(took[-1], 3)} if took else {}
    row = {"wrong": len(wrong), "which": wrong[:5], "answers": full, "known": known, "host_MiB": used, **times}
    say(folder, swaps=done, form=form, eager=eager, **row)


def everything(folder: Path, count: int, seconds: float) -> None:
    until = time.time() + seconds
    os.environ["PACKED_BEGUN"] = str(BEGUN)

    def start(*words: Any) -> subprocess.Popen[bytes]:
        log = (folder / f"log-{'-'.join(map(str, words[:4]))}").open("wb")
        return subprocess.Popen([sys.executable, HERE, words[0], folder, *map(str, words[1:])], stdout=log, stderr=log)

    small = [start("pack", name) for name in "ab"]
    big = start("pack-big")
    for each in small:
        each.wait(HOUR)
    beside = [start("swaps", "packed", eager, count, until) for eager in (1, 0)]
    beside += [start("answer", name, "plain") for name in "ab"]
    big.wait(HOUR)
    loads = start("loads")
    loads.wait(HOUR)
    for form in ("plain", "packed"):
        start("answer", "big", form).wait(HOUR)
    for each in beside:
        each.wait(HOUR)


def loads(folder: Path) -> None:
    """Each in a process of its own, which begins with vLLM imported and without CUDA."""
    for each in ("vllm.engine.arg_utils", "vllm.model_executor.models.llama"):
        import_module(each)
    with alone(folder):
        for limit, warm, loaders in LOADS:
            for loader in loaders:
                if not (child := os.fork()):
                    try:
                        load(folder, limit, warm, loader)
                    except BaseException as error:  # noqa: BLE001 - a row of it, and the next
                        say(folder, load=loader, limit=limit, warm=warm, error=f"{type(error).__name__}: {error}"[:500])
                    os._exit(0)
                os.waitpid(child, 0)


def main(what: str, folder: Path, *words: str) -> None:
    global BEGUN
    BEGUN = float(os.environ.get("PACKED_BEGUN", BEGUN))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process, where its parameters can be seen
    if what == "make":
        make(folder, Path(words[0]))
    elif what == "all":
        everything(folder, int(words[0] if words else 1000), float(words[1] if words[1:] else 3600))
    elif what == "pack":
        pack_small(folder, words[0])
    elif what == "pack-big":
        pack_big(folder)
    elif what == "loads":
        loads(folder)
    elif what == "answer":
        answer(folder, *words[:2], *map(int, words[2:]))
    else:
        swaps(folder, words[0], words[1] == "1", int(words[2]), float(words[3]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute(), *sys.argv[3:])
