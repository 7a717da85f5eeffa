"""The dial for costly tests: what runs is chosen by the seed, the same in every worker, and what does not is told."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.costly import commit
from tests.house.inner_suite import run_suite

SUITE = {
    "one/test_cases.py": """
        import pytest

        @pytest.mark.costly
        @pytest.mark.parametrize("case", range(200))
        def test_sweep(case): pass

        @pytest.mark.costly
        @pytest.mark.parametrize("case", range(3))
        def test_small_sweep(case): pass

        @pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.costly)])
        def test_with_a_cheap_case(every): pass
    """,
    "two/test_functions.py": "import pytest\n"
    + "".join(f"@pytest.mark.costly\ndef test_long_{number}(): pass\n" for number in range(8)),
}


EVERY = 200 + 3 + 2 + 8


def run(folder: Path, *options: str) -> tuple[set[str], str]:
    """The tests that ran, and the line about the others."""
    said = run_suite(folder, SUITE, "-p", "tests.costly", "-v", *options)
    assert said.returncode == 0, said.stdout + said.stderr
    ran = {line.split("::")[1].split()[0] for line in said.stdout.splitlines() if "PASSED" in line}
    return ran, "".join(line for line in said.stdout.splitlines() if "costly tests left" in line)


def counts(ran: set[str]) -> dict[str, int]:
    return Counter(re.sub(r"_\d$", "", name.partition("[")[0]) for name in ran)


def test_few_keeps_one_function_of_each_folder_at_least(tmp_path: Path) -> None:
    ran, told = run(tmp_path, "--costly-seed", "a")
    assert "test_with_a_cheap_case[9]" in ran
    folders = counts(ran - {"test_with_a_cheap_case[9]"})
    chosen = next(iter(folders.keys() - {"test_long"}))
    most = {"test_sweep": 4, "test_small_sweep": 1, "test_with_a_cheap_case": 1}
    assert folders == {chosen: most[chosen], "test_long": 1}
    assert told.startswith(f"{EVERY - most[chosen] - 2} costly tests left to make real and make all")
    assert "--costly few --costly-seed a" in told


@pytest.mark.costly
def test_in_a_named_file_every_function_runs(tmp_path: Path) -> None:
    words = ("--costly-seed", "a", *SUITE)
    ran, _ = run(tmp_path, *words)
    assert counts(ran) == {"test_sweep": 4, "test_small_sweep": 1, "test_with_a_cheap_case": 2, "test_long": 8}
    assert run(tmp_path, *words, "-n", "2")[0] == ran


@pytest.mark.costly
def test_some_keeps_every_function_and_all_keeps_every_case(tmp_path: Path) -> None:
    ran, told = run(tmp_path, "--costly", "some")
    assert counts(ran) == {"test_sweep": 50, "test_small_sweep": 1, "test_with_a_cheap_case": 2, "test_long": 8}
    assert told.startswith(f"{EVERY - 61} costly tests left to make all")
    ran, told = run(tmp_path, "--costly", "all")
    assert (len(ran), told) == (EVERY, "")


@pytest.mark.costly
def test_the_seed_alone_chooses_with_any_number_of_workers(tmp_path: Path) -> None:
    one, other = run(tmp_path, "--costly-seed", "a"), run(tmp_path, "--costly-seed", "b")
    assert one[0] != other[0]
    assert run(tmp_path, "--costly-seed", "b", "-n", "2") == other


def test_the_commit_is_the_seed_unless_one_is_given(tmp_path: Path) -> None:
    _, told = run(tmp_path)
    assert f"--costly-seed {commit()}" in told


def test_what_is_named_runs(tmp_path: Path) -> None:
    names = "test_sweep[7]", "test_small_sweep[2]"
    assert run(tmp_path, *(f"one/test_cases.py::{name}" for name in names)) == (set(names), "")
    assert run(tmp_path, "-m", "not costly") == ({"test_with_a_cheap_case[9]"}, "")
