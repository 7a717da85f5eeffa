# Part of the probe: a sum over all GPUs by NCCL, and its transports.
from __future__ import annotations

import ctypes
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from winhost.agent.linux_libraries import (
    BLOCK,
    FLOAT32,
    MIB,
    SUM,
    Cuda,
    Nccl,
    NcclId,
    Skipped,
    check_host,
    rate,
    shortest_time,
)
from winhost.agent.linux_peer import Peer


def nccl(say: Any, _: Any) -> None:
    """An all-reduce over all GPUs, one process each, and the transport that NCCL's log names."""
    check_host(BLOCK)
    log = Path(tempfile.gettempdir())
    os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_FILE"] = "INFO", f"{log}/%p"
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast is shared with other users of the switch
    counter = Peer(
        lambda parent: parent.send(Cuda().count())
    )  # this process forks more, so it must not load the driver
    number = counter.receive()
    if number < 2:
        raise Skipped("there are fewer than two GPUs")
    library, version = Nccl(), ctypes.c_int()
    library("ncclGetVersion", ctypes.byref(version))
    found: dict[str, Any] = {"version": version.value, "gpus": number, "transports": [], "rates": [], "intact": None}
    say("nccl", found)
    ranks = [Peer(lambda parent, rank=rank: all_reduce(parent, rank, number)) for rank in range(number)]
    unique = ranks[0].receive()
    for rank in ranks:
        rank.send(unique)
    results = [rank.receive() for rank in ranks]
    found["transports"] = transports(log)
    found["rates"] = results[0]["rates"]
    found["intact"] = all(result["intact"] for result in results)
    say("nccl", found)


def all_reduce(parent: Peer, rank: int, number: int) -> None:
    library, unique, stream, comm = Nccl(), NcclId(), ctypes.c_void_p(), ctypes.c_void_p()
    if rank == 0:
        library("ncclGetUniqueId", ctypes.byref(unique))
        parent.send(list(unique.internal))
    unique = NcclId((ctypes.c_ubyte * 128)(*parent.receive()))
    cuda = Cuda()
    cuda.enter(rank)
    sent, received = cuda.allocated(BLOCK), cuda.allocated(BLOCK)
    one = int.from_bytes(bytes(ctypes.c_float(1.0)), "little")
    total = int.from_bytes(bytes(ctypes.c_float(float(number))), "little")
    cuda.filled(sent, BLOCK, one)
    cuda("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))
    library("ncclCommInitRank", ctypes.byref(comm), number, unique, rank)
    rates = []
    for size in (8192, MIB, 16 * MIB, BLOCK):
        times = 50 if size <= MIB else 10

        def reduce(size: int = size, times: int = times) -> None:
            for _ in range(times):
                count = ctypes.c_size_t(size // 4)
                library("ncclAllReduce", sent, received, count, FLOAT32, SUM, comm, stream)
            cuda("cuStreamSynchronize", stream)

        took = shortest_time(reduce) / times
        rates.append({"bytes": size, "microseconds": round(took * 1e6, 1), "rate": rate(size, took)})
    parent.send({"rates": rates, "intact": cuda.holds(received, BLOCK, total)})


def transports(log: Path) -> list[str]:
    """Return the transports in NCCL's log: `P2P/CUMEM` of `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM`."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in log.iterdir()]
    return sorted({via for text in texts for via in re.findall(r" via ([A-Za-z0-9/_-]{1,40})", text)})
