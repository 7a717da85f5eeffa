"""The mark `costly` and the option `--costly few|some|all`: how many of the costly tests run; the commit says which.

Functions are sampled among those of their folder, and then the cases of each that was chosen: `few` (make test) runs
one function in 8 and one case in 50, `some` (make real) every function and one case in 4; at least one of each. In a
file that is named on the command line every function runs.
The sample depends on the seed and on what is collected, so every worker of xdist has the same.
"""

import hashlib
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

CASES_ONE_IN = {"few": 50, "some": 4, "all": 1}
FUNCTIONS_ONE_IN = {"few": 8, "some": 1, "all": 1}
EXAMPLES = {"few": 20, "some": 200, "all": 200}
NOT_RUN = pytest.StashKey[int]()

# The duration of an example depends on how busy the machine is: no deadline. The examples follow from the test, so that
# a tree which is green stays green; the profile "any" draws others each time, to look for more.
for name, examples in EXAMPLES.items():
    settings.register_profile(name, deadline=None, max_examples=examples, derandomize=True)
settings.register_profile("any", deadline=None, max_examples=500)
# Constants in modules that are imported by then would be tried as well: the examples would follow from the tests that
# ran before, and each worker would parse a thousand files to find them.
providers.is_local_module_file = lambda path: False


def commit() -> str:
    """The commit of this tree, or a fixed word where there is no git."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300)
    except OSError:
        return "no-git"
    return done.stdout.strip() or "no-git"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("winhost")
    group.addoption("--costly", choices=list(EXAMPLES), default="few", help="how many of the costly tests to run")
    group.addoption("--costly-seed", help="which of them to run; the commit, if not given")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "costly: one of many or long; --costly few|some|all says how many of them run")
    config.stash[NOT_RUN] = 0
    if config.option.costly_seed is None:  # workers of xdist get the options of their controller
        config.option.costly_seed = commit()
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile(config.option.costly)


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    dial, seed = config.option.costly, config.option.costly_seed
    named = set[Path]()
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        named = {config.invocation_params.dir / each.partition("::")[0] for each in config.args}
    costly = {item.nodeid: item for item in items if item.get_closest_marker("costly")}
    folders = defaultdict[str, dict[str, list[str]]](dict)
    for case, item in costly.items():
        function = case.partition("[")[0]
        folder = function if item.path in named else str(item.path.parent)
        folders[folder].setdefault(function, []).append(case)
    for functions in folders.values():
        for function in sample(functions, FUNCTIONS_ONE_IN[dial], seed):
            for case in sample(functions[function], CASES_ONE_IN[dial], seed):
                del costly[case]
    left = set(costly.values())
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    config.stash[NOT_RUN] = len(left)


def sample(names: Iterable[str], one_in: int, seed: str) -> list[str]:
    mixed = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    return mixed[: max(1, len(mixed) // one_in)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["costly tests not run"] = session.config.stash[NOT_RUN]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    told = getattr(node, "workeroutput", {}).get("costly tests not run", 0)
    node.config.stash[NOT_RUN] = max(node.config.stash[NOT_RUN], told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash[NOT_RUN]:
        later = {"few": "make real and make all", "some": "make all"}[config.option.costly]
        chosen = f"--costly {config.option.costly} --costly-seed {config.option.costly_seed}"
        terminalreporter.write_line(f"{count:,} costly tests left to {later} (repeat this choice with {chosen})")
