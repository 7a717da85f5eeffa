"""What else a text shows decides between causes: marks, origins, and numbers of the same line."""

import re
from collections import Counter
from collections.abc import Iterator

from tests.rows import each_row
from winhost.knowledge import catalogue
from winhost.symptoms.diagnosis import SymptomFinding, diagnose
from winhost.symptoms.scan import scan
from winhost.symptoms.table import ORIGINS, Symptom, marks, symptoms

QUOTED = re.compile(r'"([^"]+)"')


def test_causes_name_marks_and_places_that_exist() -> None:
    causes = [cause for symptom in symptoms().values() for cause in symptom.causes]
    named = {name for cause in causes for name in (*cause.beside, *cause.shown_by, *cause.unless)}
    assert named <= marks().keys()
    known = {origin for kind in ORIGINS.values() for origin in kind}
    assert {place for cause in causes for place in cause.where} <= known
    assert {origin for mark in marks().values() for origin in mark.origins} <= known
    assert {name for name, mark in marks().items() if not mark.origins} <= named  # a mark that decides nothing


def quotes() -> Iterator[tuple[str, str]]:
    """What the title of a symptom, or evidence that is its own, quotes as printed: more than one word."""
    cited = {name: {key for cause in row.causes for key in cause.evidence} for name, row in symptoms().items()}
    times = Counter(key for keys in cited.values() for key in keys)
    for name, symptom in symptoms().items():
        own = sorted(key for key in cited[name] if times[key] == 1)
        for text in (symptom.says, *(catalogue.evidence()[key].claim for key in own)):
            yield from ((name, quote) for quote in QUOTED.findall(text) if " " in quote and "…" not in quote)


@each_row(("symptom", "quote"), quotes)
def test_a_sentence_that_an_entry_quotes_is_one_of_its_signs(symptom: str, quote: str) -> None:
    """Beside the words that its signs want near, such as the name of the program."""
    near = " ".join(
        word for sign in symptoms()[symptom].signs for word in sign.when.get("near", {}).get("contains", ())
    )
    assert symptom in scan([f"{quote}\n{near}"]).hits


def first(text: str) -> SymptomFinding:
    return diagnose([text], "text").found[0]


SMI = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
TRIED = "CUDA out of memory. Tried to allocate {} GPU 0 has a total capacity of 24.00 GiB of which {} is free."


def test_what_the_text_contradicts_comes_last_with_the_reason() -> None:
    causes = first(f"Linux 6.6.87.2-microsoft-standard-WSL2\n{SMI}").causes
    assert causes[0].standing == "possible"
    assert {cause.standing for cause in causes[1:]} == {"ruled-out"}
    assert {(cause.observed, cause.by) for cause in causes[1:]} == {("it is WSL", "text")}


@each_row(
    ("tried", "free", "room"),
    [
        ("44.00 MiB", "14.01 GiB", True),
        ("44MiB", "14GiB", True),
        ("2.0.0 GiB", "1.5 GiB", False),
        (". B", "0 B", False),
    ],
)
def test_two_sizes_of_one_line_are_compared_however_they_are_written(tried: str, free: str, room: bool) -> None:
    assert ("room-left" in scan([f"{TRIED.format(f'{tried}.', free)}"]).marks) is room


@each_row(("inside", "found"), [("535.309.01", True), ("610.40", False)])
def test_a_table_of_another_branch_than_the_driver_is_known(inside: str, found: bool) -> None:
    table = f"| NVIDIA-SMI {inside}      Driver Version: 610.47       CUDA Version: 13.3     |"
    assert ("wsl-gpu.other-libraries" in scan([table]).hits) is found


def test_logs_of_two_machines_in_one_text_say_nothing_of_the_place() -> None:
    both = f"NVRM: loading\nLinux 6.6.87.2-microsoft-standard-WSL2\n{SMI}"
    assert {cause.standing for cause in first(both).causes} == {"possible"}


def whole() -> Iterator[Symptom]:
    yield from symptoms().values()


@each_row("symptom", whole, ids=lambda symptom: symptom.id)
def test_every_place_leaves_a_cause_or_says_that_none_is_known(symptom: Symptom) -> None:
    """At one place at least a symptom has a cause, and no cause is tied to a mark that rules it out."""
    assert any(not {*cause.beside} & {*cause.unless} for cause in symptom.causes)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.55 GiB"
NO_BUFFER = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 3200.00 MiB on device 0: cudaMalloc failed: out of memory"
)
NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
WSL = "Linux 6.6.87.2-microsoft-standard-WSL2\n"


OWN = " Including non-PyTorch memory, this process has 23.43 GiB memory in use."
FEW = " Including non-PyTorch memory, this process has 4.10 GiB memory in use."
ILLEGAL = "CUDA error: an illegal memory access was encountered"
TOO_OLD = "CUDA driver version is insufficient for CUDA runtime version"


