"""Whether anything of the user's has changed: a model with all its state, random numbers, and settings of torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks


def snapshot(model: nn.Module, *others: Tensor | torch.Generator) -> dict[str, Any]:
    """Everything that could have changed: values, and identity where that matters."""
    state: dict[str, Any] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        hooks = len(p._backward_hooks or ())
        state[f"parameter {name}"] = (id(p), p.data_ptr(), p._version, p.requires_grad, p.detach().clone(), hooks)
        state[f"grad {name}"] = None if p.grad is None else (id(p.grad), p.grad._version, p.grad.clone())
    for name, module in model.named_modules():
        state[f"module {name}"] = (id(module), type(module))
        state[f"attributes {name}"] = sorted(module.__dict__)
        state[f"hooks {name}"] = [
            len(hooks) for key, hooks in sorted(module.__dict__.items()) if key.endswith("_hooks")
        ]
        for key, value in [*vars(module).items(), *module._buffers.items()]:
            state[f"{name}.{key}"] = known(value)
    state["global hooks"] = [
        len(v) for k, v in sorted(vars(global_hooks).items()) if k.startswith("_global") and hasattr(v, "__len__")
    ]
    state["others"] = tuple(known(other) for other in others)
    state["rng"] = torch.get_rng_state()
    state["python rng"] = random.getstate()
    kind, keys, *rest = np.random.get_state()
    state["numpy rng"] = (kind, keys.tobytes(), *rest)
    sdp = torch.backends.cuda
    state["flags"] = (
        sdp.flash_sdp_enabled(), sdp.mem_efficient_sdp_enabled(), sdp.math_sdp_enabled(), sdp.cudnn_sdp_enabled(),
        torch.backends.mha.get_fastpath_enabled(), torch.backends.cudnn.enabled, torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(),
    )  # fmt: skip
    return state


def known(value: Any) -> Any:
    """What tells a change of an attribute: of a tensor or a list also whether it is another one."""
    if isinstance(value, Tensor):
        return id(value), value._version, value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, list):
        return id(value), [id(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else type(value)


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    assert [key for key, value in before.items() if not is_same(value, after[key])] == []


def is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(is_same, first, second))
    return first == second
