"""`own-layers`: a layer of its own for every place where one was assigned or listed twice."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn

from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup


@remedy("own-layers", "layers", rules=("shared-weight",))
def own_layers(setup: Setup) -> Setup | None:
    """Puts a copy in every further place of a layer, or of a weight, that the model holds twice.

    Both places begin with the same weights, and learn apart. An embedding and its decoder keep what they share.
    """
    names = list(_second_places(setup.problem.model))
    if not names:
        return None

    def change(model: nn.Module) -> nn.Module:
        for name in names:
            model.set_submodule(name, copy.deepcopy(model.get_submodule(name)))
        return model

    listed = ", ".join(f'"{own_name(name)}"' for name in names)
    lines = (
        f"import copy\nfor name in [{listed}]:\n    model.set_submodule(name, copy.deepcopy(model.get_submodule(name)))"
    )
    return setup.with_model(change, lines)


def _second_places(model: nn.Module) -> Iterator[str]:
    """Names of modules that are listed before under another name, or hold a weight that another module holds."""
    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    shared_on_purpose = {place for each in embeddings for place in _weights(each)}
    seen: set[nn.Module] = set()
    held: set[int] = set()
    below: tuple[str, ...] = ()
    for name, module in model.named_modules(remove_duplicate=False):
        own = _weights(module) - shared_on_purpose
        is_again = module in seen and any(p.dim() > 1 for p in module.parameters())
        if (is_again or own & held) and not name.startswith(below):
            below = (*below, f"{name}.")
            yield name
        seen.add(module)
        held |= own


def _weights(module: nn.Module) -> set[int]:
    """Where in memory the weights are that a module holds itself."""
    return {p.untyped_storage().data_ptr() for p in module.parameters(recurse=False) if p.dim() > 1}
