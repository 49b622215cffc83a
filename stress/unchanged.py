"""What of the user's a measurement may not change: a snapshot of everything, deep enough for containers of tensors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks


def snapshot(model: nn.Module, loss: Any, batches: Any) -> dict[str, Any]:
    """By name, something that compares equal only if nothing changed."""
    result: dict[str, Any] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        result[f"parameter {name}"] = (id(p), p.requires_grad, digest(p), len(p._backward_hooks or ()))
        result[f"grad of {name}"] = None if p.grad is None else (id(p.grad), digest(p.grad))
    for owner, root in (("model", model), ("loss", loss)):
        for name, module in root.named_modules() if isinstance(root, nn.Module) else []:
            for key, value in vars(module).items():
                if key not in ("_parameters", "_modules"):
                    result[f"{owner} {name}.{key}"] = digest(value)
    result["batches"] = digest(batches)
    result["global hooks"] = [
        len(v) for k, v in sorted(vars(global_hooks).items()) if k.startswith("_global") and hasattr(v, "__len__")
    ]
    result["torch's generator"] = digest(torch.get_rng_state())
    result["python's generator"] = random.getstate()
    result["numpy's generator"] = tuple(map(str, np.random.get_state()))
    if torch.cuda.is_available():
        result["cuda generator"] = digest(torch.cuda.get_rng_state())
    result |= flags()
    return result


def flags() -> dict[str, Any]:
    """Settings of torch, by name."""
    cuda = torch.backends.cuda
    return {
        "flash attention": cuda.flash_sdp_enabled(),
        "memory-efficient attention": cuda.mem_efficient_sdp_enabled(),
        "math attention": cuda.math_sdp_enabled(),
        "cudnn attention": cuda.cudnn_sdp_enabled(),
        "attention fast path": torch.backends.mha.get_fastpath_enabled(),
        "cudnn": torch.backends.cudnn.enabled,
        "mkldnn": torch.backends.mkldnn.enabled,
        "TF32": (cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
    }


def digest(value: Any) -> Any:
    """Something that compares equal only for equal contents, however they are nested."""
    if isinstance(value, Tensor):
        if value.is_meta:
            return "meta", tuple(value.shape)
        # bytes, so that NaN equals itself and no arithmetic of the user's state is used
        data = value.detach().cpu().contiguous().reshape(-1)
        raw = data.view(torch.uint8).numpy().tobytes() if data.numel() else b""
        return tuple(value.shape), str(value.dtype), value.requires_grad, raw
    if isinstance(value, dict):
        return [(digest(k), digest(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        return type(value).__name__, [digest(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not as it was."""
    names = [name for name in before if name not in after or before[name] != after[name]]
    return [*names, *(name for name in after if name not in before)]
