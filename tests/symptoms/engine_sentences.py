"""Read the sentences for families/engine-areas.yaml from the sources of the engines, each folder one unpacked package:
`python -m tests.symptoms.engine_sentences vllm-0.24/vllm vllm-0.33/vllm sglang-0.5/sglang llama.cpp ollama`. The
folders of FAMILIES have these names: their sources are C++ or Go, and the families are others. The file keeps the
sentences of families of which no folder is given.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.symptoms.pastes import pastes, read
from winhost.model.catalogue_file import load_catalogue
from winhost.symptoms.scan import scan
from winhost.symptoms.table import _FOLDER

TABLE = Path(str(_FOLDER)) / "families" / "engine-areas.yaml"
SENTENCES = Path(str(_FOLDER)) / "engine-sentences.json"
GAP = "\x00"  # stands for what is filled in when it is said
CPP = "llama.cpp"
GO = "ollama"
FAMILIES = {CPP: ("llama-areas", "llama"), GO: ("ollama-areas", "ollama")}
PYTHON = ("engine-areas", "engine")
LEAST, MOST = 22, 64  # letters of a sign
LEAST_SHORT = 16
# Parts that users meet: not kernels, models, other accelerators' backends or what only developers call
NOT_SAID = re.compile(
    r"third_party|multimodal_gen|vllm_flash_attn|benchmark|/test|debug_utils|/ops/|/fla/|snapshot|rust|triton_kernels|profil|tracing|"
    r"models/(?!registry|config|interfaces|adapters|transformers|utils)|configs/(?!__)|hardware_backend|weight_transfer|"
    r"ec_transfer|moriio|tiering|hisparse|/ir/|_(npu|mlx|xpu|ascend|musa|aiter)|/(npu|mlx|ascend|musa|aiter)|hpc|"
    r"srt/(layers/(?!quantization/[a-z0-9]+\.py)|mem_cache|models|multimodal|compilation|dllm|elastic|ray|weight_sync|eplb|lora/moe|"
    r"model_loader/expert_pack|disaggregation/(?!utils|common|[a-z]+\.py)|speculative|batch_overlap|session|platforms)|"
    r"kv_connector/v1/(?!nixl|base|utils|metrics|multi)|layers/(mhc|sparse|batch_inv|rotary|attention/)|models/deepseek_v4|warmup|weight_cache|nvtx|jit_kernel"
)
ASSERTED = re.compile(r"vllm/config/(?!comp)|engine/arg|arg_groups|server_args|platforms/(cuda|interface)")
# A sign of these words alone is said by programs of any kind.
COMMON = """
a about above after again against all allocate allocation allowed already also an and another any apply are argument
arguments as assignments at audio auto available back be because been before being below best between bool boolean
both bucket but by cached call called can cannot canonical change check choose class classes client closed code
command config configs configuration configurations connect connected connection constant contain contains content
correct corrupted could create created current currently data dataclass decimal default defined deployment detected
dict dictionary did different dimension dimensional dimensions directory disabled do does download due duplicate
duration during each either empty enable enabled end enough ensure environment equal error errors even exactly exceed
exceeds exist existing exists expected extra fail failed fails failure falling field fields file files find finite
first float following for format formats forward found fps from function generate generated generation get given got
greater had hardware has have header host id if ignored ignoring image images implemented in include information input
install installed instances instead integer integers internal into invalid is it item items its join keep key keys
large larger last least legacy length less libraries library line list lists literal load loaded loading local longer
machine make mapping match matching max maximum may message messages method methods min minimum missing modified
module modules more most multiple must n name names need needed needs negative network new no non none nonempty nor
not now null number numbers numeric object objects occurred of off on once one only open operation option optional
options or order other out output parameter parameters parse pass passed path period platform please port positive
power process provide provided provides python quality range reached read ready reason received registered remote
remove request requested requests require required requires resources response result retries retrieving retry return
returned rule rules run running s same save schema schemas see segment self serialization server set setting settings
shape should single size skipping smaller so some source specified specify start started state status still storage
string strings such support supported supports system task text than that the their them then there these they this
time timed timeout to together too try trying two type types unable unavailable under unexpected unexpectedly unknown
unless unsupported until up update use used user using valid value values variable version versions via video waiting
was watermark when where which while will with within without workers would writable write wrong yet you your zero
"""
# What llama-server prints of its own parts and of CUDA: not the other backends, and not the tools that convert models
CPP_SAID = re.compile(
    r"^llama\.cpp/(common|src|tools/(server|mtmd|rpc)|ggml/src(/ggml-(cuda|rpc|cpu))?)/[^/]*\.(cpp|cu|cuh|c|h)$"
)
CPP_CALL = re.compile(
    r"\b(?:(?P<logged>(?:LLAMA_LOG_|GGML_LOG_)ERROR|(?:LOG|SRV|SLT|QUE|RES|COM|SPC)_ERR)|(?P<aborted>GGML_ABORT)"
    r"|throw std::(?P<thrown>\w+)|(?P<answered>format_error_response|send_error))\s*\((?P<said>[^;]*?)\)\s*;"
)
CPP_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# llama.cpp's sentences are short: one of these words shows that it is about a model
CPP_TELLING = re.compile(
    r"ggml|gguf|llama|mmproj|mtmd|clip|jinja|lora|rope|rpc|cuda|attn|attention|logits|vocab|tensor|token|draft|sampl|"
    r"seq_id|n_(ctx|batch|ubatch|embd|layer|head|seq)|\bkv\b|embedding|n-?gram|chat|prompt|grammar|quantiz|llguidance|"
    r"control.?vector|slot|--[a-z]|hf repo|docker m",
    re.IGNORECASE,
)
# Words, or parts of names, by which a sentence is one of an engine for language models. One without them is said by
# other programs of machine learning as well (their preprocessing and checks of shapes): it counts beside the engine's
# name.
TELLING = re.compile(
    r"--[a-z]|vllm|sglang|sgl_|lora|\bmoe\b|moe_|_moe|moeep|\bkv\b|kv_|_kv|kvconn|eagle|mamba|\bmla\b|\bmtp\b|mtp_|dspark|"
    r"dflash|nvfp4|mxfp[468]|marlin|attention|expert|specul|draft|prefill|logprob|cuda.?graph|flashinfer|flashmla|"
    r"prefix.cach|quantiz|\bfp8|ptpc|tensor.parallel|pipeline.parallel|data.parallel|context.parallel|nixl|mooncake|hicache|"
    r"hisparse|lmcache|reasoning|tool.(call|pars|choice|ref)|detokeniz|multi.?modal|mm_|sampling_params|pooling|gguf|"
    r"llama|mmproj|ggml|mtmd|imatrix|deep_?(ep|gemm)|elastic ep|megamoe|cutlass|awq|gptq|trt_?llm|qwen|deepseek|"
    r"kimi|mistral|gpt.?oss|inkling|minimax|hunyuan|\bUNO\b|\b[DP]CP\b|\bPD\b|\bDP\b|\bTP\b|dp_|tp_size|pp_size|ep_size|eplb|xgrammar|"
    r"llguidance|lm.format.enforcer|outlines|structured.output|chat.template|server_?args|engine.?core|model runner v|"
    r"tensorizer|runai|instanttensor|compressed.tensors|modelopt|\bquark|humming|b12x|aiter|wna16|w\da\d|flexattention|"
    r"flash.?attn|grammar|jinja|seq_id|\bslot\b|ubatch|n_(ctx|batch|embd)|rpc_server|llama|piecewise|scheduler|max_model_len|"
    r"skip_tokenizer_init|prompt_embeds|xpu|rocm|ollama|modelfile|\bmlx|"
    r"llama-server|hf repo|docker (model|manifest|registry)",
    re.IGNORECASE,
)
# The same for Ollama, most of whose sentences clients, converters and other programs with MLX or GGUF say as well.
GO_TELLING = re.compile(
    r"ollama|modelfile|laguna|nemotron_h|qwen3next|mlx[ -](runner|engine|closure)|llama-server (?!error)|"
    r"llama-quantize (?!failed)|(closing|reading|unmarshalling) llama-server",
    re.IGNORECASE,
)
# In Go: not what starts programs of others, draws on terminals or is there for tests
GO_NOT_SAID = re.compile(r"_test\.go$|cmd/(launch|tui|internal|bench)|api/examples")
GO_CALL = re.compile(r'(?:(?P<logged>slog\.Error)|fmt\.Errorf|errors\.New)\((?P<said>"(?:[^"\\\n]|\\.)*")')
GO_FILLED = re.compile(r"%[-+# 0-9.*]*[a-zA-Z]")
CPP_FILLED = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[diouxXeEfgGcsp]|%$")


@dataclass(frozen=True)
class Said:
    """One raise site, assertion or logged line. text: with GAP where a value stands."""

    file: str
    kind: str
    text: str


def said(folder: Path) -> Iterator[Said]:
    if folder.name == GO:
        return _said_in_go(folder)
    return _said_in_cpp(folder) if folder.name == CPP else _said_in_python(folder)


def _said_in_go(folder: Path) -> Iterator[Said]:
    for file in sorted(folder.rglob("*.go")):
        name = f"{folder.name}/{file.relative_to(folder)}"
        if GO_NOT_SAID.search(name):
            continue
        for call in GO_CALL.finditer(file.read_text("utf-8")):
            text = GO_FILLED.sub(GAP, call["said"][1:-1])
            yield Said(
                name, "logged error" if call["logged"] else "error", re.sub(r"\\[nt]", "\n", text).replace('\\"', '"')
            )


def _said_in_cpp(folder: Path) -> Iterator[Said]:
    for file in sorted(folder.rglob("*")):
        name = f"{folder.name}/{file.relative_to(folder)}"
        if not CPP_SAID.search(name):
            continue
        for call in CPP_CALL.finditer(file.read_text("utf-8")):
            kind = "logged error" if call["logged"] else "ABORT" if call["aborted"] else call["thrown"] or "answered"
            if text := _cpp_text(call["said"]):
                yield Said(name, kind, text)


def _cpp_text(arguments: str) -> str:
    """Strings that follow each other are one; what stands between others fills a gap."""
    text, ended = "", 0
    for part in CPP_STRING.finditer(arguments):
        between = arguments[ended : part.start()].strip()
        text += (GAP if text and between else "") + CPP_FILLED.sub(GAP, part[1])
        ended = part.end()
    return re.sub(r"\\[nt]", "\n", text).replace('\\"', '"')


def _said_in_python(folder: Path) -> Iterator[Said]:
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


def sign_of(text: str, short: bool = False) -> str | None:
    """The longest part of a sentence that always stands there, if it is one of this program alone. short: three words
    are enough if one of them is the program's own.
    """
    parts = re.split(rf"{GAP}|%[\d.]*[sdrfgi]%?|\{{[^}}]*\}}|\n", text)
    best = max((_whole(part, parts, number) for number, part in enumerate(parts)), key=len)
    words = re.findall(r"[A-Za-z_]{2,}", best)
    named = any("_" in word.strip("_") for word in words)
    few = short and len(best) >= LEAST_SHORT and TELLING.search(best) is not None
    enough = (
        (few or len(best) >= LEAST) and len(words) >= (3 if named or few else 5) and best.isascii() and "  " not in best
    )
    return best if enough and not is_general(best) else None


def is_general(sign: str) -> bool:
    """Any program may say it: the sign has only common words."""
    return {*COMMON.split()}.issuperset(re.findall(r"[a-z_]+", sign.lower()))


def is_shared(sign: str, row: str) -> bool:
    """Other programs of machine learning may say it: it has no word and no long name of an engine's own."""
    if _is_of_go(row):
        return not GO_TELLING.search(sign)
    names = re.findall(r"\w+_\w+", sign)
    return not TELLING.search(sign) and not any(name.strip("_").count("_") > 1 for name in names)


