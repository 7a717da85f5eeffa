# key {folder: text}   state {python: text | null, wheels: [text] | null, source: text | null}
from __future__ import annotations

import configparser
import zipfile

from winhost.agent.linux_head import *

VENV_RECORD = "winhost.json"  # in the environment itself, written last
VENV_SECONDS = 1800
ABSENT_VENV: State = {"python": None, "wheels": None, "source": None}
# The folders of an environment for a wheel's data, by the name of the folder in the wheel.
DATA_FOLDERS = {"purelib": "", "platlib": "", "scripts": "bin", "data": "."}
PYTHON_SAYS = "import sys; print('{}.{}'.format(*sys.version_info))"
WHEEL = "/wheel.part"
SCRIPT = """#!{python} -sE
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({called}())
"""


@reads("PythonVenv", folder=text_check(r"/opt/winhost/python-[0-9a-f]{16}", "a folder as /opt/winhost/python-HASH"))
def python_venvs(key: Key | None) -> Found:
    for folder in [key["folder"]] if key else recorded_values("venvs", "folder"):
        yield {"folder": folder}, venv_state(folder)


def venv_state(folder: str) -> State:
    if find_record("venvs", folder) is None:
        return dict(ABSENT_VENV)
    if file_status(f"{folder}/{VENV_RECORD}") is None:
        return {**ABSENT_VENV, "wheels": []}
    found = json.loads(read_file(f"{folder}/{VENV_RECORD}"))
    return {name: found[name] for name in ABSENT_VENV}


@changes("PythonVenv", "python", "wheels", "source")
def change_python_venv(key: Key, desired: State, how: State) -> None:
    folder = key["folder"]
    ours = find_record("venvs", folder) is not None
    if "wheels" in desired and desired["wheels"] is None:
        for each in (folder + ".making", folder):
            with suppress(FileNotFoundError):
                shutil.rmtree(each)
        remove_empty_parents(folder)
        remove_record("venvs", folder)
        return
    wanted = {**venv_state(folder), **desired}
    wheels = [parse_wheel(line) for line in wanted["wheels"] or ()]
    source = check_text(r"(https?://[!-~]+|/[^\0]+)", wanted["source"], "where the wheels are")
    if not wheels or wanted["python"] is None:
        raise bad_request("It takes a version of Python, and wheels.")
    if file_status(folder) is not None and not ours:
        raise AgentFault("Winhost.NotOurs", "ResourceExists", f"{folder} is there, and winhost did not make it.")
    write_record("venvs", folder, {"folder": folder})  # before the folder exists
    with waiting("a Python environment is made"):
        make_venv(folder, {**wanted, "source": source}, wheels, seconds(how, VENV_SECONDS))


def parse_wheel(line: str) -> ListedFile:
    form = r"sha256:[0-9a-f]{64} [0-9]{1,15} [A-Za-z0-9._+/-]{1,400}\.whl"
    return parse_listed_file(line, form, "a wheel, as sha256:HASH SIZE PATH.whl")


def make_venv(folder: str, wanted: State, wheels: list[ListedFile], within: float) -> None:
    making, version = folder + ".making", run_checked("python3", "-I", "-c", PYTHON_SAYS).strip()
    if version != wanted["python"]:
        message = f"This machine has Python {version}, and the wheels are for {wanted['python']}."
        raise AgentFault("Winhost.OtherPython", "InvalidData", message, "python3")
    site = create_venv(making, version)
    whole, done = sum(each.size for each in wheels), 0
    for each in wheels:
        with open_wheel(making, each, wanted["source"]) as file, zipfile.ZipFile(file) as archive:
            unpack_wheel(archive, each.path, making, site)
            write_scripts(archive, making, folder)
        remove(making + WHEEL)
        done += each.size
        report_progress(f"a Python environment: {100 * done // max(whole, 1)} % of {whole / 1e6:.0f} MB of wheels")
    # Compile now: users who run the programs cannot write there. Files that cannot be compiled are not imported.
    run("python3", "-I", "-m", "compileall", "-q", "-j", "0", site, within=within)
    put(f"{making}/{VENV_RECORD}", json.dumps({name: wanted[name] for name in ABSENT_VENV}))
    shutil.rmtree(folder, ignore_errors=True)
    Path(making).rename(folder)


def create_venv(making: str, version: str) -> str:
    """Create an environment as `python3 -m venv` does, which some distributions package separately. Returns the folder
    of its packages.
    """
    shutil.rmtree(making, ignore_errors=True)
    site = f"{making}/lib/python{version}/site-packages"
    with open_folder(making, make=True):  # records which parent folders it creates
        pass
    Path(site).mkdir(parents=True)
    for name in ("python", "python3", "python" + version):
        put_link(f"{making}/bin/{name}", "/usr/bin/python3")
    put(f"{making}/pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n")
    return site


def open_wheel(making: str, wheel: ListedFile, source: str) -> ContextManager[BinaryIO]:
    """Download a wheel if necessary, check its hash, and open it."""
    path = f"{source}/{wheel.path}"
    if not source.startswith("/"):
        path = making + WHEEL
        check_free_space(making, wheel.size)
        for _ in fetch_file(f"{source}/{wheel.path}", path, wheel, None):
            pass
    elif not is_file(path, wheel):
        raise AgentFault("Winhost.NotThisFile", "InvalidData", f"{path} has another hash or size.")
    return open_file(path)


def unpack_wheel(archive: zipfile.ZipFile, path: str, making: str, site: str) -> None:
    members = [each for each in archive.infolist() if not each.is_dir()]
    check_free_space(making, sum(each.file_size for each in members))
    for each in members:
        to = member_path(each, path, making, site)
        if to is None:
            continue
        file = Path(to)
        if file.is_symlink():  # as bin/python3, which links to the machine's Python
            raise wrong_state(f"{path} holds {each.filename!r}, in whose place something else is.")
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # wheels of one family share files
            file.unlink()
        with archive.open(each) as here, file.open("xb") as there:
            shutil.copyfileobj(here, there, 1 << 20)
        file.chmod(0o755 if each.external_attr >> 16 & 0o111 else 0o644)


def member_path(member: zipfile.ZipInfo, path: str, making: str, site: str) -> str | None:
    """Return the path of a wheel's member in the environment; None for members that are not installed, as headers."""
    parts, kind = member.filename.split("/"), stat.S_IFMT(member.external_attr >> 16)
    if any(part in ("", ".", "..") or "\\" in part for part in parts) or kind not in (0, stat.S_IFREG):
        raise wrong_state(f"{path} holds {member.filename!r}, which leads elsewhere.")
    if not parts[0].endswith(".data") or len(parts) < 3:
        return "/".join([site, *parts])
    place = DATA_FOLDERS.get(parts[1])
    return None if place is None else "/".join([f"{making}/{place}" if place else site, *parts[2:]])


def write_scripts(archive: zipfile.ZipFile, making: str, folder: str) -> None:
    """Write the scripts of the console entry points, as pip does."""
    for entry in archive.namelist():
        if not re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", entry):
            continue
        found = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        found.optionxform = str  # type: ignore[assignment, method-assign]
        found.read_string(archive.read(entry).decode("utf-8"))
        for name, target in found.items("console_scripts") if found.has_section("console_scripts") else ():
            module, _, called = target.partition("[")[0].strip().partition(":")
            if all(re.fullmatch(r"[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*", each) for each in (name, module, called)):
                first = called.partition(".")[0]
                script = SCRIPT.format(python=f"{folder}/bin/python3", module=module, first=first, called=called)
                put(f"{making}/bin/{name}", script, 0o755)
