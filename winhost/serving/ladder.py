"""How a model may rest between its turns: what each way keeps, and how long the way back was measured to take."""

from dataclasses import dataclass

MEASURED = "7.6B in bf16, 14.29 GiB of weights, one H200, vLLM 0.24.0, driver 580.159.04, Linux, mostly single runs"
_WEIGHTS_GIB = 14.29


@dataclass(frozen=True)
class Rung:
    """back, away: seconds, fastest and slowest measured; of_weights: of the host's memory, in multiples of the weights;
    gpu: what stays on the GPU; grows: whether the way back takes longer with more weights.
    """

    name: str
    back: tuple[float, float]
    away: str
    of_weights: float
    gpu: str
    needs: str
    grows: bool = True

    def slowest(self, weights_gib: float) -> float:
        """Seconds, in proportion to the weights; an estimate where they are not those that were measured."""
        return self.back[1] * (weights_gib / _WEIGHTS_GIB if self.grows else 1)


_ASLEEP, _OUT = "1.8 to 2.7 GiB", "0.6 to 6 s"
LADDER = (
    Rung("awake", (0, 0), "-", 0, "all of it", "room beside the others", grows=False),
    Rung("level 1, pinned", (0.39, 0.82), "12.2 to 13.8 s first, then 0.43 s", 1.95, _ASLEEP, "memory stays taken"),
    Rung("level 1, then suspended", (1.9, 2.0), "as level 1, and 1.5 s", 1.95, "4 MiB", "Linux's own driver, one GPU"),
    Rung("level 2", (2.1, 2.3), "0.05 s", 1.0, _ASLEEP, "dense bf16, no adapters, files cached"),
    Rung("level 1, not pinned", (2.59, 2.77), "9.6 to 10.2 s each time", 1.0, _ASLEEP, "as in WSL without pinning"),
    Rung("stopped, caches warm", (47.2, 50.6), _OUT, 0, "nothing", "nothing"),
    Rung("cold", (91.5, 91.5), _OUT, 0, "nothing", "nothing"),
)


@dataclass(frozen=True)
class ChosenRung:
    """rung: the fastest that the host's memory holds; seconds: its way back; kept: whether that is soon enough."""

    rung: Rung
    seconds: float
    kept: bool | None


def choose(weights_gib: float, host_gib: float, within: float | None, pinned: bool, reloads: bool) -> ChosenRung:
    """pinned: whether backups are; reloads: whether level 2 is safe.

    Suspending is chosen only where it is asked for, so it is never the answer here.
    """
    possible = {"level 1, pinned": pinned, "level 1, not pinned": not pinned, "level 2": reloads}
    for rung in LADDER:
        fits = rung.of_weights * weights_gib <= host_gib
        if fits and (possible.get(rung.name) or rung.name == "stopped, caches warm"):
            seconds = rung.slowest(weights_gib)
            return ChosenRung(rung, seconds, None if within is None else seconds <= within)
    raise AssertionError("stopped needs nothing")
