# Part of the probe, NCCL: a sum over all GPUs, and the way that it takes.
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
    seconds_of,
)
from winhost.agent.linux_peer import Peer


def nccl(say: Any, _: Any) -> None:
    """An all-reduce over all GPUs, one process each, and the transport that NCCL's log names."""
    check_host(BLOCK)
    log = Path(tempfile.gettempdir())
    os.environ["NCCL_DEBUG"], os.environ["NCCL_DEBUG_FILE"] = "INFO", f"{log}/%p"
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast is the whole switch's, not only ours
    counter = Peer(lambda us: us.say(Cuda().count()))  # we fork more, so we load no driver
    number = counter.hear()
    if number < 2:
        raise Skipped("there are fewer than two GPUs")
    library, version = Nccl(), ctypes.c_int()
    library("ncclGetVersion", ctypes.byref(version))
    found: dict[str, Any] = {"version": version.value, "gpus": number, "transports": [], "rates": [], "intact": None}
    say("nccl", found)
    ranks = [Peer(lambda us, rank=rank: all_reduce(us, rank, number)) for rank in range(number)]
    unique = ranks[0].hear()
    for rank in ranks:
        rank.say(unique)
    results = [rank.hear() for rank in ranks]
    found["transports"] = transports(log)
    found["rates"] = results[0]["rates"]
    found["intact"] = all(result["intact"] for result in results)
    say("nccl", found)


def all_reduce(us: Peer, rank: int, number: int) -> None:
    library, unique, stream, comm = Nccl(), NcclId(), ctypes.c_void_p(), ctypes.c_void_p()
    if rank == 0:
        library("ncclGetUniqueId", ctypes.byref(unique))
        us.say(list(unique.internal))
    unique = NcclId((ctypes.c_ubyte * 128)(*us.hear()))
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

        took = seconds_of(reduce) / times
        rates.append({"bytes": size, "microseconds": round(took * 1e6, 1), "rate": rate(size, took)})
    us.say({"rates": rates, "intact": cuda.holds(received, BLOCK, total)})


def transports(log: Path) -> list[str]:
    """`P2P/CUMEM`, as its lines `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM` have it."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in log.iterdir()]
    return sorted({via for text in texts for via in re.findall(r" via ([A-Za-z0-9/_-]{1,40})", text)})
