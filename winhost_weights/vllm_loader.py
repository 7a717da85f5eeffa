"""`vllm serve FOLDER --load-format packed`: the entry point `vllm.general_plugins` calls `register` in every process.

Options of `--model-loader-extra-config`: keep (leave the files in the page cache; if they fit there, unless said) and
threads.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMAT = "packed"
OPTIONS = {"keep", "threads"}


def register() -> None:
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class PackedLoader(BaseModelLoader):  # type: ignore[misc]
        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)
            self._options = dict(load_config.model_loader_extra_config or {})
            if unknown := self._options.keys() - OPTIONS:
                raise ValueError(f"load format {FORMAT} has no option {', '.join(sorted(unknown))}")

        def download_model(self, model_config: Any) -> None:
            self._files(model_config)

        def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            from vllm.distributed import get_tensor_model_parallel_world_size

            from winhost_weights.loading import fit_in_memory, tensors

            files = self._files(model_config)
            # Several GPUs each read all of it: once from storage, then from the page cache.
            keep = get_tensor_model_parallel_world_size() > 1 or fit_in_memory(files)
            return tensors(files, **{"keep": keep, **self._options})

        def load_weights(self, model: Any, model_config: Any) -> None:
            model.load_weights(self.get_all_weights(model_config, model))

        def _files(self, model_config: Any) -> list[Path]:
            files = sorted(Path(model_config.model).glob("*.safetensors"))
            if not files:
                raise ValueError(
                    f"load format {FORMAT} takes a folder with *.safetensors, and {model_config.model} is none"
                )
            return files

    register_model_loader(FORMAT)(PackedLoader)
