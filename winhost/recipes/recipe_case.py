"""An engine of a recipe and the machine that it runs on: the subject of rules."""

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from packaging.version import Version

from winhost.compat.target import Target
from winhost.core.answers import if_known
from winhost.core.dataclass import dataclass
from winhost.findings.condition import version_of
from winhost.hardware.gpus import GpuModel
from winhost.hardware.host_gpus import catalogue_entry
from winhost.model.units import Bytes
from winhost.recipes.arguments import IMAGE, OtherEngine, other_engines
from winhost.recipes.read_commands import has_entrypoint
from winhost.recipes.recipe_model import Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.spelling import is_one_edit
from winhost.resources.host import Gpu

_OTHER_PLATFORMS = ("cpu", "rocm", "xpu", "tpu", "hpu", "gaudi", "ascend", "npu", "neuron", "openeuler")
_LMDEPLOY_DEVICES = ("camb", "maca")  # devices of LMDeploy
_OTHER_VARIABLES = ("VLLM_CPU_", "HABANA_", "ASCEND_", "NEURON_", "ZE_AFFINITY_")
_OTHER_DEVICES = ("/dev/kfd", "/dev/dri", "/dev/davinci", "/dev/vfio", "/dev/accel", "/dev/neuron")
_TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)(?:$|[-_+])")
# Text that only a recipe for WSL has: folders, files of its driver, vLLM's switch for WSL.
_WSL_MARKS = re.compile(r"/usr/lib/wsl|(?<![\w.])/mnt/[a-z]/|VLLM_WSL2_|(?m:^[ \t]*wsl(?:\.exe)? )|\bwslc\b")


@dataclass(frozen=True)
class RecipeTarget:
    """The machine that the recipe is to run on, as far as it is known. path: as `assess` names it, None if not
    specified; stated: the version of vLLM that the user states; machine: None without facts of the host; other_files:
    the texts of the other compose files in its folder, by their names.
    """

    path: str | None = None
    stated: Version | None = None
    machine: Target | None = None
    other_files: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...] | None:
        """The GPUs that CUDA runs on; None where they are not known."""
        on = self.machine
        return if_known(lambda: on.gpus) if on else None

    @cached_property
    def models(self) -> tuple[GpuModel, ...] | None:
        """The GPUs in the catalogue; None if the catalogue does not have all of them."""
        found = [catalogue_entry(gpu) for gpu in self.gpus or ()]
        return tuple(model for model in found if model) if found and all(found) else None

    @cached_property
    def driver(self) -> Version | None:
        on = self.machine
        return if_known(lambda: on.driver) if on else None

    @cached_property
    def wsl_version(self) -> Version | None:
        on = self.machine
        return if_known(lambda: on.wsl) if on and self.path == "wsl2" else None

    @cached_property
    def memory(self) -> Bytes | None:
        on = self.machine
        return if_known(lambda: on.memory) if on else None


