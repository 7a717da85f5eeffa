"""Rules of loading weights onto the GPU, and of saving training state."""

from winhost.compat.capabilities.copies import FROM_CACHE, FROM_DISK, PAGEABLE_DOWN, PINNED_DOWN
from winhost.compat.capability import EVERYWHERE, SHARED, WHOLE_CARD, capability, measure
from winhost.compat.target import Target

PAYS_BELOW = 10  # GB/s of storage; above, reading is no longer what loading waits for

# --- Formats and loaders of vLLM -----------------------------------------------------------------------------------


@capability("sharded-state.same-split", on=EVERYWHERE)
def split_for_one_number_of_cards(target: Target) -> str | None:
    """Sharded-state files hold the weights of each rank, so they fit one number of GPUs."""
    return f"on {target.variant}"


@capability("tensorizer.extra", on=EVERYWHERE)
def installed_apart(target: Target) -> str | None:
    """Tensorizer is installed separately, and models have to be converted for it."""
    return f"on {target.variant}"


@capability("streaming-loaders.no-direct-storage", on=SHARED)
def no_direct_storage(target: Target) -> str | None:
    """Direct storage does not work behind the Windows driver, and its library was seen to abort there."""
    return f"on {target.path}"


@measure("streaming-loaders")
def to_be_beaten(target: Target) -> str | None:
    """Rates of plain reads, as measured with one reader."""
    if target.path not in WHOLE_CARD:
        return None
    return f"plain reads: {FROM_DISK} GB/s from a disk and {FROM_CACHE} GB/s from the page cache, as measured"


# --- Compressed ----------------------------------------------------------------------------------------------------


@capability("compressed-checkpoints.no-loader", on=EVERYWHERE)
def no_loader_unpacks(target: Target) -> str | None:
    """nvCOMP can decompress on the GPU, but no vLLM loader uses it."""
    return f"on {target.variant}"


@capability("compressed-checkpoints.pays", on=EVERYWHERE)
def pays_on_slow_storage(target: Target) -> str | None:
    """Compression reduces reading only, so it pays on slow storage."""
    return f"below about {PAYS_BELOW} GB/s"


@measure("compressed-checkpoints")
def ratios(_: Target) -> str | None:
    """Compression ratios by data type, as published."""
    return (
        "1.3 to 1.5 times smaller in BF16, 1.1 to 1.2 in FP8, at most 1.05 in 4 bit; "
        f"pays with storage below about {PAYS_BELOW} GB/s"
    )


# --- Of training ---------------------------------------------------------------------------------------------------


@capability("async-checkpoints.host-memory", on=EVERYWHERE)
def takes_host_memory(target: Target) -> str | None:
    """Asynchronous saving takes host memory for each training process."""
    return f"on {target.variant}"


@capability("async-checkpoints.little-pinned", on=SHARED)
def little_to_stage_in(target: Target) -> str | None:
    """Asynchronous saving stages in pinned memory, which is scarce behind the Windows driver."""
    return f"on {target.path}"


@measure("async-checkpoints")
def leaves_at(target: Target) -> str | None:
    """Rate of copying state to host memory; training waits for this copy, not for the files."""
    if target.path not in WHOLE_CARD:
        return None
    return f"{PINNED_DOWN} GB/s into pinned and {PAGEABLE_DOWN} GB/s into pageable memory, measured on an H200"
