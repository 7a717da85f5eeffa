"""Rules that check a recipe against the GPUs, the driver and the WSL of a host."""

from collections.abc import Iterator

from packaging.version import Version

from winhost.findings.finding import Observation
from winhost.hardware.gpus import GpuModel
from winhost.recipes.command_editor import replace_value
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import RecipeEngine, RecipeForm

FIRST_CUDA_13 = Version("0.20.0")  # VLLM_MAIN_CUDA_VERSION of its parser
CUDA_13_DRIVER = Version("580")
OLDEST_OF_CUDA_13 = (7, 5)  # compute capability; CUDA 13.0 release notes: Maxwell, Pascal and Volta are dropped
BFLOAT16, FP8 = (8, 0), (8, 9)
WSL_SHARE, WSL_SHARE_OF_SEVERAL, SHARE = 0.944, 0.8, 0.95
DEFAULT_SHARES = ((Version("0.20.0"), 0.92), (Version("0"), 0.9))


def check_gpu_count(case: RecipeCase) -> Iterator[Observation]:
    """Report that the engine uses more GPUs than the host has."""
    gpus = case.target.gpus
    if gpus is not None and case.engine.has_command and case.engine.gpus > len(gpus) and not case.engine.spans_machines:
        at = case.engine.option("--tensor-parallel-size") or case.engine.option("--data-parallel-size")
        offset = at.text.start if at else case.engine.position.start
        yield Observation("more-gpus-than-there", offset, {"taken": case.engine.gpus, "gpus": len(gpus)})


def check_generation(case: RecipeCase) -> Iterator[Observation]:
    """Report number formats that the oldest GPU cannot compute."""
    gpu = _oldest(case)
    if gpu is None or gpu.compute_capability is None or not case.engine.has_command:
        return
    capability = gpu.compute_capability
    words = {"gpu": gpu.name, "capability": ".".join(map(str, capability)), "version": case.version}
    if case.version and case.version >= FIRST_CUDA_13 and capability < OLDEST_OF_CUDA_13:
        yield Observation("too-old-for-cuda", case.engine.position.start, words)
    if capability < BFLOAT16:
        dtype = case.engine.option("--dtype")
        if dtype is None:
            edits = case.engine.editor.add_option("--dtype=half")
            yield Observation("half-needed", case.engine.position.start, words, edits, case.other_source("--dtype"))
        elif dtype.value == "bfloat16":
            yield Observation("no-bfloat16", dtype.text.start, words, replace_value(dtype.value_text, "half"))


def check_formats(case: RecipeCase) -> Iterator[Observation]:
    """Report formats of weights in which the oldest GPU cannot compute."""
    gpu, quantization = _oldest(case), case.engine.option("--quantization")
    if gpu is not None and gpu.compute_capability is not None and quantization is not None:
        capability = gpu.compute_capability
        words = {"gpu": gpu.name}
        value = (quantization.value or "").casefold()
        if value in ("fp8", "fbgemm_fp8", "modelopt") and capability < FP8:
            yield Observation("fp8-by-weights", quantization.text.start, words)
        elif "fp4" in value and gpu.nvfp4 is False:
            yield Observation("fp4-by-weights", quantization.text.start, words)


def _oldest(case: RecipeCase) -> GpuModel | None:
    gpus = [gpu for gpu in case.target.models or () if gpu.compute_capability]
    return min(gpus, key=lambda gpu: gpu.compute_capability or (0, 0), default=None)


def check_driver(case: RecipeCase) -> Iterator[Observation]:
    """Report a driver that is too old for the CUDA of this vLLM."""
    found = case.target.driver
    if found and case.engine.has_command and case.version and case.version >= FIRST_CUDA_13 and found < CUDA_13_DRIVER:
        yield Observation("driver-too-old", case.engine.position.start, {"version": case.version, "driver": found})


def check_share(case: RecipeCase) -> Iterator[Observation]:
    """Check the share of each GPU's memory that the engine uses."""
    found, engine = case.engine.option("--gpu-memory-utilization"), case.engine
    several = engine.gpus_per_copy > 1
    if found is None:
        since = case.version or Version("99")
        default = next(value for first, value in DEFAULT_SHARES if since >= first)
        if case.wsl and several and engine.has_command:
            edits = engine.editor.add_option("--gpu-memory-utilization=0.8")
            doubt = case.other_source("--gpu-memory-utilization")
            yield Observation("share-of-default", engine.position.start, {"value": default}, edits, doubt)
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
        suffix = " over several GPUs" if several else ""
        words = {"value": found.display_value, "several": suffix, "better": better}
        yield Observation("share-on-wsl", found.text.start, words, replace_value(found.value_text, better))
    elif not case.wsl and value > SHARE:
        yield Observation(
            "share-too-large", found.text.start, {"value": found.value}, replace_value(found.value_text, "0.95")
        )


def check_shares(case: RecipeCase) -> Iterator[Observation]:
    """Report engines of a Compose file that start together on the same GPUs, and use more memory than these have."""
    mine, gpus = _share_of(case.engine), _gpus_of(case.engine)
    if case.engine.form is not RecipeForm.COMPOSE or case.recipe.template or not mine or gpus is None:
        return
    same = [each for each in case.recipe.engines if _share_of(each) and _gpus_of(each) == gpus]
    before = same[: next((at for at, each in enumerate(same) if each is case.engine), 0)]
    whole = mine + sum(map(_share_of, before))
    if before and whole > 1:
        at = case.engine.option(_SHARE)
        words = {"others": " and ".join(each.label for each in before), "whole": f"{whole:.2f}"}
        yield Observation("shares-over-one", at.text.start if at else case.engine.position.start, words)


_SHARE = "--gpu-memory-utilization"
_OPTIONAL_SERVICE_KEYS = ("profiles", "replicas")  # keys of a service that may not start


def _share_of(engine: RecipeEngine) -> float:
    """Return the share of each GPU that an engine of vLLM uses; 0 if that is not known, or if the engine may
    not run.
    """
    found = engine.option(_SHARE)
    alone = (
        engine.sleeps
        or engine.option("--kv-cache-memory-bytes")
        or any(each in engine.positions for each in _OPTIONAL_SERVICE_KEYS)
    )
    if alone or engine.kind != "vllm" or not engine.has_command or engine.partial:
        return 0
    try:
        return float(found.value or "") if found else DEFAULT_SHARES[-1][1]
    except ValueError:
        return 0


def _gpus_of(engine: RecipeEngine) -> tuple[object, ...] | None:
    """Return the settings that choose the GPUs of an engine; None if none does, or they are not known."""
    chosen = [engine.container_setting("--gpus"), engine.container_setting("--runtime")]
    chosen += [engine.variable(name) for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")]
    choices = tuple(each.value if each else None for each in chosen)
    return None if not any(choices) or "$" in str(choices) else choices


RULES = (check_gpu_count, check_generation, check_formats, check_driver, check_share, check_shares)