@dataclass(frozen=True)
class RecipeCase:
    """One engine, the recipe that it is in, and the target."""

    engine: RecipeEngine
    recipe: Recipe
    target: RecipeTarget
    source: SourceFile

    @cached_property
    def version(self) -> Version | None:
        """The version of vLLM: the stated one, else the tag of vLLM's own image. The tag of a derived image may mean
        something else.
        """
        if self.target.stated:
            return self.target.stated
        image = self.engine.container_setting(IMAGE)
        tag = (image.value or "").partition("@")[0].rpartition("/")[2].partition(":")[2] if image else ""
        found = _TAG.match(tag)
        if found and image and has_entrypoint(image.value or ""):
            return version_of(found[1])
        on = self.target.machine
        return if_known(lambda: on.vllm) if on else None

    @cached_property
    def wsl(self) -> bool | None:
        """True in WSL, by the target or by text that only recipes for WSL have; None if neither tells."""
        if self.target.path is not None:
            return self.target.path in ("wsl2", "wslc")
        return True if _WSL_MARKS.search(self.source.text) else None

    def other_source(self, name: str) -> str:
        """Name another source that may set a missing option or variable; empty if there is none."""
        if name.startswith("--"):
            return "what else its file or its shell gives it" if self.engine.has_other_options else ""
        return "what its file of variables has" if self.engine.has_other_variables else ""

    def is_name_used(self, name: str, but: Setting) -> bool:
        """Tell whether the file has this name elsewhere, or another misspelling that would be corrected to it."""
        text = self.source.text.replace("_", "-") if name.startswith("-") else self.source.text
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
            return True
        others = [each for engine in self.recipe.engines for each in (*engine.options, *engine.variables)]
        return any(
            each.text.offsets != but.text.offsets and (each.name == name or is_one_edit(each.name, name))
            for each in others
        )

    def is_variable_used(self, variable: str) -> bool:
        """Tell whether the recipe itself uses a variable, so that it is no misspelled variable of vLLM."""
        return re.search(rf"\$\{{?{re.escape(variable)}(?!\w)", self.source.text) is not None

    @cached_property
    def other_engine(self) -> OtherEngine | None:
        """The engine if it is not vLLM; None for vLLM."""
        return other_engines().get(self.engine.kind)

    @property
    def title(self) -> str:
        """The name of the engine, for people."""
        return self.other_engine.title if self.other_engine else "vLLM"

    @property
    def follows_newest(self) -> bool:
        """True if the tag of the image changes its meaning with each release."""
        found = self.engine.container_setting(IMAGE)
        tag = (found.value or "").rpartition("/")[2].partition(":")[2] if found else "none"
        return not self.has_derived_image and tag.partition("-")[0] in ("", "latest", "nightly")

    @cached_property
    def has_derived_image(self) -> bool:
        """True if the image was built by others on top of vLLM's."""
        found = self.engine.container_setting(IMAGE)
        return found is not None and not has_entrypoint(found.value or "")

    @property
    def port(self) -> str:
        """The port that the engine listens on."""
        found = self.engine.option("--port")
        for name in self.other_engine.port_from if self.other_engine else ():
            found = found or self.engine.variable(name)
        default = str(self.other_engine.port or "") if self.other_engine else "8000"
        return ((found.value if found else None) or default).rpartition(":")[2]

    @property
    def is_port_known(self) -> bool:
        """True if the port is certain: an image that others built may use another default."""
        own = self.other_engine is None and self.has_derived_image and self.engine.option("--port") is None
        return self.port.isdigit() and not own

    @cached_property
    def exposure(self) -> str | None:
        """The way in which other machines reach the engine; None if they do not, or that is not known."""
        engine = self.engine
        if not engine.has_command or engine.option("--uds") or not self.port:
            return None
        unset = self.other_engine is not None and self.other_engine.local and not engine.in_container
        host = self._host
        local = unset if host is None else host in ("127.0.0.1", "localhost", "::1", "[::1]")
        if not engine.in_container:
            return None if local else "it listens on every address of the machine"
        return None if local and self._host_network else self._open_container()

    @property
    def _host(self) -> str | None:
        """The address that the engine listens on, from `ADDRESS`, `ADDRESS:PORT` or a URL; None if it is not set.

        `:PORT` has an empty address, which means every address.
        """
        settings = [
            self.engine.option("--host"),
            *map(self.engine.variable, self.other_engine.host_from if self.other_engine else ()),
        ]
        value = next((each.value for each in settings if each and each.value), None)
        if value is None:
            return None
        parts = re.fullmatch(r"(?:\w+://)?(\[[^\]]*\]|[^:/]*)(?::\d+)?/?", value)
        return parts[1] if parts else value

    @property
    def _host_network(self) -> bool:
        network = self.engine.container_setting("--network")
        return network is not None and network.value == "host"

    def _open_container(self) -> str | None:
        service = self.engine.container_setting("service")
        if service:
            return f"a service of type {service.value} publishes it"
        if self._host_network:
            return "the container is in the host's network"
        port = self.open_port
        return f"its port is published on every address ({port.value})" if port else None

    @property
    def open_port(self) -> Setting | None:
        """The first port that is published on every address."""
        local = ("127.", "[::1]", "localhost:")
        ports = self.engine.container_settings("--publish")
        return next((port for port in ports if not (port.value or "").startswith(local)), None)

    @property
    def has_key(self) -> bool:
        names = (
            "--api-key",
            "--api-key-file",
            *(self.other_engine.key_from if self.other_engine else ("VLLM_API_KEY",)),
        )
        return any(self.engine.option(name) or self.engine.variable(name) for name in names)

    @cached_property
    def on_other_platform(self) -> bool:
        """True if the engine runs on a processor, or on accelerators of another maker."""
        found, chosen = self.engine.container_setting(IMAGE), self.engine.option("--device")
        built = self.engine.positions.get("built")
        image = " ".join([found.value or "" if found else "", built.value if built else ""]).casefold()
        devices = [device.value or "" for device in self.engine.container_settings("--device")]
        return (
            any(word in image for word in _OTHER_PLATFORMS)
            or any(each.startswith(_OTHER_DEVICES) for each in devices)
            or any(each.name.startswith(_OTHER_VARIABLES) for each in self.engine.variables)
            or (chosen is not None and chosen.value in (*_OTHER_PLATFORMS, *_LMDEPLOY_DEVICES))
        )

    @property
    def is_pod(self) -> bool:
        return self.engine.form in (RecipeForm.KUBERNETES, RecipeForm.HELM)
