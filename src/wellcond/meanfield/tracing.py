"""The calls of a module's forward pass, in their order, with the shapes of what they give."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from wellcond.meanfield.module_rules import MODULES
from wellcond.meanfield.signals import NotUnderstood
from wellcond.network.isolation import isolated


def traced(module: nn.Module, examples: Tensor | None) -> fx.Graph:
    """The graph of calls. examples: a small batch, for shapes; without, vectors that the first linear layer takes."""
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # whatever someone's forward raises when it is given no numbers
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        why = f"what its forward does depends on its data, or cannot be traced ({cause})"
        raise NotUnderstood(type(module).__name__, "not a fixed sequence of calls", why) from error
    if examples is not None:
        try:
            _note_shapes(module, graph, examples)
        except Exception as error:
            shape = tuple(examples.shape[1:])
            cause = re.split(r"\s*(?:While executing|Original traceback)", str(error))[0]
            raise ValueError(f"inputs: the network cannot be run on examples of shape {shape}: {cause}") from error
        return graph
    layers = (module.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module")
    first = next((layer for layer in layers if isinstance(layer, nn.Linear)), None)
    if first is not None:
        with contextlib.suppress(Exception):  # the network may want another shape; then none is known
            _note_shapes(module, graph, torch.zeros(2, first.in_features))
    return graph


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, tuple(MODULES)) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return super().call_module(m, m.forward, args, kwargs)  # past hooks, which would see no numbers


class _Shapes(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"] = getattr(result, "shape", None)
        return result


def _note_shapes(module: nn.Module, graph: fx.Graph, examples: Tensor) -> None:
    parameter = next(module.parameters(), examples)
    called = [module.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"]
    takes_numbers = not (called and isinstance(called[0], nn.Embedding | nn.EmbeddingBag))
    if takes_numbers and not examples.is_complex():
        examples = examples.to(parameter.dtype)
    with isolated(module, parameter.device, batch_statistics=False, dropout=False), torch.no_grad():
        _Shapes(module, graph=graph).run(examples.to(parameter.device))
