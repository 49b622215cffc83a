"""Dense references by plain autograd on a copy of the model, in float64, and once more in the user's own dtype.

Nothing of wellcond is used. The copy says what is promised: dropout off, batch or running statistics by `batchnorm`,
no gradient hooks, no autocast around the model. The second copy tells how much rounding a right answer may have.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from stress.losses import Loss, rows
from stress.models import is_batchnorm, logits_of


def converted(batch: Any, dtype: torch.dtype, device: torch.device | str) -> Any:
    """Tensors on a device, floating ones in a dtype."""
    return tree_map(
        lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype) if isinstance(t, Tensor) else t, batch
    )


def call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def in_measured_state(model: nn.Module, batchnorm: str, dtype: torch.dtype) -> nn.Module:
    """A copy without dropout, whose norms use the statistics that were asked for."""
    model = copy.deepcopy(model).to(dtype).eval()
    for module in model.modules():
        if is_batchnorm(module):
            module.training = batchnorm == "batch"
    return model


class Reference:
    """Every quantity of one problem. Matrices are float64, on the CPU, whatever they were computed in."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: list[Any],
        batchnorm: str,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.model = in_measured_state(model, batchnorm, dtype)
        device = next(self.model.parameters()).device
        self.loss, self.dtype = loss, dtype
        self.batches = [converted(batch, dtype, device) for batch in batches]
        self.named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.params = list(self.named.values())
        self.size = sum(p.numel() for p in self.params)

    # one batch

    def _evaluated(self, batch: Any) -> tuple[Tensor, Tensor, float]:
        """Logits, mean loss and weight of a batch."""
        # kernels that have second derivatives, in every mode
        with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
            outputs = call(self.model, batch[0])
            loss = copy.deepcopy(self.loss.call)(outputs, batch[1])
        _, weights = self.loss.terms(logits_of(outputs).detach(), batch[1])
        return logits_of(outputs), loss, float(weights.sum())

    @cached_property
    def _mean_weight(self) -> float:
        """Of a term. The loss is Σ aℓ / Σ a; the terms that it is the mean of are aℓ, with a brought to mean one."""
        weights = []
        for batch in self.batches:
            with torch.no_grad():
                weights.append(self.loss.terms(logits_of(call(self.model, batch[0])), batch[1])[1])
        return float(torch.cat(weights).mean())

    def _mean(self, of_batch: Callable[[Any], tuple[Tensor, float]]) -> Tensor:
        """Σ_b w_b q_b / Σ_b w_b."""
        parts = [of_batch(batch) for batch in self.batches]
        return sum(weight * part for part, weight in parts) / sum(weight for _, weight in parts)  # type: ignore[return-value]

    def _rows(self, vector: Tensor) -> Tensor:
        """∂vector/∂θ, one backward pass for each entry: (entries, P)."""
        rows = []
        for entry in vector.reshape(-1):
            grads = torch.autograd.grad(entry, self.params, retain_graph=True, allow_unused=True)
            rows.append(flat(torch.zeros_like(p) if g is None else g for g, p in zip(grads, self.params, strict=True)))
        return torch.stack(rows).double().cpu()

    # quantities

    @cached_property
    def value(self) -> Tensor:
        return self._mean(lambda batch: (lambda _, loss, w: (loss.detach().double().cpu(), w))(*self._evaluated(batch)))

    @cached_property
    def gradient(self) -> Tensor:
        def of_batch(batch: Any) -> tuple[Tensor, float]:
            _, loss, weight = self._evaluated(batch)
            return self._rows(loss)[0], weight

        return self._mean(of_batch)

    @cached_property
    def hessian(self) -> Tensor:
        def of_batch(batch: Any) -> tuple[Tensor, float]:
            _, loss, weight = self._evaluated(batch)
            grads = torch.autograd.grad(loss, self.params, create_graph=True, allow_unused=True)
            blocks = []
            for g, p in zip(grads, self.params, strict=True):
                if g is None or not g.requires_grad:
                    blocks.append(torch.zeros(p.numel(), self.size, dtype=torch.float64))
                else:
                    blocks.append(self._rows(g))
            return torch.cat(blocks), weight

        matrix = self._mean(of_batch)
        return (matrix + matrix.T) / 2

    @cached_property
    def ggn(self) -> Tensor:
        def of_batch(batch: Any) -> tuple[Tensor, float]:
            outputs, _, weight = self._evaluated(batch)
            jacobian = self._rows(outputs)
            leaf = outputs.detach().requires_grad_()
            with torch.enable_grad():
                loss = copy.deepcopy(self.loss.call)(leaf, batch[1])
                (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
            # B J, column by column: in the user's dtype it rounds as it does for any product
            columns = [u.reshape(leaf.shape).to(leaf) for u in jacobian.T]
            curved = [torch.autograd.grad(gradient, leaf, u, retain_graph=True)[0].reshape(-1) for u in columns]
            return jacobian.T @ torch.stack(curved, 1).double().cpu(), weight

        return self._mean(of_batch)

    @cached_property
    def fisher_data(self) -> Tensor:
        """(1/terms) Σ ∇ℓ ∇ℓᵀ, one backward pass for each term."""

        def of_batch(batch: Any) -> tuple[Tensor, float]:
            outputs, *_ = self._evaluated(batch)
            losses, weights = self.loss.terms(outputs, batch[1])
            gradients = self._rows(losses) * (weights.double().cpu() / self._mean_weight).unsqueeze(1)
            return gradients.T @ gradients / len(losses), len(losses)

        return self._mean(of_batch)

    @cached_property
    def fisher_model(self) -> Tensor:
        """(1/terms) Σ Jᵀ C J, with C the covariance of ∇ℓ under the model's labels, in closed form."""

        def of_batch(batch: Any) -> tuple[Tensor, float]:
            outputs, _, weight = self._evaluated(batch)
            per = outputs[0].numel() if self.loss.likelihood != "categorical" else outputs.shape[-1]
            jacobian = self._rows(outputs).reshape(-1, per, self.size)
            o = outputs.detach().double().cpu()
            if self.loss.likelihood == "categorical":
                p = rows(o).softmax(-1)
                covariance = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
                counts = self._counts(batch[1], len(p))
                jacobian, covariance = jacobian[counts], covariance[counts]
            elif self.loss.likelihood == "gaussian":  # ℓ = s Σ (f − y)², variance 1/(2s), s = 1/outputs
                covariance = 2 / per * torch.eye(per, dtype=torch.float64).expand(len(jacobian), per, per)
            else:  # ℓ = s Σ bce, gradient s (σ − y)
                p = o.reshape(len(o), -1).sigmoid()
                covariance = torch.diag_embed(p * (1 - p)) / per**2
            return torch.einsum("tca,tcd,tdb->ab", jacobian, covariance, jacobian) / len(jacobian), weight

        return self._mean(of_batch)

    def _counts(self, targets: Tensor, terms: int) -> Tensor:
        counted = len(self.loss.terms(torch.zeros(*targets.shape, 100, device=targets.device), targets)[0])
        return (targets.reshape(-1) >= 0).cpu() if counted < terms else torch.ones(terms, dtype=torch.bool)

    def loss_at(self, step: Tensor) -> Tensor:
        """L(θ + step)."""
        with self._moved(step):
            return self._fresh("value")

    def gradient_at(self, step: Tensor) -> Tensor:
        with self._moved(step):
            return self._fresh("gradient")

    def _fresh(self, name: str) -> Tensor:
        return getattr(type(self), name).func(self)

    @contextlib.contextmanager
    def _moved(self, step: Tensor) -> Iterator[None]:
        before = [p.detach().clone() for p in self.params]
        parts = torch.split(step, [p.numel() for p in self.params])
        with torch.no_grad():
            for p, part in zip(self.params, parts, strict=True):
                p += part.view_as(p).to(p)
        try:
            yield
        finally:
            with torch.no_grad():
                for p, old in zip(self.params, before, strict=True):
                    p.copy_(old)

    # layers

    @cached_property
    def layers(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Σx and Σ∇h of every linear layer, convolution (by position) and embedding that a gradient passes."""
        modules = {n: m for n, m in self.model.named_modules() if is_readable(m)}
        seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in modules}
        gradients: dict[str, list[Tensor]] = {name: [] for name in modules}
        inputs: dict[str, list[Tensor]] = {name: [] for name in modules}
        for batch in self.batches:
            for calls in seen.values():
                calls.clear()

            def hook(name: str) -> Any:
                def on_call(_module: nn.Module, args: Any, output: Tensor) -> None:
                    if torch.is_grad_enabled():
                        seen[name].append((args[0].detach(), output))

                return on_call

            handles = [m.register_forward_hook(hook(name)) for name, m in modules.items()]
            _, loss, weight = self._evaluated(batch)
            for handle in handles:
                handle.remove()
            terms = weight / self._mean_weight
            for name, calls in seen.items():
                for x, h in calls:
                    inputs[name].append(rows_of(modules[name], x))
                    if h.requires_grad:
                        (g,) = torch.autograd.grad(loss, h, retain_graph=True, allow_unused=True)
                        if g is not None:
                            gradients[name].append(terms * rows_of(modules[name], g, of_output=True))
        return {name: (moment(inputs[name]), moment(gradients[name])) for name in modules if inputs[name]}


def is_readable(module: nn.Module) -> bool:
    """Layers whose rows the reference knows; a subclass with its own forward is another layer."""
    for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding):
        if isinstance(module, kind):
            return type(module).forward is kind.forward
    return False


def rows_of(module: nn.Module, t: Tensor, of_output: bool = False) -> Tensor:
    if isinstance(module, nn.Embedding) and not of_output:
        return F.one_hot(t.reshape(-1), module.num_embeddings).double().cpu()
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        t = t.movedim(1, -1)
    return t.reshape(-1, t.shape[-1]).double().cpu()


def moment(parts: list[Tensor]) -> Tensor | None:
    if not parts:
        return None
    everything = torch.cat(parts)
    return everything.T @ everything / len(everything)
