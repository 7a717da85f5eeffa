"""A case of a linter: the file as it stands in it, linted on the machine that it names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from tests.autoinstall.layouts import MANIFEST
from tests.serving.situations import linux, shipped
from winhost.autoinstall.autoinstall_file import disk_of_manifest
from winhost.autoinstall.lint import lint_autoinstall
from winhost.compat.target import Target
from winhost.findings.finding import FileFinding
from winhost.recipes.lint_recipe import LintedRecipe, lint_cdi, lint_docker_daemon, lint_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.recipes.wslconfig_limits import wslconfig_limits
from winhost.resources.host import HostFacts
from winhost.wslconfig.format import WSLCONF, WSLCONFIG
from winhost.wslconfig.rules import HostLimits
from winhost.wslconfig.rules import lint as lint_wslconfig

Case = Mapping[str, Any]
DIALECTS = {dialect.name: dialect for dialect in (WSLCONFIG, WSLCONF)}
LINT_RECIPES: Mapping[str, Callable[..., LintedRecipe]] = {
    "serve": lint_recipe,
    "docker-daemon": lint_docker_daemon,
    "cdi": lambda data, target, mend: lint_cdi(data, target),
}
# Around `section`: all that a file needs beside storage. Around `entries`, which are those of `storage.config`: the
# rest of that section, too.
HEAD = """\
version: 1
apt: {fallback: offline-install}
identity: {username: ada, hostname: gpu, password: $y$j9T$salt$hash}
ssh: {install-server: true, authorized-keys: [ssh-ed25519 AAAA ada]}
"""
STORAGE = "storage:\n  grub: {remove_duplicate_entries: false}\n  config:\n"
MOUNTS = """\
  - {type: device, id: d9}
  - {type: partition, id: e9, device: d9, offset: 1, size: 1, grub_device: true}
  - {type: format, id: f8, volume: e9, fstype: vfat}
  - {type: mount, id: m8, device: f8, path: /boot/efi}
  - {type: mount, id: m9, path: /}
"""


@dataclass(frozen=True)
class Linted:
    """above: lines that the case's text comes after; mended: None where nothing is mended."""

    findings: tuple[FileFinding, ...]
    above: int = 0
    mended: bytes | None = None

    @property
    def said(self) -> list[str]:
        """`LINE CODE` of each, with lines as the case counts them; 0 is above its text."""
        return [f"{max(each.line - self.above, 0)} {each.code.partition('.')[2]}" for each in self.findings]

    @property
    def told(self) -> str:
        return "\n".join(f"{each.sentence} {each.remedy.do if each.remedy else ''}" for each in self.findings)


def data_of(case: Case) -> bytes:
    encoded: bytes = case["text"].encode(case.get("encoding", "utf-8"))
    return encoded


def version_in(case: Case, key: str) -> Version | None:
    return Version(case[key]) if key in case else None


def in_wsl_file(case: Case) -> Linted:
    """file: wslconfig or wslconf; host: one of the examples, whose version of WSL is left out."""
    host = HostLimits(forbidden=frozenset(case.get("forbidden", ())))
    if "host" in case:
        host = replace(wslconfig_limits(shipped(case["host"])), version=None)
    dialect = DIALECTS[case.get("file", "wslconfig")]
    return Linted(tuple(lint_wslconfig(data_of(case), dialect, version=version_in(case, "wsl"), host=host)))


def whole(case: Case) -> tuple[int, str]:
    """How many lines come above what a case of an installer's file writes, and the whole file."""
    if "section" in case:
        return HEAD.count("\n"), HEAD + case["section"]
    if "entries" in case:
        entries = "".join(f"  {line}\n" for line in case["entries"].splitlines())
        return (HEAD + STORAGE).count("\n"), HEAD + STORAGE + entries + MOUNTS
    return 0, case["text"]


def in_autoinstall(case: Case) -> Linted:
    """facts: those of tests/autoinstall/layouts.py."""
    above, text = whole(case)
    disks = [disk_of_manifest(MANIFEST)] if "facts" in case else []
    found = lint_autoinstall(text.encode(), installer=version_in(case, "installer"), disks=disks)
    return Linted(tuple(found), above)


def in_recipe(case: Case, linter: str = "serve") -> Linted:
    found = linted_recipe(case, linter)
    return Linted(found.findings, mended=found.mended)


def linted_recipe(case: Case, linter: str = "serve", *, mend: bool = True) -> LintedRecipe:
    found: LintedRecipe = LINT_RECIPES[linter](data_of(case), target_of(case), mend=mend)
    return found


def target_of(case: Case) -> RecipeTarget:
    """host: one of the examples, with other GPUs (`gpu`, a device id) or another `driver` of Windows."""
    stated, path = version_in(case, "vllm"), case.get("path")
    if "linux" in case:
        return RecipeTarget(path or "linux", stated, Target(linux(case["linux"]), "linux"))
    versions = {"wsl": Version(case["wsl"])} if "wsl" in case else {}
    on = Target(_host_with(case), path or "wsl2", versions) if "host" in case else None
    return RecipeTarget(path, stated, on)


def _host_with(case: Case) -> HostFacts:
    document = shipped(case["host"]).document
    found: Any = document.resources["PciDevice"]
    records = tuple(_with_gpu(each, case) if each.state["kind"] == "display" else each for each in found)
    return HostFacts(replace(document, resources={**document.resources, "PciDevice": records}))


def _with_gpu(record: Any, case: Case) -> Any:
    key = {**record.key, "device": f"VEN_10DE&DEV_{case['gpu']}&SUBSYS_000010DE"} if "gpu" in case else record.key
    driver = case.get("driver", record.state["driver_version"])
    return replace(record, key=key, state={**record.state, "driver_version": driver})
