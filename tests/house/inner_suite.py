"""A small suite in a folder of its own, run by a pytest of its own, to test how the suite itself is run."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.house.tree import ROOT

# Of all that are installed. The others would take as long to import as the suites take to run.
PLUGINS = ("-p", "xdist", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin")


def run_suite(folder: Path, files: dict[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text), "utf-8")
    # The environment of the outer run must not reach it: PYTEST_ADDOPTS, PYTEST_XDIST_WORKER and others.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", folder, "-p", "no:cacheprovider", *PLUGINS, *options],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
