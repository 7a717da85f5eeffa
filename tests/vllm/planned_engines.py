"""Command lines and settings of two models that take turns, and of one with a mirror, as a plan writes them. As JSON.

    python -m tests.vllm.planned_engines >plan.json

For tests/vllm/two_models.py, on a machine with an NVIDIA GPU on which winhost itself cannot run.
"""

import json
import re
import sys
from dataclasses import replace
from typing import Any

from tests.serving.situations import linux
from tests.serving.stacks import request
from winhost.model.units import GiB
from winhost.model.workload import KvMirror, LoadFormat, Mirror, Model, ModelState, Shape
from winhost.serving.stack import StackRequest, stack

VLLM = "0.24.0"


def _model(name: str, gib: int, state: ModelState) -> Model:
    shape = Shape(16, 8, 128)
    return Model(name, name, weights=gib * GiB, shape=shape, context=4096, load_format=LoadFormat.DUMMY, state=state)


def _made(*models: Model, mirror: KvMirror | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Units by model, and the gateway's settings."""
    plain = request(*(model.name for model in models), vllm=VLLM)
    workload = replace(plain.workload, models=models, kv_mirror=mirror)
    asked: StackRequest = replace(plain, workload=workload, runtime="/opt/vllm/bin/vllm", image=None)
    entries: list[Any] = list(stack(linux("ubuntu-2xh100", "kvm"), asked).entries)
    units = {
        each["key"]["unit"][15:-8]: each["desired"]["text"] for each in entries if each["resource"] == "EngineUnit"
    }
    settings = next(e["desired"]["text"] for e in entries if str(e["key"].get("path")).endswith("/settings.json"))
    return {name: _started(text) for name, text in units.items()}, json.loads(settings)


def _started(unit: str) -> dict[str, Any]:
    """Words after the model's folder, and variables, as systemd reads them."""
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r'"((?:[^"\\]|\\.)*)"', line)]
    variables = re.findall(r'^Environment="(\w+)=(.*)"$', unit, re.MULTILINE)
    kept = {name: value for name, value in variables if name not in ("HOME", "VLLM_CACHE_ROOT")}
    return {"words": words[2:], "environment": kept}


def main() -> int:
    gib = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    engines, settings = _made(*(_model(name, gib, ModelState.SLEEPING) for name in "ab"))
    mirror = KvMirror(Mirror.TIERS, 2 * GiB)
    mirrored, _ = _made(_model("kv", 1, ModelState.RESIDENT), mirror=mirror)
    found = {"engines": engines | mirrored, "models": settings["models"], "turns": settings["turns"]}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