@each_row(
    ("text", "leads"),
    [
        # numbers of the line
        (f"{WSL}{OOM} of which 111.06 MiB is free.{OWN}", "Model, KV cache"),
        (f"{WSL}{OOM} of which 111.06 MiB is free.{FEW}", "In WSL, memory of Windows programs"),
        (f"{OOM} of which 111.06 MiB is free.{FEW}", "Another process holds"),
        (f"{OOM} of which 111.06 MiB is free. Process 77 has 19.00 GiB memory in use.{FEW}", "Another process holds"),
        (f"{WSL}{OOM} of which 14.01 GiB is free.", "More is free"),
        # a companion of the line
        (f"{WSL}ggml_cuda_init: found 1 devices\ncuMemAddressReserve: CUDA error: out of memory", "llama.cpp reserves"),
        (f"{WSL}{ILLEGAL}", "A fault of the engine"),
        (f"{WSL}kvcacheio.py transfer_kv_per_layer\n{ILLEGAL}", "In WSL a kernel read host memory"),
        (f"EngineCore: Sleep mode freed 20 GiB\n{ILLEGAL}", "vLLM before 0.17"),
        # the driver that the text names
        (f"docker run x\nDriver Version: 580.95.05\n{TOO_OLD}", "library did not come in"),
        (f"docker run x\n{TOO_OLD}", "image was built with a newer"),
        # the platform
        (f"{WSL}{SMI}", "In WSL"),
        (f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n{SMI}", "driver"),
        # whatever else the text shows
        (f"me@desk:/mnt/c/Users$ nvidia-smi\n{SMI}", "In WSL"),
        (TRIED.format("44.00 MiB.", "14.01 GiB"), "More is free"),
        (TRIED.format("1.50 GiB.", "900.00 MiB"), "Model, KV cache"),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "TCC"),
        (
            "misc dxg: dxgk: dxgvmb_send_x: x failed -75\nGPU access blocked by the operating system",
            "The channel of dxgkrnl",
        ),
        ("GPU-PV in Hyper-V\nGPU access blocked by the operating system", "A VM with a partition"),
        ("Failed core proc(s): {'EngineCore_DP0': -9}", "Linux ran out of memory"),
        ("exec /usr/bin/nvidia-smi: exec format error", "The image is for amd64"),
        ("exec /usr/bin/nvidia-smi: exec format error\nls: /usr/lib/wsl/lib/x: Stale file handle", "The mount"),
    ],
)
def test_the_order_of_causes_follows_the_text(text: str, leads: str) -> None:
    causes = diagnose([text], "text").found[0].causes
    assert leads in causes[0].sentence
    left = [cause for cause in causes if cause.standing != "ruled-out"]
    wanting = [number for number, cause in enumerate(left) if cause.observed.startswith("only if")]
    assert wanting == [*range(len(left) - len(wanting), len(left))]  # without its companion a cause comes last


@each_row(
    ("text", "first_program", "not_said"),
    [
        # the same words of another engine: what only vLLM says is not said of Ollama, and the other way round
        ("ollama run x\nERROR speculative decoding is not supported by this build", None, "vLLM and SGLang"),
        ("INFO vllm serve x\nERROR speculative decoding is not supported by this build", "vLLM and SGLang", None),
        ("python main.py in ComfyUI\nValueError: does not support tensor parallel", None, "vLLM and SGLang"),
        (f"File /venv/vllm/worker.py\n{OOM}", "PyTorch", "llama.cpp"),
        (f"llama_model_load: loading\n{NO_BUFFER}", "llama.cpp", "vLLM"),
    ],
)
def test_what_only_another_engine_says_is_not_said(text: str, first_program: str | None, not_said: str | None) -> None:
    told = [found.subject for found in diagnose([text], "text").found]
    assert (told or [None])[0] == first_program
    assert not_said is None or not_said not in told


def test_a_symptom_of_another_engine_comes_last_and_says_so() -> None:
    needs = "Error: model requires more system memory (8 GiB) than is available"
    told = diagnose([f"ollama run qwen\n{NO_BLOCKS}\n{needs}"], "text").found
    assert [each.subject for each in told] == ["Ollama", "vLLM"]
    assert [(cause.standing, cause.observed) for each in told[1:] for cause in each.causes] == [
        ("ruled-out", "it is Ollama") for each in told[1:] for _ in each.causes
    ]


def test_a_cause_without_its_companion_says_what_would_show_it() -> None:
    cause = first(f"{WSL}{ILLEGAL}").causes[-1]
    assert (cause.by, cause.standing) == ("text", "possible")
    assert cause.observed.startswith("only if ")
    assert diagnose([OOM], "text").found[0].causes[-1].observed == "it is a program of PyTorch"
