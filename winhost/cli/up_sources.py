"""Ask servers on the internet while `winhost up` plans. Where one cannot be reached, all are tried, so that one message
lists what has to be named instead.
"""

from collections.abc import Callable, Iterator, Sequence

from winhost.cli.stack_options import StackWords
from winhost.cli.stack_parts import IMAGE, pinned_image
from winhost.core.dataclass import dataclass
from winhost.hub.catalogue import catalogue
from winhost.hub.hub_repository import HUB, HubRepository, NotListed
from winhost.images.cloud_images import NAME, release_named
from winhost.images.image_registry import ImageName
from winhost.model.errors import WinhostError, visible
from winhost.model.path import path_of
from winhost.model.workload import is_folder
from winhost.paths.vm_image import VmImage
from winhost.serving.vllm_options import seen_versions

_OF_SERVERS = ("NotListed", "NotResolved", "DownloadFailed")


@dataclass(frozen=True)
class Lacking:
    """what: cannot be had; instead: how it is named otherwise; words: the options for that."""

    what: str
    instead: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Sources:
    """settings: of the path, as --set has them; model: its id or folder."""

    host: str
    path: str
    model: str | None
    words: StackWords
    settings: Sequence[str]

    def told(self, error: WinhostError, command: Callable[[Sequence[str]], str]) -> WinhostError:
        """The error, or, where it is of a server that cannot be reached, one that lists all such servers. command: as
        it is typed with further options.
        """
        away = error.code in _OF_SERVERS and not (isinstance(error, NotListed) and error.reached)
        lacking = [*self.lacking()] if away else []
        if not lacking:
            return error
        listed = [f"{number}. {each.what}. {each.instead}" for number, each in enumerate(lacking, 1)]
        servers = "a server" if len(lacking) == 1 else f"{len(lacking)} servers"
        proxy = "Nothing was changed. Where a proxy leads to the internet, set HTTPS_PROXY. Otherwise:"
        return WinhostError(
            "NoInternet",
            what=f"this computer does not reach {servers} that winhost up needs",
            meaning="\n".join((proxy, *listed)),
            hint=f"All of it: {command([word for each in lacking for word in each.words])}",
            host=self.host,
        )

    def lacking(self) -> Iterator[Lacking]:
        yield from self._hub()
        yield from self._registry()
        yield from self._disk()

    def _hub(self) -> Iterator[Lacking]:
        if self.model is not None and is_folder(self.model):
            return
        hub = (self.words.hub or HUB).rstrip("/")
        try:
            HubRepository(self.model or catalogue().entries[0].id, "main", hub, None).about()
        except NotListed as error:
            if error.reached:
                return
            folder = "" if path_of(self.path) == "dda" else ", or a folder with the model in place of its name"
            what = f"{visible(self.model or 'A model')}: {visible(hub)} cannot be reached"
            yield Lacking(what, f"Name another hub that has it: --hub URL{folder}", ("--hub", "URL"))

    def _registry(self) -> Iterator[Lacking]:
        words = self.words
        if words.engine_archive or words.engine_program or words.engine_lock or words.digest:
            return
        name = ImageName.parse(words.engine_image or f"{IMAGE}:v{seen_versions()[-1]}")
        try:
            pinned_image(name)
        except WinhostError as error:
            instead = (
                "Name an image by its digest, in a registry that the Linux reaches: --engine-image and --digest, or a "
                "file of docker save: --engine-archive FILE"
            )
            yield Lacking(error.what, instead, ("--engine-image", str(name), "--digest", "sha256:DIGEST"))

    def _disk(self) -> Iterator[Lacking]:
        said = dict(each.partition("=")[::2] for each in self.settings)
        image = VmImage(
            name=said.get("new_vm.image.name", VmImage().name), mirror=said.get("new_vm.image.mirror", VmImage().mirror)
        )
        if path_of(self.path) != "dda" or "new_vm.vhdx.source" in said or not NAME.fullmatch(image.name):
            return
        try:
            release_named(image.name, image.mirror)
        except WinhostError as error:
            instead = "Name a VHDX with a Linux that starts as a Generation 2 VM: --set new_vm.vhdx.source=./FILE.vhdx"
            yield Lacking(error.what, instead, ("--set", "new_vm.vhdx.source=./FILE.vhdx"))
