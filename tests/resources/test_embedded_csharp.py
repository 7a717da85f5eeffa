"""The C# that scripts compile on a host: its structs have Windows' layout, and its calls act on what Windows answers.

npm's .NET SDK compiles it here, as the language version that Windows PowerShell has. A library in C with the documented
structs stands in for kernel32.
"""

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from tests.resources.dotnet import compiled_program, embedded, linux_sdk, quiet, run_in

NEEDS = {"npm": shutil.which("npm"), "cc": shutil.which("cc")}
FITS = sys.platform == "linux" and platform.machine() == "x86_64"
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not FITS, reason="npm has this SDK for Linux on x86_64"),
    pytest.mark.skipif(FITS and None in NEEDS.values(), reason=f"not installed: {[n for n in NEEDS if not NEEDS[n]]}"),
]

# Of each struct in our C#: its Windows name, its size, and the offset of each member in the order of the documentation.
# "LUID, FILETIME and what has them are aligned to 4 bytes": their members are DWORDs (and a LONG).
# https://learn.microsoft.com/windows/win32/api/winnt/ns-winnt-token_privileges, with one LUID_AND_ATTRIBUTES:
#   PrivilegeCount DWORD, Luid LUID {DWORD, LONG}, Attributes DWORD
# https://learn.microsoft.com/windows/win32/api/minwinbase/ns-minwinbase-win32_find_dataw:
#   dwFileAttributes DWORD, three FILETIME {DWORD, DWORD}, nFileSizeHigh, nFileSizeLow, dwReserved0, dwReserved1 DWORD,
#   cFileName WCHAR[260], cAlternateFileName WCHAR[14]
LAYOUTS: Mapping[str, tuple[str, int, tuple[int, ...]]] = {
    "WinhostNative+Privilege": ("TOKEN_PRIVILEGES", 16, (0, 4, 12)),
    "WinhostNative+Found": ("WIN32_FIND_DATAW", 592, (0, 4, 12, 20, 28, 32, 36, 40, 44, 564)),
}

HARNESS = r"""
using System;
using System.Collections.Generic;
using System.ComponentModel;
using System.Reflection;
using System.Runtime.InteropServices;

public static class Harness
{
    public static int Main(string[] asked)
    {
        return asked[0] == "layouts" ? Layouts() : asked[0] == "files" ? Files(asked[1]) : Protected(asked[1]);
    }

    private static int Protected(string root)
    {
        try
        {
            WinhostNative.Dismount(root);
            Console.WriteLine(WinhostNative.IsReadOnly(root));
            return 0;
        }
        catch (Win32Exception error)
        {
            Console.WriteLine("error " + error.NativeErrorCode);
            return 1;
        }
    }

    private static int Layouts()
    {
        foreach (Type type in typeof(Harness).Assembly.GetTypes())
        {
            if (!type.IsValueType || type.IsEnum || type.Name.StartsWith("<") || type.Name.StartsWith("__"))
            {
                continue;
            }
            List<string> offsets = new List<string>();
            foreach (FieldInfo field in type.GetFields())
            {
                offsets.Add(Marshal.OffsetOf(type, field.Name).ToString());
            }
            Console.WriteLine(type.FullName + " " + Marshal.SizeOf(type) + " " + string.Join(",", offsets));
        }
        return 0;
    }

    private static int Files(string root)
    {
        try
        {
            foreach (string name in WinhostNative.Files(root))
            {
                Console.WriteLine(name);
            }
            return 0;
        }
        catch (Win32Exception error)
        {
            Console.WriteLine("error " + error.NativeErrorCode);
            return 1;
        }
    }
}
"""

# A handle is a path and a position; what ends a listing depends on the folder's name. Names are ASCII.
KERNEL32 = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t WCHAR;
typedef uint32_t DWORD;
typedef struct { DWORD low, high; } FILETIME;
typedef struct {
    DWORD attributes;
    FILETIME created, accessed, written;
    DWORD size_high, size_low, reserved0, reserved1;
    WCHAR name[260], alternate[14];
} WIN32_FIND_DATAW;
_Static_assert(sizeof(WIN32_FIND_DATAW) == 592, "as documented");

typedef struct { const char **names; int at, last; } SEARCH;
static const char *whole[] = {".", "..", "dfolder", "fREADME.TXT", "jlink", 0};
static const char *inner[] = {".", "..", "fone.efi", "ftwo.efi", 0};
static const char *empty[] = {0};

