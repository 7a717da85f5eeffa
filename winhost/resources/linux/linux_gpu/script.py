# key {address: text}   state {device: text | null, driver: text | null, numa: int | null,
# bars: [{index: int, start: int, size: int, prefetchable: bool}], name: text | null, uuid: text | null,
# vram: bytes | null}
from __future__ import annotations

from winhost.agent.linux_head import *


@reads("LinuxGpu", address=ANY_TEXT)
def linux_gpus(key: Key | None) -> Found:
    for address, state in gpus():
        yield {"address": address}, state
