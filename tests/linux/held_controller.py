"""Run winhost up to the end of one step, before that is written to the journal; the test kills it there. python -m
tests.linux.held_controller RESOURCE NAME=VALUE… -- ARGUMENTS…
"""

import json
import signal
import sys
from typing import Any

from winhost.__main__ import main
from winhost.engine.journal import Journal

held = json.loads(sys.argv.pop(1))
write = Journal.write


def write_but_that(self: Journal, event: str, **fields: Any) -> Any:
    if event == "end" and [fields["resource"], fields["key"]] in held:
        signal.pause()
    return write(self, event, **fields)


Journal.write = write_but_that  # type: ignore[method-assign]
main()
