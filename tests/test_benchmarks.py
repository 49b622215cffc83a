"""The benchmarks run, their numbers mean what they say, and the page is made from the committed results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tables
import torch
from torch import nn
from torch.nn import functional

import wellcond as wc
from benchmarks import (
    bnp_limit,
    diagnoses,
    eigenvalues,
    imagenet_steps,
    large,
    large_networks,
    layer_tables,
    peers,
    products,
)
from benchmarks.networks import Network
from benchmarks.rates import bound
from benchmarks.rates.judging import Judge
from benchmarks.rates.sweep import LENGTHS
from wellcond_papers.data import load
from wellcond_papers.models import mlp, resnet

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def small() -> Network:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 6, generator=generator), torch.randint(0, 3, (16,), generator=generator)
    return Network("MLP 6-8-3", mlp([6, 8, 3], init="default", seed=0).eval(), x, y)


def hessian_product(network: Network, v: torch.Tensor) -> torch.Tensor:
    """By differentiating twice, without any library."""
    params = list(network.model.parameters())
    gradients = torch.autograd.grad(network.loss(network.model(network.x), network.y), params, create_graph=True)
    flat = torch.cat([g.flatten() for g in gradients])
    return torch.cat([g.flatten() for g in torch.autograd.grad(flat @ v, params)])


def random_vector(network: Network) -> torch.Tensor:
    return torch.randn(network.problem().size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tool", peers.on("cpu")[0], ids=lambda tool: tool.name)
def test_every_peer_multiplies_with_the_same_hessian(tool: peers.Peer, small: Network) -> None:
    v = random_vector(small)
    product: Any = tool.hvp(small)(v)
    if tool.name == "landscaper":  # its first is vᵀHv
        product = product[1]
    parts = [product] if isinstance(product, torch.Tensor) else list(product)
    assert torch.allclose(torch.cat([part.flatten() for part in parts]), hessian_product(small, v), atol=1e-5)


def test_peers_are_given_the_same_function_of_a_batch(small: Network) -> None:
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    network = Network("ResNet-8", resnet(8, seed=0).double().eval(), x.double(), torch.arange(4), "batch")
    v = random_vector(network).double()
    assert torch.allclose(hessian_product(network.for_peers(), v), wc.Hessian(network.problem()) @ v, rtol=1e-6)


def test_every_tool_finds_the_largest_eigenvalue_after_the_oracle(small: Network) -> None:
    rows = eigenvalues.top_eigenvalue(small, 0, "cpu")
    *tried, oracle = rows
    for tool in {row["tool"] for row in tried}:
        assert min(row["true_error"] for row in tried if row["tool"] == tool) < eigenvalues.TRUE_ERROR, tool
    asked = [row for row in tried if row["tool"] == eigenvalues.RESIDUAL and row["asked"] == eigenvalues.TRUE_ERROR]
    assert oracle["products"] <= asked[0]["products"]


@pytest.mark.slow
def test_a_stop_is_false_only_if_it_says_converged() -> None:
    rows = eigenvalues.false_stops(2)
    assert [row["runs"] for row in rows] == [2] * 6
    assert all(row["false_stops"] == 0 for row in rows if row["confidence"] == 0.99)


@pytest.mark.slow
def test_costs_of_products_and_wide_layers_are_positive(small: Network) -> None:
    costs = products.products(small, "cpu", rounds=1)
    assert all(cost > 0 for cost in costs["cost_u"].values())
    assert costs["trace"]["value"] == pytest.approx(_trace(small), rel=0.3)
    rows = layer_tables.layer_tables("cpu", 1, inputs=(100,))
    assert [row["u"] > 0 for row in rows] == [True, True]


def _trace(network: Network) -> float:
    problem = network.to(torch.float64).problem()
    return float(eigenvalues.dense_hessian(problem).trace())


def test_the_parts_of_a_diagnosis_add_up_to_no_more_than_the_whole(small: Network) -> None:
    problem = small.problem()
    diagnosis = diagnoses.diagnosed(problem, diagnoses.unit_seconds(problem, "cpu"), "cpu")
    assert 0 < diagnosis["first_rows_u"] <= sum(part["u"] for part in diagnosis["parts"]) <= diagnosis["u"]
    assert not diagnosis["failed"]


@pytest.mark.parametrize("name", large_networks.LARGE)
def test_large_networks_have_the_published_sizes(name: str) -> None:
    with torch.device("meta"):
        model = large_networks.LARGE[name].plain()
    assert sum(p.numel() for p in model.parameters()) == large_networks.LARGE[name].parameters


TINY = {
    "GPT-2": lambda: large_networks.GPT2(
        large_networks.GPT2Config(width=8, depth=1, heads=2, vocabulary=11, positions=6)
    ),
    "ViT-B": lambda: large_networks.ViT(
        large_networks.ViTConfig(width=8, depth=1, heads=2, image=8, patch=4, classes=3)
    ),
    "ResNet-50": lambda: large_networks.resnet50(large_networks.ResNetConfig(blocks=(1, 1), width=4, classes=3)),
}
SHAPES = {"GPT-2": ((6,), 11), "ViT-B": ((3, 8, 8), 3), "ResNet-50": ((3, 16, 16), 3)}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_large_network_is_measured_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, vocabulary = SHAPES[name]
    size = sum(p.numel() for p in TINY[name]().parameters())
    tiny = large_networks.Large(size, TINY[name], ("", "", {}), shape, vocabulary)
    monkeypatch.setitem(large_networks.LARGE, name, tiny)
    monkeypatch.setattr(large_networks, "transformers", lambda: None)
    result = large.measured(name, 2, "cpu")
    assert json.loads(json.dumps(result))["measurements"].keys() == {"forward+backward", *large.MEASUREMENTS}
    assert not [task for task, cost in result["measurements"].items() if "error" in cost or cost["u"] <= 0]
    assert not result["measurements"]["diagnose"]["failed"]


def test_the_gpt_2_of_plain_torch_is_causal() -> None:
    torch.manual_seed(0)
    model = TINY["GPT-2"]().eval()
    tokens = torch.arange(6)[None]
    changed = tokens.clone()
    changed[0, -1] = 9
    assert torch.equal(model(tokens)[:, :-1], model(changed)[:, :-1])


@pytest.mark.slow
def test_a_step_on_imagenet_is_timed_for_every_network() -> None:
    for name in imagenet_steps.NETWORKS:
        row = imagenet_steps.step_time(name, 2, False, torch.device("cpu"), 1, size=32)
        assert row["network"] == name
        assert row["ms"] > 0
        assert row["precision"] == "TF32"


def test_hours_on_imagenet_are_epochs_times_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = tables.imagenet_tables
    rows = [
        {"network": network, "precision": precision, "batch": batch, "ms": ms, "peak_memory_GiB": 1.0}
        for network in imagenet_steps.NETWORKS
        for precision in imagenet_steps.PRECISIONS
        for batch, ms in ((imagenet_steps.WHOLE, 100.0), (imagenet_steps.SHARE, 20.0))
    ]
    monkeypatch.setattr(costs, "read", lambda stem: {"results": rows})
    # 100 epochs of 1 281 167 / 256 = 5004.6 steps of 100 ms are 13.9 hours
    assert costs.imagenet_steps().splitlines()[2] == (
        "| ResNet-18 | TF32 | 100.0 ms | 1 GiB | 13.9 h | 20.0 ms | 1 GiB | 2.8 h |"
    )
    assert "| `huang2020-fig14` | 4 | 2.3 days | 11.1 h | 2.3 days | 11.1 h |" in costs.imagenet_experiments()


def test_the_pages_hold_the_tables_of_the_committed_results() -> None:
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert "<!-- table: " in text
        assert text == tables.filled(text), f"run `python docs/scripts/tables.py`: {page.name} is stale"


def test_an_epoch_as_a_graph_takes_what_its_kernels_take_as_the_page_says() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "epoch.json").read_text(encoding="utf-8"))["results"]
    graphs = [arm for name, arm in results["time"]["arms"].items() if name.startswith("graph")]
    assert len(graphs) == 5
    for arm in graphs:
        kernels = arm["profile_forward_backward"]["kernel_ms"]
        assert 1e3 * arm["s_per_epoch"] / arm["steps_per_epoch"] == pytest.approx(kernels, rel=0.13)
        assert 1 / 11 < arm["activation_ms_at_that_bandwidth"] / kernels < 1 / 5.5


@pytest.mark.slow
def test_the_picture_is_drawn_from_the_committed_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.picture import picture

    figure = picture(ROOT / "benchmarks" / "results")
    figure.savefig(tmp_path / "picture.png")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Largest Hessian eigenvalue, true error < 0.001", "A training step with BNP",
                      "diagnose, by default, part by part"]  # fmt: skip
    names = [text.get_text() for text in figure.axes[0].texts]
    assert any("PyHessian" in name for name in names)


def test_knowing_the_whole_sweep_is_worth_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bound, "PICTURE", tmp_path / "bound.png")
    bound.main()
    assert bound.PICTURE.exists()
    output = capsys.readouterr().out.splitlines()[1:]
    lines = [line.replace(",", "").split() for line in output if " of " in line]
    printed = {
        (int(line[0]), int(line[1]), " ".join(line[3:-4])): [int(line[k]) for k in (-4, -2, -1)] for line in lines
    }
    page = " ".join((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").split())
    for law, name in {"one for all": "one for all tasks", "one per kind": "one per kind of optimizer",
                      "linear": "a linear law"}.items():  # fmt: skip
        cells = [printed[400, 2000, law], printed[400, 10000, law], printed[2000, 10000, law]]
        row = " | ".join(f"{within} of {of} ({left_out})" for within, of, left_out in cells)
        assert f"| {name} | {row} |" in page
    far = [int(line.split()[-1]) for line in output if "above 1.5 times" in line]
    assert far[0] == 0
    assert f"at least {far[1]} end above it, whatever the factor is" in page


def test_a_factor_for_all_tasks_is_the_one_that_brings_most_of_them_within_a_tenth() -> None:
    judge, steps = Judge(dict(np.load(bound.FINALS))), LENGTHS[1]
    shorter = bound.Shorter(judge, LENGTHS[0], steps)
    by_hand = {
        factor: sum(judge.ratio(name, steps, judge.best(name, LENGTHS[0]) * factor) <= 1.1 for name in shorter.names)
        for factor in (0.25, 0.35, 0.5, 0.7, 1.0)
    }
    every = np.arange(len(shorter.names))
    assert shorter.count(shorter.one_for_all(every)) >= max(by_hand.values())
    assert shorter.left_out(shorter.one_for_all) <= shorter.count(shorter.one_for_all(every))
    assert shorter.count(np.ones(len(every))) == by_hand[1.0]
    same = bound.Shorter(judge, steps, steps)  # as long as what is judged: the best is known
    assert same.count(np.ones(len(every))) == len(every)


@pytest.fixture
def preconditioned() -> tuple[nn.Sequential, wc.BNP, torch.optim.SGD, torch.Tensor, torch.Tensor]:
    """A small CNN in float64 after some steps of BNP."""
    torch.manual_seed(0)
    x, y = torch.rand(8, 1, 6, 6, dtype=torch.float64), torch.arange(8) % 3
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4), nn.Tanh(), nn.Linear(4, 3))
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    bnp = wc.BNP(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, bnp, optimizer, x, y


Preconditioned = tuple[nn.Sequential, wc.BNP, torch.optim.SGD, torch.Tensor, torch.Tensor]


def test_both_halves_of_the_preconditioner_make_the_step_of_bnp(preconditioned: Preconditioned) -> None:
    model, bnp, optimizer, x, y = preconditioned
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    gradients = {id(parameter): parameter.grad.clone() for parameter in model.parameters()}
    before = {id(parameter): parameter.detach().clone() for parameter in model.parameters()}
    optimizer.step()
    parameters, p, p_transposed = bnp_limit.halves(bnp, bnp_limit.positions_of(model, x[:1]), len(x))
    expected = p(p_transposed([gradients[id(parameter)] for parameter in parameters]))
    for parameter, step in zip(parameters, expected, strict=True):
        moved = (before[id(parameter)] - parameter.detach()) / 0.5
        assert torch.allclose(moved, step, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_limit_is_measured_along_a_run_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On digits, enlarged, in place of CIFAR-10."""
    digits, out = load("digits", size=32, channels=3), tmp_path / "limit.json"
    monkeypatch.setattr(bnp_limit, "load", lambda *_, **__: digits)
    arguments = ["--at", "0", "2", "--images", "8", "--products", "3", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["bnp_limit", *arguments])
    bnp_limit.main()
    content = json.loads(out.read_text(encoding="utf-8"))
    assert (content["images"], content["products"]) == (8, 3)
    (run,) = content["runs"]
    assert run["step"] == [0, 2]
    assert not run["has_collapsed"]
    again = bnp_limit.written(bnp_limit.read(out), torch.device("cpu"), images=8, products=3)
    assert again["runs"] == [run]
    assert all(0 < share < 10 for share in run["lr_over_limit"])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [((2.3, 1.5, 9.0, 2.1), 2), ((2.3, 1.5, math.nan), 2), ((2.3, 2.5, 1.5), None), ((2.3, 2.3, 2.3), None)],
)
def test_a_run_that_is_worse_than_guessing_after_it_learned_has_collapsed(
    losses: tuple[float, ...], expected: int | None
) -> None:
    looks = [bnp_limit.Look(step, loss, 1.0) for step, loss in enumerate(losses)]
    assert bnp_limit.Run(0, looks).collapse == expected
    assert bnp_limit.Run(0, looks).has_collapsed == (expected is not None)


def test_the_limit_is_that_of_the_dense_preconditioned_hessian(preconditioned: Preconditioned) -> None:
    model, bnp, _, x, y = preconditioned
    positions = bnp_limit.positions_of(model, x[:1])
    assert list(positions.values()) == [16, 1, 1]
    parameters, p, _ = bnp_limit.halves(bnp, positions, len(x))
    size = sum(parameter.numel() for parameter in parameters)
    columns = [torch.cat([part.flatten() for part in p(unit)]) for unit in torch.eye(size, dtype=torch.float64)]
    P = torch.stack(columns, dim=1)
    gradients = torch.autograd.grad(functional.cross_entropy(model(x), y), parameters, create_graph=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(entry, parameters, retain_graph=True)])
        for entry in flat
    ]
    expected = torch.linalg.eigvalsh(P.T @ torch.stack(rows) @ P)[-1]
    loss = functional.cross_entropy(model(x), y)
    assert bnp_limit.preconditioned_lambda(loss, bnp, positions, len(x), products=40) == pytest.approx(
        float(expected), rel=1e-6
    )
