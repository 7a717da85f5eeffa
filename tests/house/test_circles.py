"""No file needs itself, however long the way round: each can be read, tested and moved with what is below it alone."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.house.tree import graph, imports, modules


def circle(imports: dict[str, set[str]]) -> list[str]:
    """One circle among the modules, from one of them back to it; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_is_in_an_import_circle() -> None:
    assert circle(imports()) == []


def test_a_circle_is_seen_through_a_function_and_a_type(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").touch()
    (house / "one.py").write_text("def late():\n    from house import two\n")
    (house / "two.py").write_text("if TYPE_CHECKING:\n    from house.one import late\n")
    assert set(circle(graph(modules(house)))) == {"house.one", "house.two"}
