"""A training with a recorder is bit for bit the one without it: weights, states, gradients, random numbers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import Small, assert_bit_for_bit, batches, everything_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.05, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, foreach=False),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "maximize": lambda p: torch.optim.SGD(p, lr=1e-4, maximize=True),
    "SGD one by one": lambda p: torch.optim.SGD(p, lr=1e-2, foreach=False),
}
STEPS = 24
loss_function = nn.CrossEntropyLoss()


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str) -> None:
    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = Small()
        optimizer = OPTIMIZERS[name](model.parameters())
        rec = record(model, optimizer, loss_function)
        for x, y in batches(STEPS):
            x = x + 0.1 * torch.randn_like(x)  # a random augmentation
            optimizer.zero_grad(set_to_none=name != "Adam")
            value = loss_function(model(x), y)
            value.backward()
            optimizer.step()
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, optimizer)

    (rec,) = assert_bit_for_bit(loop)
    counts = {
        quantity: len(rec.history.series(quantity)) for quantity in ("training_loss", "hessian_lambda_max", "beta")
    }
    assert counts["training_loss"] == STEPS
    assert counts["hessian_lambda_max"] > 2
    assert counts["beta"] > 2
    assert rec.history.layers("shift_difference")
    assert rec.history.layers("input_lambda_max")
    known = {"SGD", "Adam", "AdamW", "NAdam", "Adamax", "Adagrad", "RMSprop"}
    assert (len(rec.history.series("max_lr")) > 2) == (name.split()[0] in known | {"maximize"})


@pytest.mark.slow
def test_muon_beside_an_optimizer_for_what_is_no_matrix() -> None:
    muon = getattr(torch.optim, "Muon", None)
    if muon is None:
        pytest.skip("this torch has none")

    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = Small()
        matrices = [p for p in model.parameters() if p.dim() == 2]
        others = [p for p in model.parameters() if p.dim() != 2]
        optimizers = [muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-2)]
        rec = record(model, optimizers, loss_function)
        for x, y in batches(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            value = loss_function(model(x), y)
            value.backward()
            for optimizer in optimizers:
                optimizer.step()
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, *optimizers)

    (rec,) = assert_bit_for_bit(loop)
    assert rec.history.last_step == STEPS
    assert set(rec.history.layers("gradient_norm")) == {"conv", "bn", "hidden", "norm", "head"}
    assert len(rec.history.series("hessian_lambda_max")) > 2


def test_every_optimizer_of_torch_is_here() -> None:
    elsewhere = {"LBFGS", "SparseAdam", "Muon"}
    names = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)} - {"Optimizer"}
    assert names == {name.split()[0] for name in OPTIMIZERS} - {"maximize"} | elsewhere & names


@pytest.mark.slow
def test_lbfgs_and_its_closure() -> None:
    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = Small()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        rec = record(model, optimizer, loss_function)
        for x, y in batches(8):

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                value = loss_function(model(x), y)
                value.backward()
                return value

            value = optimizer.step(closure)
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, optimizer)

    (rec,) = assert_bit_for_bit(loop)
    assert set(rec.history.series("accumulated").values) == {1.0}
    assert len(rec.history.series("gradient_norm")) > 3


@pytest.mark.slow
def test_accumulation_clipping_and_a_scaler() -> None:
    norms: dict[int, float] = {}

    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = Small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        rec = record(model, optimizer, loss_function, scaler=scaler)
        for index, (x, y) in enumerate(batches(24)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value = loss_function(model(x), y)
            scaler.scale(value / 2).backward()
            if index % 2:
                scaler.unscale_(optimizer)
                norms[(index + 1) // 2] = float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, optimizer)

    (rec,) = assert_bit_for_bit(loop)
    history = rec.history
    assert history.last_step == 12
    assert set(history.series("accumulated").values) == {2.0}
    assert set(history.series("uncleared_gradient").values) == {0.0}
    assert history.series("gradient_norm").values.max() <= 0.1 * (1 + 1e-5)
    unclipped = history.series("unclipped_gradient_norm")
    assert len(unclipped) > 5
    assert unclipped.values.tolist() == pytest.approx([norms[step] for step in unclipped.steps], rel=1e-6)
    assert len(history.series("loss_scale")) > 1


@pytest.mark.slow
def test_a_gan_with_two_recorders() -> None:
    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        of_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
        of_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)
        binary = nn.BCEWithLogitsLoss()
        first = record(generator, of_generator, lambda fake, _: -critic(fake).mean())
        second = record(critic, of_critic, binary)
        for _ in range(20):
            noise, real = torch.randn(16, 4), torch.randn(16, 2) + 3
            fake = generator(noise)
            of_critic.zero_grad()
            both, labels = torch.cat([real, fake.detach()]), torch.cat([torch.ones(16, 1), torch.zeros(16, 1)])
            of_critics = binary(critic(both), labels)
            of_critics.backward()
            of_critic.step()
            second.step(of_critics, (both, labels))
            of_generator.zero_grad()
            value = -critic(fake).mean()  # its backward pass adds to the critic's gradients too
            value.backward()
            of_generator.step()
            first.step(value, (noise, torch.zeros(16)))
        first.close()
        second.close()
        return everything_of(nn.ModuleList([generator, critic]), of_generator, of_critic)

    for rec in assert_bit_for_bit(loop):
        assert set(rec.history.series("uncleared_gradient").values) == {0.0}
        assert set(rec.history.series("accumulated").values) == {1.0}


@pytest.mark.slow
def test_several_optimizers_of_one_model() -> None:
    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 2))
        optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.01)]
        rec = record(model, optimizers, nn.MSELoss())
        for _ in range(12):
            x, y = torch.randn(8, 4), torch.randn(8, 2)
            value = nn.functional.mse_loss(model(x), y)
            value.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, *optimizers)

    (rec,) = assert_bit_for_bit(loop)
    assert rec.history.last_step == 12
    assert rec.history.layers("gradient_norm") == ["0", "2"]
    whole, parts = rec.history.series("gradient_norm"), [rec.history.series("gradient_norm", n) for n in ("0", "2")]
    assert torch.allclose(
        torch.tensor(whole.values), torch.hypot(*(torch.tensor(part.values) for part in parts)), rtol=1e-12
    )


class OwnLoss(nn.Module):
    """Returns its loss, and recomputes a block in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(4, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2))
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        h = checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)
        return {"loss": nn.functional.cross_entropy(self.last(h), labels)}


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_model_that_returns_its_loss_with_checkpoints(reentrant: bool) -> None:
    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = OwnLoss(reentrant)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        rec = record(model, optimizer, None)
        for _ in range(12):
            batch = {"x": torch.randn(8, 4), "labels": torch.randint(0, 2, (8,))}
            value = model(**batch)["loss"]
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.step(value, batch)
        rec.close()
        return everything_of(model, optimizer)

    (rec,) = assert_bit_for_bit(loop, problems="use_reentrant" if reentrant else "")
    assert {"first", "block.0", "last"} == set(rec.history.layers("signal_rms"))
    assert rec.history.layers("dead_share") == ["block.0"]


