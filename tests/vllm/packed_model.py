"""Packs a model, loads it by vLLM and unpacks it: `python packed_model.py MODEL FOLDER`, by vLLM's Python.

The wheel is on its path. There is no GPU: what torch has of CUDA, and nvCOMP, are stood in for; in the workers of two
ranks by an entry point of vLLM. Prints a line of JSON.
"""

import json
import os
import shutil
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import torch

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process, where the stand-ins are


class Codec:
    def encode(self, raw: torch.Tensor) -> torch.Tensor:
        return torch.frombuffer(bytearray(zlib.compress(raw.numpy().tobytes(), 1)), dtype=torch.uint8)

    def decode(self, packed: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.frombuffer(bytearray(zlib.decompress(packed.numpy().tobytes())), dtype=torch.uint8))


class Event:
    def record(self) -> None:
        """Copies are over when they return."""

    synchronize = record


class OnTheProcessor(types.ModuleType):
    """torch, whose `empty` knows no GPU."""

    cuda = types.SimpleNamespace(Event=Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, size: int, *, dtype: torch.dtype, device: str = "cpu", pin_memory: bool = False) -> torch.Tensor:
        return torch.empty(size, dtype=dtype)


def stand_in() -> None:
    from winhost_weights import container, loading, packing

    vars(loading).update(torch=OnTheProcessor("torch"), Codec=Codec)
    vars(packing).update(Codec=Codec, MIN_PACKED_SIZE=1000)
    vars(container).update(CHUNK=1 << 14)
    torch.Tensor.cuda = torch.Tensor.clone


def tokens(folder: Path, load_format: str, ranks: int = 1) -> list[Any]:
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    several = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"} if ranks > 1 else {}
    engine = LLM(model=str(folder), load_format=load_format, enforce_eager=True, max_model_len=128, **several)
    found = []
    for _ in range(2):
        taken = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        found.append([[*each.outputs[0].token_ids] for each in engine.generate(["One two", "The gateway"], taken)])
        engine.collective_rpc("reload_weights")
    del engine
    cleanup_dist_env_and_memory()
    return found


def refusal(work: Any, *words: Any) -> str:
    try:
        work(*words)
    except ValueError as error:
        return str(error)
    return ""


def main(model: Path, folder: Path) -> None:
    stand_in()
    from winhost_weights import container, packing

    packed, back = folder / "packed", folder / "back"
    rows: list[tuple[str, int, int]] = []
    packing.pack(model, packed, lambda *row: rows.append(row))
    written = [path.stat().st_mtime_ns for path in container.weights(packed)]
    packing.pack(model, packed, lambda *row: rows.append(row))
    packing.verify(packed, lambda *row: None)
    packing.unpack(packed, back, lambda *row: None)
    said: dict[str, Any] = {
        "again": written == [path.stat().st_mtime_ns for path in container.weights(packed)] and rows[0] == rows[-1],
        "same": all(path.read_bytes() == (back / path.name).read_bytes() for path in model.iterdir()),
        "codecs": sorted(
            {tensor.codec for path in container.weights(packed) for tensor in container.read(path).tensors}
        ),
        "plain": tokens(model, "auto"),
        "packed": tokens(packed, "packed"),
        "two ranks": [tokens(model, "auto", 2), tokens(packed, "packed", 2)],
        "packed again": refusal(packing.pack, packed, folder / "twice", print),
        "onto itself": refusal(packing.pack, model, model, print),
    }
    gone = folder / "gone"
    shutil.copytree(model, gone)
    packing.replace(gone, packed, lambda *row: rows.append(row))
    said["replaced"] = [path.name for path in gone.glob("*.safetensors")] == [] and rows[-1] == rows[0]
    (folder / "linked").mkdir()
    (folder / "linked/model.safetensors").symlink_to(model / "model.safetensors")
    said["linked"] = refusal(packing.replace, folder / "linked", packed, print)
    shutil.copytree(model, folder / "other")
    (folder / "other/model.safetensors").open("r+b").truncate(1000)
    said["other"] = refusal(packing.replace, folder / "other", packed, print)
    said["other stays"] = (folder / "other/model.safetensors").exists()
    (path,) = container.weights(packed)
    tensor = next(each for each in container.read(path).tensors if each.codec == container.RAW)
    data = bytearray(path.read_bytes())
    data[tensor.start] ^= 1
    path.write_bytes(data)
    said["not replaced"] = refusal(packing.replace, model, packed, print)
    said["damaged"] = refusal(packing.verify, packed, print)
    said["original stays"] = (model / path.name).exists()
    said["unpacked"] = refusal(packing.unpack, packed, folder / "damaged", print)
    said["left"] = sorted(path.name for path in (folder / "damaged").glob("*.safetensors"))
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
