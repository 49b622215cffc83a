"""Figures I and III of huang2020: the full Fisher matrix against the sub-Fisher of every layer, plain and BN.

MNIST, centre-cropped and resized to 12×12; MLPs of 8 and 4 layers with 24 units, LeCun initialisation, no biases (the
source's h = W x). Exact spectra from `examples` images: κ_p is finite up to a share of about 9·examples / P.

    python -m wellcond.experiments.fim_conditioning [--data DIR] [--out docs/figures]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wellcond.curvature.fisher import Fisher
from wellcond.data import mnist
from wellcond.layerwise.conditioning import Conditioning
from wellcond.models import mlp
from wellcond.models.mlp import Norm
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.spectral.exact import block_spectra

SHARES = (0.2, 0.5, 0.8, 1.0)
DEPTHS = {"I": 8, "III": 4}
NORMS: dict[str, Norm] = {"plain": "none", "BN": "batch"}


def fim_conditioning(depth: int, norm: Norm, *, data: str | None, examples: int = 640, units: int = 24) -> list[Row]:
    """λ_max, κ_p, rank and trace of the full Fisher matrix (layer "") and of each layer's, as rows."""
    x, y = mnist(data, size=12).tensors(dtype=torch.float64, flatten=True, count=examples)
    model = mlp([144, *[units] * (depth - 1), 10], norm=norm, init="lecun", bias=False, seed=0).double()
    problem = Problem(model, nn.CrossEntropyLoss(), (x, y), batchnorm="batch")
    weights = [name for name in problem.params if name.startswith("fc")]
    whole, blocks = block_spectra(Fisher(problem, "model", weights))
    spectra = {"": whole} | {name.removesuffix(".weight"): block for name, block in blocks.items()}
    return [
        row for layer, spectrum in spectra.items() for row in Conditioning.of(spectrum.values, SHARES).rows(layer, "F")
    ]


def draw(results: dict[str, dict[str, list[Row]]], path: Path) -> None:
    """One row of panels a figure: λ_max and κ_p of F and of every F_k, plain beside BN."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fig, panels = plt.subplots(len(results), 3, figsize=(13, 3.7 * len(results)), layout="constrained")
    colours = {"plain": "#d55e00", "BN": "#0072b2"}
    for line, (figure, networks) in zip(panels, results.items(), strict=True):
        for network, rows in networks.items():
            layers = list(dict.fromkeys(row.layer for row in rows))
            labels = [layer.replace("fc", "$F_{") + "}$" if layer else "full $F$" for layer in layers]
            values = {(row.layer, row.quantity): row.value for row in rows}
            _bars(line[0], labels, [values[k, "lambda_max(F)"] for k in layers], network, colours[network])
            for panel, share in zip(line[1:], ("50%", "80%"), strict=True):
                _bars(panel, labels, [values[k, f"kappa_{share}(F)"] for k in layers], network, colours[network])
                panel.set_ylabel(rf"$\kappa_{{{share[:-1]}\%}}$")
        line[0].set_ylabel(r"$\lambda_{\max}$")
        line[0].set_title(f"Figure {figure}: {DEPTHS[figure]}-layer MLP, 24 units, 12×12 MNIST", loc="left")
        line[0].legend(frameon=False)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def _bars(panel: Any, labels: list[str], values: list[float], network: str, colour: str) -> None:
    """Bars on a log axis; an infinite condition number is a hatched bar to the top, not a gap."""
    offset = -0.2 if network == "plain" else 0.2
    finite = [v for v in values if v != float("inf")]
    top = 10 * max([*finite, panel.get_ylim()[1] if panel.containers else 0.0, 1e-300])
    for i, value in enumerate(values):
        infinite = value == float("inf")
        panel.bar(
            i + offset, top if infinite else value, 0.4, color="none" if infinite else colour, edgecolor=colour,
            hatch="//" if infinite else None, label=network if i == 0 else None, log=True,
        )  # fmt: skip
    panel.set_xticks(range(len(labels)), labels)
    panel.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that holds MNIST/raw (default: $WELLCOND_DATA or ./data)")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, list[Row]]] = {}
    for figure, depth in DEPTHS.items():
        results[figure] = {}
        for network, norm in NORMS.items():
            begin = time.perf_counter()
            results[figure][network] = fim_conditioning(depth, norm, data=options.data)
            print(f"figure {figure}, {network}: {time.perf_counter() - begin:.1f} s", flush=True)
    draw(results, options.out / "huang2020_figures_1_3.png")
    as_json = {
        figure: {
            network: {f"{row.layer or 'full'} {row.quantity}": _json_number(row.value) for row in rows}
            for network, rows in networks.items()
        }
        for figure, networks in results.items()
    }
    (options.out / "huang2020_figures_1_3.json").write_text(json.dumps(as_json, indent=1) + "\n")


def _json_number(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


if __name__ == "__main__":
    main()
