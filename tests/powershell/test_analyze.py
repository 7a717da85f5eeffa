"""The check of our scripts by PSScriptAnalyzer says what it could not check, with a stand-in for the module itself."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.powershell.conftest import BUSY_S
from winhost.lab.powershell.powershell_engine import find_engine

ANALYZE = Path(__file__).parents[2] / ".github" / "analyze.ps1"
SYNTAX, PROFILED = "PSUseCompatibleSyntax", ("PSUseCompatibleCommands", "PSUseCompatibleTypes")
# As the real one: a null reference where a rule names a profile that is not there.
STANDIN = """
function Invoke-ScriptAnalyzer {
    param($Path, $Settings)
    foreach ($rule in $Settings.IncludeRules) {
        foreach ($name in $Settings.Rules[$rule]['TargetProfiles']) {
            $null = (Get-Item "$PSScriptRoot/compatibility_profiles/$name.json" -ErrorAction Ignore).Name.Length
        }
    }
    "checked: $($Settings.IncludeRules -join ' ')" | Out-Host
}
"""


def analyze(tmp_path: Path, *profiles: str) -> subprocess.CompletedProcess[str]:
    module, scripts = tmp_path / "modules" / "PSScriptAnalyzer", tmp_path / "scripts"
    for folder in (module / "compatibility_profiles", scripts):
        folder.mkdir(parents=True)
    (module / "PSScriptAnalyzer.psm1").write_text(STANDIN, encoding="ascii")
    (scripts / "one.ps1").write_text("1\n", encoding="ascii")
    for name in profiles:
        (module / "compatibility_profiles" / f"{name}.json").write_text("{}", encoding="ascii")
    environment = {**os.environ, "PSModulePath": str(tmp_path / "modules")}
    command = [find_engine(), "-NoProfile", "-NonInteractive", "-File", str(ANALYZE), str(scripts)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUSY_S, check=False)


def test_rules_without_their_profiles_are_named_and_the_others_run(tmp_path: Path) -> None:
    ended = analyze(tmp_path)
    assert ended.returncode == 1, "what was not checked is not good"
    assert f"checked: {SYNTAX}\n" in ended.stdout
    for rule in PROFILED:
        assert f"{rule} was not checked" in ended.stdout


@pytest.mark.parametrize("build", ["14393.0_5.1.14393.2791", "17763.0_5.1.17763.316"])
def test_one_profile_is_not_enough(tmp_path: Path, build: str) -> None:
    ended = analyze(tmp_path, f"win-8_x64_10.0.{build}_x64_4.0.30319.42000_framework")
    assert ended.returncode == 1
    assert "was not checked" in ended.stdout


def test_with_all_profiles_all_rules_run(tmp_path: Path) -> None:
    builds = ("14393.0_5.1.14393.2791", "17763.0_5.1.17763.316")
    ended = analyze(tmp_path, *(f"win-8_x64_10.0.{build}_x64_4.0.30319.42000_framework" for build in builds))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"checked: {SYNTAX} {' '.join(PROFILED)}" in ended.stdout
    assert "0 findings" in ended.stdout


def test_the_script_that_opens_winrm_has_no_fault_of_syntax() -> None:
    script = ANALYZE.with_name("windows") / "open_winrm.ps1"
    check = f"$e = $null; [void][Management.Automation.Language.Parser]::ParseFile('{script}', [ref]$null, [ref]$e); $e"
    command = [find_engine(), "-NoProfile", "-NonInteractive", "-Command", check]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=BUSY_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
