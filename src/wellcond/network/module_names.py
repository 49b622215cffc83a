"""Names of a model's modules, found by the module itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn


class ModuleNames(Mapping[nn.Module, str]):
    """The name of every module of a model. Identity counts, not equality: the hash of a metric changes.

    Args:
        model: The model.

    Example:
        >>> model = nn.Sequential(nn.ReLU())
        >>> ModuleNames(model)[model[0]]
        '0'
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[int, tuple[nn.Module, str]] = {
            id(module): (module, name) for name, module in model.named_modules()
        }

    def __getitem__(self, module: nn.Module) -> str:
        _, name = self._names[id(module)]
        return name

    def __iter__(self) -> Iterator[nn.Module]:
        return (module for module, _ in self._names.values())

    def __len__(self) -> int:
        return len(self._names)