@pytest.mark.slow
def test_a_compiled_model() -> None:
    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = Small()
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        rec = record(model, optimizer, loss_function)
        for x, y in batches(16):
            optimizer.zero_grad()
            value = loss_function(compiled(x), y)
            value.backward()
            optimizer.step()
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, optimizer)

    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    (rec,) = assert_bit_for_bit(loop)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1  # nothing was compiled again
    assert "compiled" in rec.notes[0]
    assert rec.history.layers("signal_rms")
    assert rec.history.layers("dead_share") == ["bn", "tied"]
    assert len(rec.history.series("uncleared_gradient")) > 2


@pytest.mark.slow
def test_sparse_gradients() -> None:
    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = nn.Sequential(nn.Embedding(10, 4, sparse=True))
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        rec = record(model, optimizer, nn.MSELoss())
        for _ in range(10):
            x, y = torch.randint(0, 10, (6, 3)), torch.randn(6, 3, 4)
            optimizer.zero_grad()
            value = nn.functional.mse_loss(model(x), y)
            value.backward()
            optimizer.step()
            rec.step(value, (x, y))
        rec.close()
        return everything_of(model, optimizer)

    (rec,) = assert_bit_for_bit(loop)
    assert len(rec.history.series("gradient_norm", "0")) > 3


@pytest.mark.slow
def test_a_model_can_be_copied_and_pickled_between_steps() -> None:
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loop(record: Callable[..., Any]) -> dict[str, Any]:
        model = Small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        rec = record(model, optimizer, loss_function)
        sizes = []
        for x, y in batches(5):
            optimizer.zero_grad()
            value = loss_function(model(x), y)
            value.backward()
            optimizer.step()
            rec.step(value, (x, y))
            copy.deepcopy(model)(x)
            sizes.append(len(pickle.dumps(model)))
            copy.deepcopy(optimizer)
        rec.close()
        return everything_of(model, optimizer) | {"sizes": sizes}

    assert_bit_for_bit(loop)
    assert optimizer.param_groups[0]["params"][0] is next(model.parameters())
