"""An engine of a recipe on its target: what the rules ask."""

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
from winhost.recipes.misspelt import one_slip
from winhost.recipes.read_commands import has_entrypoint
from winhost.recipes.recipe_model import Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.words import IMAGE, OtherEngine, other_engines
from winhost.resources.host import Gpu

_OTHERS = ("cpu", "rocm", "xpu", "tpu", "hpu", "gaudi", "ascend", "npu", "neuron", "openeuler")
_CHOSEN_OF_OTHERS = ("camb", "maca")  # devices of LMDeploy
_VARIABLES_OF_OTHERS = ("VLLM_CPU_", "HABANA_", "ASCEND_", "NEURON_", "ZE_AFFINITY_")
_DEVICES_OF_OTHERS = ("/dev/kfd", "/dev/dri", "/dev/davinci", "/dev/vfio", "/dev/accel", "/dev/neuron")
_TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)(?:$|[-_+])")
# What only a recipe for WSL has in it: its folders, its driver's files, the switch of vLLM for it.
_OF_WSL = re.compile(r"/usr/lib/wsl|(?<![\w.])/mnt/[a-z]/|VLLM_WSL2_|(?m:^[ \t]*wsl(?:\.exe)? )|\bwslc\b")


@dataclass(frozen=True)
class RecipeTarget:
    """The machine that the recipe is to run on, as far as it is known. path: as `assess` names it, None where nobody
    says; stated: the version of vLLM that the user states; facts: of the host; beside: texts of the other compose files
    in its folder, by their names.
    """

    path: str | None = None
    stated: Version | None = None
    on: Target | None = None
    beside: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...] | None:
        """The GPUs that CUDA runs on; None where they are not known."""
        on = self.on
        return if_known(lambda: on.gpus) if on else None

    @cached_property
    def models(self) -> tuple[GpuModel, ...] | None:
        """Its GPUs as the catalogue has them; None where it does not have all."""
        found = [catalogue_entry(gpu) for gpu in self.gpus or ()]
        return tuple(model for model in found if model) if found and all(found) else None

    @cached_property
    def driver(self) -> Version | None:
        on = self.on
        return if_known(lambda: on.driver) if on else None

    @cached_property
    def wsl_version(self) -> Version | None:
        on = self.on
        return if_known(lambda: on.wsl) if on and self.path == "wsl2" else None

    @cached_property
    def memory(self) -> Bytes | None:
        on = self.on
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
        image = self.engine.boxed(IMAGE)
        tag = (image.value or "").partition("@")[0].rpartition("/")[2].partition(":")[2] if image else ""
        found = _TAG.match(tag)
        if found and image and has_entrypoint(image.value or ""):
            return version_of(found[1])
        on = self.target.on
        return if_known(lambda: on.vllm) if on else None

    @cached_property
    def wsl(self) -> bool | None:
        """True in WSL, by the target or by marks that only recipes for WSL have; None where neither tells."""
        if self.target.path is not None:
            return self.target.path in ("wsl2", "wslc")
        return True if _OF_WSL.search(self.source.text) else None

    def elsewhere(self, name: str) -> str:
        """Name the source that may also set an option or variable which is missing here; empty where there is none."""
        if name.startswith("--"):
            return "what else its file or its shell gives it" if self.engine.more_options else ""
        return "what its file of variables has" if self.engine.more_variables else ""

    def uses(self, name: str, but: Setting) -> bool:
        """Tell whether the file has this name elsewhere, or another slip that would be corrected to it."""
        text = self.source.text.replace("_", "-") if name.startswith("-") else self.source.text
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
            return True
        others = [each for engine in self.recipe.engines for each in (*engine.options, *engine.variables)]
        return any(each.text.at != but.text.at and (each.name == name or one_slip(each.name, name)) for each in others)

    def reads(self, variable: str) -> bool:
        """Tell whether the recipe itself uses a variable, which is then no misspelt one of vLLM."""
        return re.search(rf"\$\{{?{re.escape(variable)}(?!\w)", self.source.text) is not None

    @cached_property
    def other(self) -> OtherEngine | None:
        """Its engine; None for vLLM."""
        return other_engines().get(self.engine.kind)

    @property
    def title(self) -> str:
        """Its engine, for people."""
        return self.other.title if self.other else "vLLM"

    @property
    def wants_newest(self) -> bool:
        """True where the tag of the image moves with each release."""
        found = self.engine.boxed(IMAGE)
        tag = (found.value or "").rpartition("/")[2].partition(":")[2] if found else "none"
        return not self.derived and tag.partition("-")[0] in ("", "latest", "nightly")

    @cached_property
    def derived(self) -> bool:
        """True where the image was built by others on top of vLLM's."""
        found = self.engine.boxed(IMAGE)
        return found is not None and not has_entrypoint(found.value or "")

    @property
    def port(self) -> str:
        """The port that the engine listens on."""
        found = self.engine.option("--port")
        for name in self.other.port_from if self.other else ():
            found = found or self.engine.variable(name)
        default = str(self.other.port or "") if self.other else "8000"
        return ((found.value if found else None) or default).rpartition(":")[2]

    @property
    def port_known(self) -> bool:
        """An image that others made may listen elsewhere by itself."""
        own = self.other is None and self.derived and self.engine.option("--port") is None
        return self.port.isdigit() and not own

    @cached_property
    def open_by(self) -> str | None:
        """Say how other machines reach the engine; None where they do not, or nothing tells."""
        engine = self.engine
        if not engine.known or engine.option("--uds") or not self.port:
            return None
        unset = self.other is not None and self.other.local and not engine.in_container
        host = self._host
        local = unset if host is None else host in ("127.0.0.1", "localhost", "::1", "[::1]")
        if not engine.in_container:
            return None if local else "it listens on every address of the machine"
        return None if local and self._host_network else self._open_container()

    @property
    def _host(self) -> str | None:
        """The address that it listens at, of `ADDRESS`, `ADDRESS:PORT` or a whole URL; None where nothing says it.

        `:PORT` alone has an empty one, which is every address.
        """
        told = [self.engine.option("--host"), *map(self.engine.variable, self.other.host_from if self.other else ())]
        value = next((each.value for each in told if each and each.value), None)
        if value is None:
            return None
        parts = re.fullmatch(r"(?:\w+://)?(\[[^\]]*\]|[^:/]*)(?::\d+)?/?", value)
        return parts[1] if parts else value

    @property
    def _host_network(self) -> bool:
        network = self.engine.boxed("--network")
        return network is not None and network.value == "host"

    def _open_container(self) -> str | None:
        service = self.engine.boxed("service")
        if service:
            return f"a service of type {service.value} publishes it"
        if self._host_network:
            return "the container is in the host's network"
        port = self.open_port
        return f"its port is published on every address ({port.value})" if port else None

    @property
    def open_port(self) -> Setting | None:
        """The first one that is published on every address."""
        local = ("127.", "[::1]", "localhost:")
        ports = self.engine.all_boxed("--publish")
        return next((port for port in ports if not (port.value or "").startswith(local)), None)

    @property
    def has_key(self) -> bool:
        names = ("--api-key", "--api-key-file", *(self.other.key_from if self.other else ("VLLM_API_KEY",)))
        return any(self.engine.option(name) or self.engine.variable(name) for name in names)

    @cached_property
    def on_others(self) -> bool:
        """It is for a processor, or for what NVIDIA does not make."""
        found, chosen = self.engine.boxed(IMAGE), self.engine.option("--device")
        built = self.engine.places.get("built")
        image = " ".join([found.value or "" if found else "", built.value if built else ""]).casefold()
        devices = [device.value or "" for device in self.engine.all_boxed("--device")]
        return (
            any(word in image for word in _OTHERS)
            or any(each.startswith(_DEVICES_OF_OTHERS) for each in devices)
            or any(each.name.startswith(_VARIABLES_OF_OTHERS) for each in self.engine.variables)
            or (chosen is not None and chosen.value in (*_OTHERS, *_CHOSEN_OF_OTHERS))
        )

    @property
    def is_pod(self) -> bool:
        return self.engine.form in (RecipeForm.KUBERNETES, RecipeForm.HELM)
