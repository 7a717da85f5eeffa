"""winhost weights: packed models, made and checked on the GPU of this machine."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from winhost.cli.envelope import show_results
from winhost.cli.errors import os_errors
from winhost.cli.options import Output
from winhost.cli.output import say, show_command
from winhost.cli.shells import command_line
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import suggest_sibling
from winhost.model.units import about
from winhost.serving.packed_weights import NVCOMP, WHEEL, WeightsFile, packed_files, run_in_engine, write_wheel
from winhost_weights.container import BadContainer, weights


def pack(model: Path, python: str, replace: bool, output: Output) -> int:
    folder, human = output.required_path, output.shape == "table"
    _run(python, output, "pack", model, folder)
    if replace:
        with TemporaryDirectory() as beside:
            try:
                for file in run_in_engine(python, write_wheel(Path(beside)), "replace", model, folder):
                    if human:
                        say(f"{file.file}: its packed file decodes to it, so the original is deleted")
            except WinhostError as error:
                raise _with_next(error, folder) from error.__cause__
        if human:
            show_command("To have the originals again:", "winhost", "weights", "unpack", str(folder), "-o", str(model))
    with os_errors():
        write_wheel(folder)
    if human:
        show_command("To serve it, in the engine's Python:", "pip", "install", str(folder / WHEEL), NVCOMP)
        show_command("Then start vLLM with:", "vllm", "serve", str(folder), "--load-format", "packed")
    return 0


def unpack(model: Path, python: str, output: Output) -> int:
    return _run(python, output, "unpack", model, output.required_path)


def verify(model: Path, python: str, output: Output) -> int:
    return _run(python, output, "verify", model)


def list_(model: Path, output: Output) -> int:
    _check_folder(model)
    _show(packed_files(model), model, output)
    return 0


def _with_next(error: WinhostError, model: Path) -> WinhostError:
    """Add the next command to an error, by its cause."""
    if error.code in ("NotPacked", "NoWeights"):
        advice = next((text for part, text in _NEXT.items() if part in error.what), _AGAIN)
        commands = {
            name: command_line(("winhost", "weights", name, str(model), *more))
            for name, more in (("pack", ("-o", "FOLDER")), ("verify", ()))
        }
        error.hint = advice.format(near=suggest_sibling(model), **commands)
    return error


_AGAIN = "Copy or download this file again, or pack the original again: winhost weights pack MODEL -o FOLDER"
_NEXT = {
    "is no folder": "Check the path{near}",
    "has no *.safetensors": "Name the folder that has config.json and the *.safetensors of the model",
    "is not packed": "Pack it, on a machine with an NVIDIA GPU: {pack}",
    "is packed already": "Check it: {verify}",
    "needs a folder of its own": "Name another folder: -o FOLDER",
    "MiB free": "Free some, or name a folder on another disk: -o FOLDER",
}


def _check_folder(folder: Path) -> None:
    """Raises UsageError (NoWeights) if a folder has no model."""
    try:
        weights(folder)
    except (BadContainer, OSError) as error:
        unfit = UsageError("NoWeights", what=visible(str(error)), meaning="Nothing was changed.")
        raise _with_next(unfit, folder) from error


def _run(python: str, output: Output, command: str, *folders: Path) -> int:
    _check_folder(folders[0])  # before a Python is looked for: a folder that is misspelt needs none
    with TemporaryDirectory() as beside:
        _show(run_in_engine(python, write_wheel(Path(beside)), command, *folders), folders[0], output)
    return 0


def _show(files: Iterable[WeightsFile], model: Path, output: Output) -> None:
    def results() -> Iterator[tuple[str, WeightsFile]]:
        try:
            yield from ((file.file, file) for file in files)
        except WinhostError as error:
            raise _with_next(error, model) from error.__cause__

    def show(file: WeightsFile) -> None:
        percent = round(100 * file.packed / file.original)
        say(f"{file.file}: {_size(file.original)}, packed {_size(file.packed)} ({percent} %)")

    show_results("weights", output.shape, results(), show)


def _size(size: int) -> str:
    return about(size) if size >= 10**9 else f"{size:,} bytes"
