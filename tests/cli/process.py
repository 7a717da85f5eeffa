"""winhost in a process of its own."""

import sys

# Its progress never has a reason to speak: what else stands on stderr does not hang on how fast a machine is.
UNHURRIED = (
    sys.executable,
    "-c",
    "from winhost.cli import watch; watch.SILENT = 3600; from winhost.__main__ import main; main()",
)
