"""Read the sentences for families/engine-areas.yaml from the sources of the engines, each folder one unpacked package:
`python -m tests.symptoms.engine_sentences vllm-0.24/vllm vllm-0.33/vllm sglang-0.5/sglang`.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.symptoms.pastes import pastes, read
from winhost.model.catalogue_file import load_catalogue
from winhost.symptoms.scan import scan
from winhost.symptoms.table import _HERE

TABLE = Path(str(_HERE)) / "families" / "engine-areas.yaml"
SENTENCES = Path(str(_HERE)) / "engine-sentences.json"
GAP = "\x00"  # stands for what is filled in when it is said
LEAST, MOST = 22, 64  # letters of a sign
# Parts that users meet: not kernels, models, other accelerators' backends or what only developers call
NOT_SAID = re.compile(
    r"third_party|vllm_flash_attn|benchmark|/test|debug_utils|/ops/|/fla/|snapshot|rust|triton_kernels|profil|tracing|"
    r"models/(?!registry|config|interfaces|adapters|transformers|utils)|configs/(?!__)|hardware_backend|weight_transfer|"
    r"ec_transfer|moriio|tiering|hisparse|/ir/|_(npu|mlx|xpu|ascend|musa|aiter)|/(npu|mlx|ascend|musa|aiter)|hpc|"
    r"srt/(layers/(?!quantization/[a-z0-9]+\.py)|mem_cache|models|multimodal|compilation|dllm|elastic|ray|weight_sync|eplb|lora/moe|"
    r"model_loader/expert_pack|disaggregation/(?!utils|common|[a-z]+\.py)|speculative|batch_overlap|session|platforms)|"
    r"kv_connector/v1/(?!nixl|base|utils|metrics|multi)|layers/(mhc|sparse|batch_inv|rotary|attention/)|models/deepseek_v4|warmup|weight_cache|nvtx|jit_kernel"
)
ASSERTED = re.compile(r"vllm/config/(?!comp)|engine/arg|arg_groups|server_args|platforms/(cuda|interface)")


@dataclass(frozen=True)
class Said:
    """One raise site, assertion or logged line. text: with GAP where a value stands."""

    file: str
    kind: str
    text: str


def said(folder: Path) -> Iterator[Said]:
    for file in sorted(folder.rglob("*.py")):
        name = f"{folder.name}/{file.relative_to(folder)}"
        if NOT_SAID.search(name):
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            kind, text = _of(node)
            if text and (kind != "AssertionError" or ASSERTED.search(name)):
                yield Said(name, kind, text)


def _of(node: ast.AST) -> tuple[str, str]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        return ast.unparse(node.exc.func), _text(node.exc.args[0])
    if isinstance(node, ast.Assert) and node.msg is not None:
        return "AssertionError", _text(node.msg)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        level = node.func.attr.removesuffix("_once")
        if ast.unparse(node.func.value) == "logger" and level in ("error", "exception", "warning"):
            return f"logged {level}", _text(node.args[0])
    return "", ""


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return _text(node.left) + (_text(node.right) if isinstance(node.op, ast.Add) else "")
    return GAP


def sign_of(text: str) -> str | None:
    """The longest part of a sentence that always stands there, if it is one of this program alone."""
    parts = re.split(rf"{GAP}|%[\d.]*[sdrfgi]%?|\{{[^}}]*\}}|\n", text)
    best = max((_whole(part, parts, number) for number, part in enumerate(parts)), key=len)
    words = re.findall(r"[A-Za-z_]{2,}", best)
    named = any("_" in word.strip("_") for word in words)
    enough = len(best) >= LEAST and len(words) >= (3 if named else 5) and best.isascii() and "  " not in best
    return best if enough else None


def _whole(part: str, parts: Sequence[str], number: int) -> str:
    """Without words that what stands before or after may continue, and of a length that one can read."""
    if number and re.match(r"\w|'s ", part):
        part = part.partition(" ")[2]
    if number + 1 < len(parts) and re.search(r"\w$", part):
        part = part.rpartition(" ")[0]
    part = part.strip(" .,:;'\"`()[]{}=-|*#>\t")
    return part if len(part) <= MOST else part[: part.rfind(" ", 0, MOST)].strip(" .,:;'\"`()[]{}=-|*#>")


def area(one: Said, rows: Sequence[dict[str, str]]) -> str | None:
    """The row for it: notes for warnings only, the other rows for all that is not a warning."""
    warning = one.kind == "logged warning"
    for row in rows:
        if ("logged" in row) is not warning or (warning and not re.search(row["logged"], one.text, re.IGNORECASE)):
            continue
        if re.search(row["from"], one.file) or re.search(row["from"], f" {one.text}", re.IGNORECASE):
            return row["id"]
    return None


def filled(folders: Sequence[Path]) -> dict[str, dict[str, str]]:
    """By row, its signs, each with a line that has it: none that other rows know, and none that stands in a case."""
    rows = load_catalogue(TABLE)["engine-areas"]["rows"]
    found: dict[str, dict[str, str]] = {row["id"]: {} for row in rows}
    own = {f"engine.{name}" for name in found}
    pasted = [paste.text for paste in pastes() if paste.symptom not in own]
    cases = "\n".join([*pasted, *(case["text"] for case in read("healthy.yaml"))]).lower()
    known: Counter[str] = Counter()
    for one in (one for folder in folders for one in said(folder)):
        sign, row = sign_of(one.text), area(one, rows)
        if sign is None or row is None or known[sign.lower()] or sign.lower() in cases:
            continue
        known[sign.lower()] += 1
        line = " ".join(re.sub(GAP, "8", one.text).split())
        logged = one.kind.removeprefix("logged ").upper()
        line = f"{logged} 11-22 10:54:31 [x.py:8] {line}" if one.kind.startswith("logged") else f"{one.kind}: {line}"
        if not {*scan([line]).hits} - own - {"engine.refused"}:
            found[row][sign] = line
    return _apart(found)


def _apart(found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Without signs that contain another one, of any row."""
    every = sorted((sign.lower() for signs in found.values() for sign in signs), key=len)
    heads: dict[str, list[str]] = {}
    for sign in every:
        heads.setdefault(sign[:LEAST], []).append(sign)

    def covered(sign: str) -> bool:
        small = sign.lower()
        starts = (heads.get(small[at : at + LEAST], ()) for at in range(len(small) - LEAST + 1))
        return any(other != small and other in small for others in starts for other in others)

    return {row: {s: line for s, line in signs.items() if not covered(s)} for row, signs in found.items()}


def written(found: Mapping[str, Mapping[str, str]]) -> str:
    """The file: by row its signs in order, and a line of usual length that has one."""
    rows = {
        row: {"seen": min(signs.values(), key=lambda line: (abs(len(line) - 100), line)), "signs": sorted(signs)}
        for row, signs in found.items()
        if signs
    }
    return json.dumps(rows, indent=1) + "\n"


def main(folders: Sequence[str]) -> None:
    found = filled([Path(folder) for folder in folders])
    SENTENCES.write_text(written(found), "utf-8")
    sys.stdout.write("".join(f"{len(signs):5} {row}\n" for row, signs in found.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
