"""Lab time: a reboot of ninety lab seconds takes as long as the scale says."""

import threading
import time

from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class LabClock:
    """`scale` is real seconds per lab second: 1 is a real host, 0.001 a test, 0 no waiting at all."""

    scale: float = 0.0

    def sleep(self, lab_seconds: float, stop: threading.Event | None = None) -> None:
        """Wait so many lab seconds, or until `stop` is set."""
        seconds = max(0.0, lab_seconds * self.scale)
        if stop is not None:
            stop.wait(seconds)
        elif seconds:
            time.sleep(seconds)