static int next(SEARCH *search, WIN32_FIND_DATAW *found)
{
    const char *name = search->names[search->at];
    if (name == 0) {
        errno = search->last;
        return 0;
    }
    search->at++;
    memset(found, 0xee, sizeof *found);
    found->attributes = *name == 'd' || *name == '.' ? 0x10 : *name == 'j' ? 0x410 : 0x20;
    name += *name != '.';
    int length = 0;
    for (; name[length]; length++) found->name[length] = (WCHAR)name[length];
    found->name[length] = 0;
    found->alternate[0] = 0;
    return 1;
}

void *FindFirstFileW(const WCHAR *path, WIN32_FIND_DATAW *found)
{
    SEARCH *search = malloc(sizeof *search);
    int length = 0;
    while (path[length]) length++;
    int deep = length > 4;
    search->names = path[0] == 'E' ? empty : deep ? inner : whole;
    search->at = 0;
    search->last = path[0] == 'E' ? 2 : path[0] == 'R' && deep ? 23 : 18;
    if (path[0] == 'D') {
        errno = 21;
        return (void *)-1;
    }
    return next(search, found) ? search : (void *)-1;
}

int FindNextFileW(SEARCH *search, WIN32_FIND_DATAW *found) { return next(search, found); }
int FindClose(SEARCH *search) { free(search); return 1; }

/* The volume itself, V: or W:, to read; a file descriptor, which this .NET closes. FSCTL_DISMOUNT_VOLUME. */
intptr_t CreateFileW(const WCHAR *path, DWORD access, DWORD share, void *security, DWORD how, DWORD flags, void *like)
{
    int volume = (path[0] == 'V' || path[0] == 'W') && path[1] == ':' && path[2] == 0;
    if (!volume || access != 0x80000000 || share != 3 || security || how != 3 || flags || like) {
        errno = 5;
        return -1;
    }
    return open("/dev/null", O_RDONLY);
}

int DeviceIoControl(intptr_t device, DWORD code, void *in, DWORD in_size, void *out, DWORD out_size, DWORD *returned,
                    void *overlapped)
{
    errno = 1;
    *returned = 0;
    return device > 0 && code == 0x00090020 && !in && !in_size && !out && !out_size && !overlapped;
}

int GetVolumeInformationW(const WCHAR *root, WCHAR *name, DWORD name_size, DWORD *serial, DWORD *longest, DWORD *flags,
                          WCHAR *system, DWORD system_size)
{
    errno = 123;
    *flags = 0x00000006 | (root[0] == 'V' ? 0x00080000 : 0); /* FILE_READ_ONLY_VOLUME */
    return root[2] == '\\' && !name && !name_size && !serial && !longest && !system && !system_size;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The command that runs all of our C#, with the stand-in for kernel32 beside it."""
    folder = tmp_path_factory.mktemp("csharp")
    program = compiled_program(folder, [*embedded(), HARNESS])
    (folder / "kernel32.c").write_text(KERNEL32)
    run_in(folder, "cc", "-shared", "-fPIC", "-o", "kernel32.dll.so", "kernel32.c")
    return [linux_sdk() / "dotnet", "exec", program]


def test_every_struct_has_the_layout_that_windows_documents(compiled: list[str | Path], tmp_path: Path) -> None:
    told = {}
    for line in run_in(tmp_path, *compiled, "layouts").splitlines():
        name, size, offsets = line.split()
        told[name] = (int(size), tuple(map(int, offsets.split(","))))
    assert told == {name: (size, offsets) for name, (_, size, offsets) in LAYOUTS.items()}


@pytest.mark.parametrize(
    ("asked", "root", "said"),
    [
        ("files", "V:\\", ["README.TXT", "folder\\one.efi", "folder\\two.efi"]),
        ("files", "E:\\", []),  # an empty volume: ERROR_FILE_NOT_FOUND
        ("files", "R:\\", ["error 23"]),  # a folder that cannot be read to its end: ERROR_CRC
        ("files", "D:\\", ["error 21"]),  # ERROR_NOT_READY
        ("protected", "V:\\", ["True"]),
        ("protected", "W:\\", ["False"]),
        ("protected", "D:\\", ["error 5"]),
    ],
)
def test_it_acts_on_what_windows_answers(
    compiled: list[str | Path], tmp_path: Path, asked: str, root: str, said: list[str]
) -> None:
    done = subprocess.run(
        [*compiled, asked, root], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, env=quiet()
    )
    assert (done.stdout.splitlines(), done.returncode) == (said, int("error" in "".join(said))), done.stderr
