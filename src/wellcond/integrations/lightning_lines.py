"""Lines of remedies for a script with a Lightning trainer, where the optimizer is made by `configure_optimizers`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from wellcond.training.script_names import name_in_script

OPTIMIZER = re.compile(r"\boptimizer\b")


def arguments_of_fit(trainer: Any, module: Any, train_dataloaders: Any = None, datamodule: Any = None) -> str:
    """The arguments of `trainer.fit` with the trainer before them, in the names of the script."""
    names = [name_in_script(trainer, "trainer"), name_in_script(module, "module")]
    names += [] if train_dataloaders is None else [name_in_script(train_dataloaders, "loader")]
    names += [] if datamodule is None else [f"datamodule={name_in_script(datamodule, 'datamodule')}"]
    return ", ".join(names)


def lightning_lines(code: str, module: str, arguments: str, configured: Any) -> str:
    """Lines to write before `trainer.fit`: what changes the optimizer is done where the module makes it.

    Args:
        code: The lines, for a script that has the optimizer.
        module: The name of the module.
        arguments: As in `arguments_of_fit`.
        configured: What `configure_optimizers` of the module returns.

    Example:
        >>> print(lightning_lines('optimizer.param_groups[0]["lr"] = 0.1', "module", "trainer, module", None))
        def configure_optimizers(own=module.configure_optimizers):
            optimizer = own()
            optimizer.param_groups[0]["lr"] = 0.1
            return optimizer
        module.configure_optimizers = configure_optimizers
    """
    code = re.sub(r"wc\.suggest_lr\(.*, optimizer\)", f"wc.integrations.lightning.suggest_lr({arguments})", code)
    lines = code.splitlines()
    first = next((place for place, line in enumerate(lines) if OPTIMIZER.search(line)), None)
    if first is None:
        return code
    while first and lines[first].startswith((" ", ")")):  # inside of a loop or of brackets
        first -= 1
    begin, own, end = [], "", "return optimizer"
    if not any(line.startswith("optimizer = ") for line in lines):
        own = f"own={module}.configure_optimizers"
        begin = ["optimizer = own()"]
        if place := _place_in(configured):
            begin, end = ["configured = own()", f"optimizer = configured{place}"], "return configured"
    head, body = f"def configure_optimizers({own}):", [*begin, *lines[first:], end]
    last = f"{module}.configure_optimizers = configure_optimizers"
    return "\n".join([*lines[:first], head, textwrap.indent("\n".join(body), "    "), last])


def _place_in(configured: Any) -> str:
    """Where the first optimizer is in what `configure_optimizers` returns; "" if it is the optimizer.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> [_place_in(form) for form in (sgd, {"optimizer": sgd}, ([sgd], []), [sgd])]
        ['', '["optimizer"]', '[0][0]', '[0]']
    """
    if isinstance(configured, Mapping):
        return '["optimizer"]'
    if configured is None or isinstance(configured, Optimizer):
        return ""
    return f"[0]{_place_in(configured[0])}"