@cache
def _is_of_go(row: str) -> bool:
    return row in {each["id"] for each in load_catalogue(TABLE)[FAMILIES[GO][0]]["rows"]}


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
    families = load_catalogue(TABLE)
    rows = {name: families[name]["rows"] for name, _ in map(_family, folders)}
    found: dict[str, dict[str, str]] = {row["id"]: {} for each in rows.values() for row in each}
    own = {f"{prefix}.{row['id']}" for name, prefix in (PYTHON, *FAMILIES.values()) for row in families[name]["rows"]}
    pasted = [paste.text for paste in pastes() if paste.symptom not in own]
    cases = "\n".join([*pasted, *(case["text"] for case in read("healthy.yaml"))]).lower()
    known: Counter[str] = Counter()
    for place, one in ((folder, one) for folder in folders for one in said(folder)):
        sign, row = sign_of(one.text, short=place.name == GO), area(one, rows[_family(place)[0]])
        if place.name == CPP and not CPP_TELLING.search(sign or ""):
            continue
        if sign is None or row is None or known[sign.lower()] or sign.lower() in cases:
            continue
        known[sign.lower()] += 1
        line = _line(one)
        if not {*scan([line]).hits} - own - {"engine.refused"}:
            found[row][sign] = line
    return _apart(found)


