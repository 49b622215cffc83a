"""`Diagnosis`: everything measured about one problem, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wellcond.diagnosis.magnitudes import Gradients
from wellcond.diagnosis.step_limit import StepLimit
from wellcond.layerwise.conditioning import ConditioningTable
from wellcond.layerwise.neurons import NeuronTable
from wellcond.report.text import plain_text
from wellcond.results import Row
from wellcond.spectral.eigenvalues import Eigenvalues
from wellcond.spectral.trace import Trace

WHOLE_MODEL = "(model)"
"""The name, in rows, of a model that is itself a layer: there an empty name stands for the network."""


@dataclass(frozen=True)
class Diagnosis:
    """What was measured. A part is None if it failed, and `failed` says why, by the name of the part.

    conditioning, neurons: by layer. hessian: both ends of its spectrum. trace: of the Hessian.
    gradients: the loss and ‖∂L/∂θ‖ by layer. weights: ‖θ‖ by layer. step: the largest stable learning rate.
    about: what the numbers hold for, in words.
    """

    parameters: int
    conditioning: ConditioningTable | None
    neurons: NeuronTable | None
    hessian: Eigenvalues | None
    trace: Trace | None
    gradients: Gradients | None
    weights: dict[str, float]
    step: StepLimit
    about: dict[str, str]
    failed: dict[str, str]

    @property
    def not_covered(self) -> dict[str, str]:
        """Layers without conditioning numbers, and why."""
        return {} if self.conditioning is None else self.conditioning.not_covered

    def rows(self) -> list[Row]:
        network = [Row(None, "", "parameters", float(self.parameters), "parameters"), *self._hessian_rows()]
        network += self.step.rows()
        network += self._convolution_rows()
        layers = [row for part in (self.conditioning, self.neurons) if part is not None for row in part.rows()]
        layers += self._dimension_rows()
        if self.gradients is not None:
            network += self.gradients.network_rows()
            layers += self.gradients.layer_rows()
        layers += [Row(None, layer, "weight_norm", norm, "") for layer, norm in self.weights.items()]
        return network + [row if row.layer else row._replace(layer=WHOLE_MODEL) for row in layers]

    def _hessian_rows(self) -> list[Row]:
        named: dict[str, float] = {}
        if self.hessian is not None:
            for end, i in (("min", 0), ("max", -1)):
                named[f"lambda_{end}(H)"] = float(self.hessian.values[i])
                named[f"lambda_{end}_error(H)"] = float(self.hessian.errors[i])
        if self.trace is not None:
            named |= {"trace(H)": self.trace.value, "trace_error(H)": self.trace.error}
        return [Row(None, "", quantity, value, "") for quantity, value in named.items()]

    def _convolution_rows(self) -> list[Row]:
        """How many layers have their positions counted as examples: beside others, each position's share is small."""
        if self.conditioning is None or self.conditioning.form != "position":
            return []
        count = sum(layer.kind.startswith("Conv") for layer in self.conditioning.values())
        return [Row(None, "", "convolutions", float(count), "layers")] if count else []

    def _dimension_rows(self) -> list[Row]:
        """The size of each matrix, beside which its rank is read."""
        return [
            Row(None, layer.name, f"dimension({matrix})", float(len(part.values)), "")
            for layer in (self.conditioning or {}).values()
            for matrix, part in (("Σx", layer.x), ("Σ∇h", layer.g))
            if part is not None
        ]

    def save(self, path: str | Path) -> Path:
        """Write one HTML file that opens offline, with interactive plots and all layers; needs `wellcond[report]`."""
        from wellcond.report.page import save_page

        return save_page({self.about["model"]: self}, path)

    def __str__(self) -> str:
        return plain_text(self.rows(), self.not_covered, self.failed)
