"""What vLLM takes of an NVIDIA GPU for models of known shapes, with random weights and four layers each.

    python3 tests/vllm/memory_on_gpu.py FOLDER [SECONDS]

Each start is a line of JSON in FOLDER/rows.jsonl: the GiB that the engine's own log names for weights, activations,
CUDA graphs and what else is on the GPU, and the MiB that nvidia-smi sees in use. Nobody else may use the GPU.
The peak of activations does not depend on the number of layers; weights and graphs do.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

LAYERS = 4
DENSE = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
SHAPES = {  # architecture, model type, the six numbers of DENSE
    "llama-3.1-8b": ("LlamaForCausalLM", "llama", 4096, 14336, 32, 8, 128, 128256),
    "qwen3-8b": ("Qwen3ForCausalLM", "qwen3", 4096, 12288, 32, 8, 128, 151936),
    "mistral-7b": ("MistralForCausalLM", "mistral", 4096, 14336, 32, 8, 128, 32000),
    "llama-3.3-70b": ("LlamaForCausalLM", "llama", 8192, 28672, 64, 8, 128, 128256),
    "qwen2.5-0.5b": ("Qwen2ForCausalLM", "qwen2", 896, 4864, 14, 2, 64, 151936),
    "qwen3-30b-a3b": ("Qwen3MoeForCausalLM", "qwen3_moe", 2048, 6144, 32, 4, 128, 151936),
    "gemma-3-1b": ("Gemma3ForCausalLM", "gemma3_text", 1152, 6912, 4, 1, 256, 262144),
}
MORE = {"qwen3-30b-a3b": {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}}
SMALL, LARGE = (2048, 256), (8192, 1024)  # tokens and sequences that vLLM batches below and above 70 GiB of GPU
STARTS = [
    ("llama-3.1-8b", SMALL, ""),
    ("llama-3.1-8b", LARGE, ""),
    ("llama-3.1-8b", SMALL, "0"),
    ("llama-3.1-8b", LARGE, "0"),
    ("qwen3-8b", SMALL, ""),
    ("qwen3-8b", LARGE, ""),
    ("mistral-7b", SMALL, ""),
    ("mistral-7b", LARGE, ""),
    ("mistral-7b", SMALL, ""),  # again, with what the first start compiled
    ("qwen3-30b-a3b", SMALL, ""),
    ("qwen3-30b-a3b", LARGE, ""),
    ("gemma-3-1b", SMALL, ""),
    ("gemma-3-1b", LARGE, ""),
    ("llama-3.3-70b", SMALL, ""),
    ("llama-3.3-70b", SMALL, "eager"),
    ("llama-3.1-8b", SMALL, "eager"),
    ("llama-3.3-70b", SMALL, "0"),
    ("qwen2.5-0.5b", SMALL, ""),
]
SAID = {
    "weights": r"([\d.]+) GiB for weight",
    "activations": r"([\d.]+) GiB for peak activation",
    "beside torch": r"([\d.]+) GiB for non-torch",
    "graphs": r"([\d.]+) GiB for CUDAGraph",
    "kv": r"Available KV cache memory: ([\d.]+) GiB",
    "graphs estimated": r"([\d.]+) GiB \(estimated\)",
    "free": r"Free memory on device \(([\d.]+)/",
}
START = """
import subprocess, sys
from vllm import LLM
if __name__ == "__main__":
    tokens, sequences = int(sys.argv[2]), int(sys.argv[3])
    engine = LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, gpu_memory_utilization=0.5,
        max_model_len=4096, max_num_batched_tokens=tokens, max_num_seqs=sequences,
        enforce_eager=sys.argv[4] == "eager")
    used = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True, timeout=300)
    print("USED", used.stdout.strip())
"""


def start(folder: Path, name: str, batch: tuple[int, int], runner: str) -> dict[str, object]:
    """Start an engine once; runner: "0" asks for model runner V1, "eager" for no graphs, "" leaves vLLM its choice."""
    architecture, kind, *numbers = SHAPES[name]
    config = {
        "architectures": [architecture],
        "model_type": kind,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        **dict(zip(DENSE, numbers, strict=True)),
        **MORE.get(name, {}),
    }
    model = folder / name
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    script = folder / "start.py"
    script.write_text(START)
    extra = {"VLLM_LOGGING_LEVEL": "DEBUG"} | ({"VLLM_USE_V2_MODEL_RUNNER": "0"} if runner == "0" else {})
    begun = time.monotonic()
    command = [sys.executable, str(script), str(model), str(batch[0]), str(batch[1]), runner]
    done = subprocess.run(
        command,
        env={**os.environ, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=3600,
    )
    row: dict[str, object] = {"model": name, "tokens": batch[0], "sequences": batch[1], "layers": LAYERS}
    row |= {
        "runner": "V2" if "Using V2 Model Runner" in done.stdout else "V1",
        "eager": runner == "eager",
        "rc": done.returncode,
    }
    for key, pattern in SAID.items():
        if found := re.search(pattern, done.stdout):
            row[key] = float(found[1])
    if used := re.search(r"USED (\d+)", done.stdout):
        row["used"] = int(used[1])
    if done.returncode:
        row["end"] = done.stdout[-1500:]
    return row | {"seconds": round(time.monotonic() - begun, 1)}


def main() -> None:
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3600.0
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    done = folder / "rows.jsonl"
    known = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    for name, batch, runner in STARTS[len(known) :]:
        if time.monotonic() - begun > seconds:
            break
        row = json.dumps(start(folder, name, batch, runner))
        with done.open("a") as out:
            out.write(f"{row}\n")
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
