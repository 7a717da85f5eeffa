"""Rules that hold a recipe against the GPUs, the driver and the WSL of a host."""

from collections.abc import Iterator

from packaging.version import Version

from winhost.findings.finding import Found
from winhost.hardware.gpus import GpuModel
from winhost.recipes.command_editor import replaced
from winhost.recipes.recipe_case import RecipeCase

FIRST_CUDA_13 = Version("0.20.0")  # VLLM_MAIN_CUDA_VERSION of its parser
CUDA_13_DRIVER = Version("580")
CUDA_13_LEAST = (7, 5)
BFLOAT16, FP8 = (8, 0), (8, 9)
WSL_SHARE, WSL_SHARE_OF_SEVERAL, SHARE = 0.944, 0.8, 0.95
DEFAULT_SHARES = ((Version("0.20.0"), 0.92), (Version("0"), 0.9))


def gpus_there(case: RecipeCase) -> Iterator[Found]:
    """More GPUs than the host has."""
    gpus = case.target.gpus
    if gpus is not None and case.engine.known and case.engine.gpus > len(gpus) and not case.engine.spread:
        at = case.engine.option("--tensor-parallel-size") or case.engine.option("--data-parallel-size")
        place = at.text.start if at else case.engine.at.start
        yield Found("more-gpus-than-there", place, {"taken": case.engine.gpus, "gpus": len(gpus)})


def generation(case: RecipeCase) -> Iterator[Found]:
    """Find number formats that the oldest GPU cannot compute."""
    gpu = _oldest(case)
    if gpu is None or gpu.compute_capability is None or not case.engine.known:
        return
    capability = gpu.compute_capability
    words = {"gpu": gpu.name, "capability": ".".join(map(str, capability)), "version": case.version}
    if case.version and case.version >= FIRST_CUDA_13 and capability < CUDA_13_LEAST:
        yield Found("too-old-for-cuda", case.engine.at.start, words)
    if capability < BFLOAT16:
        dtype = case.engine.option("--dtype")
        if dtype is None:
            edits = case.engine.editor.add_option("--dtype=half")
            yield Found("half-needed", case.engine.at.start, words, edits, case.elsewhere("--dtype"))
        elif dtype.value == "bfloat16":
            yield Found("no-bfloat16", dtype.text.start, words, replaced(dtype.shown, "half"))


def formats(case: RecipeCase) -> Iterator[Found]:
    """Formats of weights that the oldest GPU does not compute in."""
    gpu, quantization = _oldest(case), case.engine.option("--quantization")
    if gpu is not None and gpu.compute_capability is not None and quantization is not None:
        capability = gpu.compute_capability
        words = {"gpu": gpu.name}
        value = (quantization.value or "").casefold()
        if value in ("fp8", "fbgemm_fp8", "modelopt") and capability < FP8:
            yield Found("fp8-by-weights", quantization.text.start, words)
        elif "fp4" in value and gpu.nvfp4 is False:
            yield Found("fp4-by-weights", quantization.text.start, words)


def _oldest(case: RecipeCase) -> GpuModel | None:
    gpus = [gpu for gpu in case.target.models or () if gpu.compute_capability]
    return min(gpus, key=lambda gpu: gpu.compute_capability or (0, 0), default=None)


def driver(case: RecipeCase) -> Iterator[Found]:
    """A driver older than the CUDA of this vLLM."""
    found = case.target.driver
    if found and case.engine.known and case.version and case.version >= FIRST_CUDA_13 and found < CUDA_13_DRIVER:
        yield Found("driver-too-old", case.engine.at.start, {"version": case.version, "driver": found})


def share(case: RecipeCase) -> Iterator[Found]:
    """Check the share of each GPU's memory that the engine takes."""
    found, engine = case.engine.option("--gpu-memory-utilization"), case.engine
    several = engine.together > 1
    if found is None:
        since = case.version or Version("99")
        default = next(value for first, value in DEFAULT_SHARES if since >= first)
        if case.wsl and several and engine.known:
            edits = engine.editor.add_option("--gpu-memory-utilization=0.8")
            doubt = case.elsewhere("--gpu-memory-utilization")
            yield Found("share-of-default", engine.at.start, {"value": default}, edits, doubt)
        return
    try:
        value = float(found.value or "")
    except ValueError:
        return
    if not 0 < value <= 1:
        return
    most = WSL_SHARE_OF_SEVERAL if several else WSL_SHARE
    if case.wsl and value > most:
        better = "0.8" if several else "0.9"
        said = " over several GPUs" if several else ""
        words = {"value": found.told, "several": said, "better": better}
        yield Found("share-on-wsl", found.text.start, words, replaced(found.shown, better))
    elif not case.wsl and value > SHARE:
        yield Found("share-too-large", found.text.start, {"value": found.value}, replaced(found.shown, "0.95"))


RULES = (gpus_there, generation, formats, driver, share)
