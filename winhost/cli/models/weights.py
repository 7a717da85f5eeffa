"""winhost weights: pack, unpack and verify models on the GPU of this machine."""

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
    _run_in_engine(python, output, "pack", model, folder)
    if replace:
        with TemporaryDirectory() as wheel_folder:
            try:
                for file in run_in_engine(python, write_wheel(Path(wheel_folder)), "replace", model, folder):
                    if human:
                        say(f"{file.file}: its packed file decodes to it, so the original is deleted")
            except WinhostError as error:
                raise _add_next_command(error, folder) from error.__cause__
        if human:
            show_command("To restore the originals:", "winhost", "weights", "unpack", str(folder), "-o", str(model))
    with os_errors():
        write_wheel(folder)
    if human:
        show_command("To serve it, in the engine's Python:", "pip", "install", str(folder / WHEEL), NVCOMP)
        show_command("Then start vLLM with:", "vllm", "serve", str(folder), "--load-format", "packed")
    return 0


def unpack(model: Path, python: str, output: Output) -> int:
    return _run_in_engine(python, output, "unpack", model, output.required_path)


def verify(model: Path, python: str, output: Output) -> int:
    return _run_in_engine(python, output, "verify", model)


def list_(model: Path, output: Output) -> int:
    _check_folder(model)
    _show(packed_files(model), model, output)
    return 0


def _add_next_command(error: WinhostError, model: Path) -> WinhostError:
    """Add a hint with the next command to an error, and return it."""
    if error.code in ("NotPacked", "NoWeights"):
        hint = next((text for part, text in _HINTS.items() if part in error.what), _DEFAULT_HINT)
        commands = {
            name: command_line(("winhost", "weights", name, str(model), *arguments))
            for name, arguments in (("pack", ("-o", "FOLDER")), ("verify", ()))
        }
        error.hint = hint.format(near=suggest_sibling(model), **commands)
    return error


_DEFAULT_HINT = "Copy or download this file again, or pack the original again: winhost weights pack MODEL -o FOLDER"
_HINTS = {
    "is no folder": "Check the path{near}",
    "has no *.safetensors": "Name the folder that has config.json and the *.safetensors of the model",
    "is not packed": "Pack it, on a machine with an NVIDIA GPU: {pack}",
    "is packed already": "Check it: {verify}",
    "needs a folder of its own": "Name another folder: -o FOLDER",
    "MiB free": "Free some space, or name a folder on another disk: -o FOLDER",
}


def _check_folder(folder: Path) -> None:
    """Raise UsageError (NoWeights) if a folder has no model."""
    try:
        weights(folder)
    except (BadContainer, OSError) as error:
        usage_error = UsageError("NoWeights", what=visible(str(error)), meaning="Nothing was changed.")
        raise _add_next_command(usage_error, folder) from error


def _run_in_engine(python: str, output: Output, command: str, *folders: Path) -> int:
    _check_folder(folders[0])  # first, so that a misspelt folder is reported before a missing Python
    with TemporaryDirectory() as wheel_folder:
        _show(run_in_engine(python, write_wheel(Path(wheel_folder)), command, *folders), folders[0], output)
    return 0


def _show(files: Iterable[WeightsFile], model: Path, output: Output) -> None:
    def results() -> Iterator[tuple[str, WeightsFile]]:
        try:
            yield from ((file.file, file) for file in files)
        except WinhostError as error:
            raise _add_next_command(error, model) from error.__cause__

    def show(file: WeightsFile) -> None:
        percent = round(100 * file.packed / file.original)
        say(f"{file.file}: {_format_size(file.original)}, packed {_format_size(file.packed)} ({percent} %)")

    show_results("weights", output.shape, results(), show)


def _format_size(size: int) -> str:
    return about(size) if size >= 10**9 else f"{size:,} bytes"
