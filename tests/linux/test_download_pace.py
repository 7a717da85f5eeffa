"""The progress of a download in the agent's text: bytes, rate, and remaining time."""

import time

import pytest

from winhost.agent.linux_download import Pace


def test_bytes_come_first_and_rate_and_time_once_they_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = Pace(16_400_000_000)
    told = []
    for seconds, done in ((0, 1_000_000_000), (0.5, 1_010_000_000), (100, 2_000_000_000), (900, 16_000_000_000)):
        now[0] = 100 + seconds
        told.append(pace.describe(done))
    assert told == [
        "1,000 of 16,400 MB",
        "1,010 of 16,400 MB",
        "2,000 of 16,400 MB, 10.0 MB/s, 24 min left",
        "16,000 of 16,400 MB, 16.7 MB/s, 24 s left",
    ]
