"""docs/known.md, made from the data: `python -m tests.house.known_page` writes it, and a test holds it equal."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from winhost.autoinstall.autoinstall_file import ROWS as INSTALLER
from winhost.findings.finding import Rows
from winhost.findings.show import format_source
from winhost.hardware.gpus import GpuModel, all_models
from winhost.hardware.processors import generations
from winhost.knowledge import catalogue
from winhost.knowledge.versions import revisions, table, windows_builds
from winhost.model.units import size
from winhost.recipes.recipe_rows import ROWS as RECIPES
from winhost.symptoms.table import Symptom, symptoms
from winhost.wslconfig.rules import ROWS as WSL

PAGE = Path(__file__).parents[2] / "docs" / "known.md"

HEAD = """# What is known
Versions, hardware and errors that winhost knows, made from its data by `python -m tests.house.known_page`. What is not
here is unknown to it: it says so, and never takes it for the better case.
"""


def page() -> str:
    """The whole text."""
    parts = (
        HEAD,
        _windows(),
        _software(),
        _generations(),
        _virtual_machines(),
        _processors(),
        _gpus(),
        _lints(),
        _symptoms(),
    )
    return "\n".join(parts)


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [_row(columns), _row("---" for _ in columns), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _said(evidence: str) -> str:
    return format_source(catalogue.evidence()[evidence])


def _windows() -> str:
    builds = (
        (
            b.build,
            b.client or "",
            b.server or "",
            b.azure_local or "",
            f"{b.vm[0]} to {b.vm[1]}" if b.vm else "not told",
        )
        for b in windows_builds()
    )
    updates = ((str(each), each.brings, _said(each.evidence)) for each in revisions())
    return (
        "## Windows\nAnother build, an Insider one or a newer, makes every path on it `unverified`.\n\n"
        + _table(("build", "client", "server", "Azure Local", "VM configuration versions"), builds)
        + "\nWhat an update brought to a build, from which revision on:\n\n"
        + _table(("build and revision", "brings", "evidence"), updates)
    )


def _software() -> str:
    ranges = (
        (each["what"], each["first"], each["newest"], each["below"], _said(each["evidence"]))
        for each in table()["ranges"]
    )
    branches = ((f"R{each['branch']}", each["says"], _said(each["evidence"])) for each in table()["branches"])
    return (
        f"## Other software\nAll of this was checked on {table()['checked']}. A newer build of a known line stays "
        "judged, with a note; a new line is `unverified`.\n\n"
        + _table(("what", "known from", "known to", "below", "evidence"), ranges)
        + "\nBranches of NVIDIA's drivers:\n\n"
        + _table(("branch", "what it is", "evidence"), branches)
    )


def _generations() -> str:
    def bound(row: dict[str, object], name: str) -> str:
        least, most = row.get(name), row.get(f"{name}_most")
        return ", ".join([f"{least} or newer"] * bool(least) + [f"at most {most}"] * bool(most)) or "nothing known"

    rows = (
        (
            name,
            row["capability"],
            *(bound(row, each) for each in ("cuda", "driver", "vllm", "nccl")),
            _said(row["evidence"]),
        )
        for name, row in table()["least"].items()
    )
    columns = ("generation", "compute capability from", "CUDA", "driver branch", "vLLM", "NCCL", "evidence")
    return "## By generation of GPUs\n" + _table(columns, rows)


def _virtual_machines() -> str:
    rows = ((each["feature"], each["version"], _said(each["evidence"])) for each in table()["features"])
    return "## VMs\nThe least configuration version:\n\n" + _table(("for", "version", "evidence"), rows)


def _processors() -> str:
    rows = (
        (each.generation, each.hardware, each.width or "not known", f"{each.kind}: {each.source}" if each.kind else "")
        for each in generations()
    )
    return "## Processors\nPhysical address bits by the model, which Windows does not report:\n\n" + _table(
        ("generation", "hardware", "bits", "evidence"), rows
    )


def _gpus() -> str:
    found: defaultdict[str, list[GpuModel]] = defaultdict(list)
    for gpu in all_models():
        found[gpu.architecture or "other"].append(gpu)
    return "## GPUs\n" + "\n".join(f"### {name}\n{_gpu_table(gpus)}" for name, gpus in found.items())


def _gpu_table(gpus: Iterable[GpuModel]) -> str:
    rows = (
        (gpu.device, gpu.name, size(gpu.memory) if gpu.memory else "not known", gpu.line or "", _bars(gpu))
        for gpu in gpus
    )
    return _table(("PCI id", "name", "memory", "line", "64-bit BARs"), rows)


def _bars(gpu: GpuModel) -> str:
    return " + ".join(map(size, gpu.bars.wide)) + f" ({gpu.bars.source.kind})" if gpu.bars else "surveyed only"


def _lints() -> str:
    linters = (("`lint wslconfig`, `wslconf`", WSL), ("`lint serve`, `docker-daemon`, `cdi`", RECIPES))
    parts = (f"### {name}\n{_linter(rows)}" for name, rows in (*linters, ("`lint autoinstall`", INSTALLER)))
    return "## What lint finds\nWords in braces come from the file.\n\n" + "\n".join(parts)


def _linter(rows: Rows) -> str:
    cells = (
        (f"`{row.code}`", f"{row.severity} ({row.severity.category})", row.says, _kinds(row.evidence))
        for row in sorted(rows.values(), key=lambda row: -row.severity.rank)
    )
    return _table(("code", "severity", "what it says", "evidence"), cells)


def _kinds(ids: Iterable[str]) -> str:
    kinds = Counter(catalogue.evidence()[key].kind for key in ids)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _symptoms() -> str:
    programs: defaultdict[str, list[Symptom]] = defaultdict(list)
    for symptom in symptoms().values():
        programs[symptom.program].append(symptom)
    sections = (
        f"### {name}\n{_table(('name', 'what it says', 'evidence'), _told(of))}" for name, of in programs.items()
    )
    return "## Symptoms\nErrors that `winhost explain` knows.\n\n" + "\n".join(sections)


def _told(of: Iterable[Symptom]) -> Iterator[tuple[str, str, str]]:
    for symptom in of:
        yield symptom.id, symptom.says, _kinds(key for cause in symptom.causes for key in cause.evidence)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
