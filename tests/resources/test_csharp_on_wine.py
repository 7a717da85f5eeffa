"""The C# that scripts compile on a host, on Wine's kernel32 and advapi32, which nobody here wrote.

Wine has no firmware variables and dismounts no volume: there its errors are what is tried. A volume is a folder of this
machine, below \\\\?\\, where .NET itself refuses paths; Wine has none without a drive letter.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from tests.resources.dotnet import compiled, compiled_program, embedded, quiet, windows_sdk

WINE = Path("/usr/lib/wine/wine64")
FRAMEWORK = Path("/usr/lib/mono/4.8-api")
VOLUME = "\\\\?\\E:\\"
FITS = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not FITS, reason="npm has this SDK for Linux on x86_64"),
    pytest.mark.skipif(FITS and not (WINE.exists() and shutil.which("npm")), reason="not installed: wine64 or npm"),
]

# Each call of WinhostNative by name, or the error of Windows that it ends with.
HARNESS = r"""
using System;
using System.ComponentModel;
using System.Text;

public static class Harness
{
    public static int Main(string[] asked)
    {
        try
        {
            byte[] said = Encoding.UTF8.GetBytes(Call(asked) + "\n");
            Console.OpenStandardOutput().Write(said, 0, said.Length);
            return 0;
        }
        catch (Win32Exception error)
        {
            Console.WriteLine("error " + error.NativeErrorCode);
            return 1;
        }
    }

    private static string Call(string[] asked)
    {
        string root = asked[1];
        switch (asked[0])
        {
            case "files":
                return string.Join("\n", WinhostNative.Files(root));
            case "hash":
                long length;
                string hash = WinhostNative.Hash(root, out length);
                return hash + " " + length;
            case "copy":
                WinhostNative.Copy(root, asked[2]);
                return "done";
            case "delete":
                WinhostNative.Delete(root);
                return "done";
            case "folders":
                WinhostNative.Folders(root, asked[2]);
                return "done";
            case "protected":
                return WinhostNative.IsReadOnly(root).ToString();
            case "dismount":
                WinhostNative.Dismount(root);
                return "done";
            case "read":
                byte[] value = WinhostNative.Read(root, asked[2]);
                return value == null ? "none" : value.Length.ToString();
            default:
                WinhostNative.Write(root, asked[2], new byte[] { 1 });
                return "done";
        }
    }
}
"""


@dataclass(frozen=True)
class Windows:
    """A Wine with our C#; disk: the folder that is its volume."""

    prefix: Path
    command: tuple[str | Path, ...]
    disk: Path

    def __call__(self, *asked: str) -> list[str]:
        """Return its output."""
        return _ran(self.prefix, *self.command, *asked).splitlines()


def _ran(prefix: Path, *command: str | Path) -> str:
    settings = {"WINEPREFIX": str(prefix), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    done = subprocess.run(
        command, cwd=prefix.parent, capture_output=True, text=True, timeout=PATIENCE_S, env={**quiet(), **settings}
    )
    assert done.returncode in (0, 1), f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Windows]:
    folder = tmp_path_factory.mktemp("wine")
    program = compiled_program(folder, [*embedded(), HARNESS])
    (runtime,) = windows_sdk().glob("shared/Microsoft.NETCore.App/*")
    text = program.with_suffix(".runtimeconfig.json").read_text()
    (ours,) = {word for word in text.split('"') if word.startswith("3.1")}
    program.with_suffix(".runtimeconfig.json").write_text(text.replace(ours, runtime.name))
    prefix, disk = folder / "prefix", folder / "disk"
    disk.mkdir()
    _ran(prefix, WINE, "wineboot", "-i")
    (prefix / "dosdevices/e:").symlink_to(disk)
    command = (WINE, windows_sdk() / "dotnet.exe", "exec", f"Z:{program}".replace("/", "\\"))
    try:
        yield Windows(prefix, command, disk)
    finally:
        _ran(prefix, WINE.with_name("wineserver64"), "-k")


