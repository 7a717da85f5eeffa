"""An engine by protocol on a Unix socket: `python -m tests.gateway.protocol_server NAME SOCKET SCALE FAULT…`.

It has a GPU of its own; the gateway that it is for sees one through the keeper, or none.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.gateway.vllm_protocol import ConnectionLost, Gpu, NobodyListens, ProtocolEngine, Times

TOTAL_MIB, AWAKE_MIB = 81_559, 66_000


@asynccontextmanager
async def served(engine: ProtocolEngine, socket: Path) -> AsyncIterator[None]:
    """Listen at the socket while the engine is up."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            status, found = await engine.answer(request.method, request.raw_path, await request.read())
        except (ConnectionLost, NobodyListens):
            assert request.transport
            request.transport.abort()
            return web.Response()
        return web.json_response(found, status=status) if found is not None else web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def serve(name: str, socket: Path, scale: float, faults: set[str]) -> None:
    engine = ProtocolEngine(name, Gpu(TOTAL_MIB), AWAKE_MIB, times=Times().scaled(scale), faults=faults)
    await engine.start()
    async with served(engine, socket):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), {*sys.argv[4:]}))