def _family(folder: Path) -> tuple[str, str]:
    return FAMILIES.get(folder.name, PYTHON)


def _line(one: Said) -> str:
    """The sentence as its program prints it."""
    line = " ".join(re.sub(GAP, "8", one.text).split())
    if one.file.startswith(CPP):
        kinds = {"logged error": "0.01.274.655 E ", "ABORT": f"/{one.file}:8: ", "answered": '{"error":{"message":"'}
        return kinds.get(one.kind, "what():  ") + line
    if one.file.startswith(GO):
        return f"source=x.go:8 msg=x error={line}"
    logged = one.kind.removeprefix("logged ").upper()
    return f"{logged} 11-22 10:54:31 [x.py:8] {line}" if one.kind.startswith("logged") else f"{one.kind}: {line}"


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


def written(found: Mapping[str, Mapping[str, str]], rows: dict[str, dict[str, Any]]) -> str:
    """The file: by row its signs in order, those that others share apart, and a line of usual length that has one.
    rows: those that stay unless they are read anew.
    """
    for row, signs in found.items():
        own, shared = (sorted(sign for sign in signs if is_shared(sign, row) is wanted) for wanted in (False, True))
        if shows := own or (shared if _is_of_go(row) else []):  # a line of Ollama's has what is near
            seen = min((signs[sign] for sign in shows), key=lambda line: (abs(len(line) - 100), line))
            rows[row] = {"seen": seen, "signs": own, "shared": shared}
    return json.dumps(rows, indent=1) + "\n"


def main(folders: Sequence[str]) -> None:
    found = filled([Path(folder) for folder in folders])
    SENTENCES.write_text(written(found, json.loads(SENTENCES.read_bytes())), "utf-8")
    sys.stdout.write("".join(f"{len(signs):5} {row}\n" for row, signs in found.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