def test_it_compiles_against_what_windows_powershell_has(tmp_path: Path) -> None:
    """.NET Core accepts calls that .NET Framework lacks."""
    if not FRAMEWORK.exists():
        pytest.skip("not installed: mono-devel, which has the reference assemblies of .NET Framework 4.8")
    known = [FRAMEWORK / f"{name}.dll" for name in ("mscorlib", "System", "System.Core")]
    compiled(tmp_path, embedded(), known, "-nostdlib", "-target:library", f"-out:{tmp_path / 'ours.dll'}")
    source = 'public static class Later { static object o = System.IO.Path.GetRelativePath("a", "b"); }'
    with pytest.raises(AssertionError, match="CS0117"):
        compiled(tmp_path, [source], known, "-nostdlib", "-target:library", f"-out:{tmp_path / 'later.dll'}")


def test_files_of_a_volume_are_listed_copied_hashed_and_deleted(windows: Windows) -> None:
    efi = windows.disk / "EFI/Ubuntu"
    efi.mkdir(parents=True)
    (windows.disk / "README.TXT").write_bytes(b"read me")
    (efi / "shimx64.efi").write_bytes(bytes(range(256)) * 5000)
    (efi / "shimx64.efi").chmod(0o444)
    (windows.disk / "empty").mkdir()
    (windows.disk / "grüße €.efi").write_bytes(b"")
    listed = ["EFI\\Ubuntu\\shimx64.efi", "README.TXT", "grüße €.efi"]
    assert windows("files", VOLUME) == listed
    content = (efi / "shimx64.efi").read_bytes()
    hashed = [f"{hashlib.sha256(content).hexdigest()} {len(content)}"]
    assert windows("hash", f"{VOLUME}{listed[0]}") == hashed

    target = "EFI\\winhost\\1\\shimx64.efi"
    assert windows("folders", VOLUME, target) == ["done"]
    assert windows("folders", VOLUME, target) == ["done"], "what is there is left alone"
    assert windows("copy", f"{VOLUME}{listed[0]}", f"{VOLUME}{target}") == ["done"]
    copy = windows.disk / "EFI/winhost/1/shimx64.efi"
    assert copy.read_bytes() == content
    assert copy.stat().st_mode & 0o200, "read-only, it could be neither replaced nor deleted"
    (copy.parent / "other").write_bytes(b"")
    assert windows("delete", f"{VOLUME}{target}") == ["done"]
    assert [each.name for each in copy.parent.iterdir()] == ["other"]
    assert windows("delete", f"{VOLUME}EFI\\winhost\\1\\other") == ["done"]
    assert not copy.parent.exists(), "the folder goes with its last file"
    assert copy.parent.parent.exists()


def test_what_is_not_there_ends_with_the_error_of_windows(windows: Windows) -> None:
    for asked, code in (
        (("files", f"{VOLUME}none\\"), 3),
        (("hash", f"{VOLUME}none"), 2),
        (("copy", f"{VOLUME}none", f"{VOLUME}copy"), 2),
        (("delete", f"{VOLUME}none"), 2),
        (("folders", f"{VOLUME}none\\", "a\\b"), 3),
    ):
        assert windows(*asked) == [f"error {code}"], asked
    assert not (windows.disk / "copy").exists()


def test_a_folder_that_leads_elsewhere_is_not_followed(windows: Windows) -> None:
    inner = windows.disk / "links"
    inner.mkdir()
    (inner / "loop").symlink_to(inner)
    (inner / "file").write_bytes(b"")
    found = windows("files", f"{VOLUME}links\\")
    assert found in (["file"], ["error 206"]), "a loop has an end"
    (inner / "loop").unlink()


def test_a_volume_says_whether_it_can_be_written(windows: Windows) -> None:
    assert windows("protected", VOLUME) == ["False"]


def test_what_this_windows_lacks_is_an_error_and_not_an_answer(windows: Windows) -> None:
    space = "{8be4df61-93ca-11d2-aa0d-00e098032b8c}"
    for asked in (("read", "BootOrder", space), ("write", "BootNext", space), ("dismount", VOLUME)):
        (said,) = windows(*asked)
        assert said.startswith("error "), asked
        assert said != "error 0", asked
