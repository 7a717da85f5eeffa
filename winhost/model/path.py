"""The ways to serve from a Windows GPU machine, by their names."""

# Where two are equally good: what gives the most to a guest first, what costs the most later, previews last.
PATHS = ("dda", "wsl2", "gpu-p", "dual-boot", "bare-metal", "wslc")

# How a path can be set up where that decides what it can carry; the first is what winhost prefers.
VARIANTS = {"wsl2": ("bridged", "mirrored", "nat")}

# Every way that is judged by itself: `wsl2/bridged` where a path has variants, else the path.
WAYS = tuple(f"{path}/{variant}" if variant else path for path in PATHS for variant in VARIANTS.get(path, ("",)))


def is_meant(asked: str | None, way: str) -> bool:
    """Whether a way is among those that somebody asked for by a path or by one of its variants."""
    return asked in (None, way, path_of(way))


def path_of(way: str) -> str:
    """`wsl2` of `wsl2/bridged`."""
    return way.partition("/")[0]


def variant_of(way: str) -> str | None:
    """`bridged` of `wsl2/bridged`."""
    return way.partition("/")[2] or None
