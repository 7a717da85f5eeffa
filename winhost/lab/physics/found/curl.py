"""curl.exe of a simulated host, which really fetches: from the computer that runs winhost, and that is this one."""

import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import Field

from winhost.core.answers import Record
from winhost.lab.physics.parts import Host, Part
from winhost.model.written import Closed

_NO_CONNECTION, _HTTP_ERROR, _TIMED_OUT = 7, 22, 28


class CurlPhysics(Closed):
    """`lab: {found: {curl: …}}` in a host file."""

    there: bool = Field(default=True, description="Windows has it, as from 1803 and Server 2019 on")
    reaches: bool = Field(default=True, description="no firewall stands between it and the computer that runs winhost")
    piece: int | None = Field(default=None, description="bytes that come before its time is over; left out, all")


class Curl(Part):
    """The program."""

    def __init__(self, host: Host, initial: Mapping[str, Sequence[Record]]) -> None:
        super().__init__(host)
        self._physics = CurlPhysics.model_validate(host.lab.found.get("curl", {}))
        if self._physics.there:
            host.programs["curl.exe"] = self.curl

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """It is no resource."""
        return {}

    def curl(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Its exit code and what it prints; goes on where the file ends, as --continue-at says."""
        path, url = arguments[arguments.index("--output") + 1], arguments[-1]
        if not self._physics.reaches:
            return _TIMED_OUT, ""
        begin = self.host.files.length(path)
        asked = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"})  # noqa: S310 - of the lab's own winhost
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60) as answer:
                content = answer.read(self._physics.piece)
                code = 0 if len(content) == int(answer.headers["Content-Length"]) else _TIMED_OUT
        except urllib.error.HTTPError as error:
            error.close()
            return _HTTP_ERROR, ""
        except OSError:
            return _NO_CONNECTION, ""
        self.host.files.append(path, content, restart=False)
        return code, ""


part = Curl
