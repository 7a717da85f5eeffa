"""The text for a Linux consists of the source files, line by line, without imports of winhost."""

import ast

from winhost.resources.linux import linux_scripts


def test_the_agent_is_its_sources_without_our_imports() -> None:
    sources = [each.read_text("ascii") for each in linux_scripts.files().values()]
    kept = [ast.dump(node) for text in sources for node in ast.parse(text).body if not _ours(node)]
    sent = ast.parse(linux_scripts.agent_text()).body
    assert [ast.dump(node) for node in sent if not _of_the_future(node)] == kept
    assert _of_the_future(sent[1])  # only at the top, below the first text
    assert sum(map(_of_the_future, sent)) == 1


def test_no_program_imports_of_ours() -> None:
    for text in (linux_scripts.probe_text(), linux_scripts.serving_text()):
        assert all(_of_the_future(node) for node in ast.parse(text).body if _ours(node))


def test_lines_stay_where_they_are() -> None:
    lines = sum(each.read_text("ascii").count("\n") + 1 for each in linux_scripts.files().values())
    assert linux_scripts.agent_text().count("\n") + 1 == lines


def _of_the_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _ours(node: ast.stmt) -> bool:
    return _of_the_future(node) or (isinstance(node, ast.ImportFrom) and str(node.module).startswith("winhost"))
