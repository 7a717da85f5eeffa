"""Wheels and a model that stand in for vLLM's, for a rehearsal on the processor."""

import json
import shutil
import struct
import zipfile
from pathlib import Path

from tests.gpu import standin_engine


def standin_wheels(folder: Path, version: str, newer: str, libraries: Path) -> None:
    """libraries: wheels of aiohttp, which its engine needs, and of what aiohttp needs."""
    folder.mkdir()
    for each in libraries.glob("*.whl"):
        shutil.copy(each, folder)
    program = Path(str(standin_engine.__file__)).read_text()
    for each in (version, newer):
        info = f"vllm-{each}.dist-info"
        texts = {
            "vllm/__init__.py": f"__version__ = {each!r}\n",
            "vllm/cli.py": program,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {each}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": "[console_scripts]\nvllm = vllm.cli:main\n",
        }
        with zipfile.ZipFile(folder / f"vllm-{each}-py3-none-any.whl", "w") as archive:
            for path, text in texts.items():
                archive.writestr(zipfile.ZipInfo(path), text)


def standin_model(folder: Path) -> None:
    """A config, and weights of nothing."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2 << 20], "data_offsets": [0, 4 << 20]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 << 20))
