"""What would end a process on a GPU raises before the kernel runs, and names the values; all else runs as it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from wellcond.network import guarded as guarded_module
from wellcond.network.guarded import CHECKS, Guarded, guarded, known_indices
from wellcond.network.isolation import arithmetic
from wellcond.training.copy_trainer import CopyTrainer

X = torch.arange(12.0).reshape(4, 3)
ROWS = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([True, False, True, False])
NAN = torch.tensor([0.5, torch.nan])


def at(*values: int) -> Tensor:
    return torch.tensor(values)


OUTSIDE: dict[str, tuple[Callable[[], Any], str]] = {
    "labels": (lambda: F.cross_entropy(X, at(0, 1, 3, 0)), "3 classes are 0 to 3, but must be from 0 to 2"),
    "labels_below": (lambda: F.nll_loss(X, at(0, -1, 2, 0)), "3 classes are -1 to 2"),
    "labels_of_one": (lambda: F.cross_entropy(X[0], torch.tensor(3)), "3 classes are 3 to 3"),
    "labels_of_pixels": (lambda: F.cross_entropy(X[None], torch.full((1, 3), 4)), "4 classes are 4 to 4"),
    "labels_in_bytes": (lambda: F.cross_entropy(X, at(0, 1, 9, 0).byte()), "3 classes are 0 to 9"),
    "labels_of_a_module": (lambda: nn.CrossEntropyLoss()(X, at(0, 1, 3, 0)), "3 classes are 0 to 3"),
    "labels_of_a_margin": (lambda: F.multi_margin_loss(X, at(0, 1, 3, 0)), "3 classes are 0 to 3"),
    "embedding": (lambda: nn.Embedding(5, 2)(at(0, 5)), "an embedding with 5 rows are 0 to 5, but must be from 0 to 4"),
    "embedding_below": (lambda: F.embedding(at(-1, 4), ROWS), "5 rows are -1 to 4"),
    "embedding_bag": (lambda: nn.EmbeddingBag(5, 2)(at(0, 9)[None]), "5 rows are 0 to 9"),
    "probabilities": (lambda: F.binary_cross_entropy(X[0], X[0] / 9), "outputs of a loss of probabilities are 0 to 2"),
    "probabilities_nan": (lambda: F.binary_cross_entropy(NAN, at(0, 1).float()), "are nan to nan"),
    "probable_targets": (lambda: nn.BCELoss()(X[0] / 9, X[0] - 1), "targets of a loss of probabilities are -1 to 1"),
    "one_hot": (lambda: F.one_hot(at(0, 3), 3), "one_hot with 3 classes are 0 to 3"),
    "one_hot_below": (lambda: F.one_hot(at(2, -1)), "one_hot with 3 classes are -1 to 2"),
    "gather": (lambda: X.gather(1, at(3)[None]), "a dimension of 3 are 3 to 3, but must be from 0 to 2"),
    "gather_below": (lambda: torch.gather(X, dim=1, index=at(-1)[None]), "a dimension of 3 are -1 to -1"),
    "index_select": (lambda: X.index_select(-2, at(4)), "a dimension of 4 are 4 to 4"),
    "scatter": (lambda: X.clone().scatter_(1, at(3)[None], 1.0), "a dimension of 3 are 3 to 3"),
    "scatter_add": (lambda: torch.scatter_add(X, 1, at(3)[None], torch.ones(1, 1)), "a dimension of 3 are 3 to 3"),
    "scatter_reduce": (lambda: X.scatter_reduce(0, at(4)[None], torch.ones(1, 1), "sum"), "of 4 are 4 to 4"),
    "index_add": (lambda: X.clone().index_add_(0, at(4), torch.ones(1, 3)), "a dimension of 4 are 4 to 4"),
    "index_copy": (lambda: X.index_copy(0, at(4), torch.ones(1, 3)), "a dimension of 4 are 4 to 4"),
    "index_fill": (lambda: torch.index_fill(X, 1, at(3), 0.0), "a dimension of 3 are 3 to 3"),
    "index_put": (lambda: X.index_put((at(0), at(3)), torch.tensor(1.0)), "a dimension of 3 are 3 to 3"),
    "take": (lambda: X.take(at(12)), "12 entries are 12 to 12"),
    "item": (lambda: X[at(4)], "a dimension of 4 are 4 to 4, but must be from -4 to 3"),
    "item_below": (lambda: X[at(-5)], "a dimension of 4 are -5 to -5"),
    "item_of_columns": (lambda: X[:, at(3)], "a dimension of 3 are 3 to 3"),
    "item_with_none": (lambda: X[None, 0, at(3)], "a dimension of 3 are 3 to 3"),
    "item_after_ellipsis": (lambda: X[None][..., at(3)], "a dimension of 3 are 3 to 3"),
    "item_before_ellipsis": (lambda: X[at(4), ...], "a dimension of 4 are 4 to 4"),
    "item_after_mask": (lambda: X[MASK, at(0, 3)], "a dimension of 3 are 0 to 3"),
    "item_after_wide_mask": (lambda: X.expand(2, 4, 3)[X.new_ones(2, 4).bool(), at(3)], "of 3 are 3 to 3"),
    "assignment": (lambda: X.clone().__setitem__((slice(None), at(3)), 0.0), "a dimension of 3 are 3 to 3"),
    "draws_of_nan": (lambda: torch.multinomial(NAN, 1), "NaN, infinite or negative"),
    "draws_below": (lambda: torch.tensor([-1.0, 2.0]).multinomial(1), "the least is -1"),
    "draws_of_infinity": (lambda: torch.multinomial(torch.tensor([1.0, torch.inf]), 1), "NaN, infinite or negative"),
    "coins": (lambda: torch.bernoulli(X), "probabilities of bernoulli are 0 to 11"),
    "coins_of_a_tensor": (lambda: torch.empty(4, 3).bernoulli_(X), "probabilities of bernoulli are 0 to 11"),
    "coins_nan": (lambda: NAN.bernoulli(), "are nan to nan"),
}
INSIDE: dict[str, Callable[[], Any]] = {
    "labels": lambda: F.cross_entropy(X, at(0, 1, 2, 0)),
    "ignored_labels": lambda: F.cross_entropy(X, at(0, -100, 2, 0)),
    "own_ignored_label": lambda: F.cross_entropy(X, at(0, 9, 2, 0), None, None, 9),
    "ignored_by_a_module": lambda: nn.NLLLoss(ignore_index=-1)(X, at(0, -1, 2, 0)),
    "all_ignored": lambda: F.cross_entropy(X, torch.full((4,), -100), reduction="sum"),
    "soft_labels": lambda: F.cross_entropy(X, X.softmax(1)),
    "embedding": lambda: F.embedding(at(0, 4), ROWS, padding_idx=-1),
    "embedding_bag": lambda: F.embedding_bag(at(0, 4), ROWS, at(0)),
    "no_indices": lambda: F.embedding(at().long(), ROWS),
    "probabilities": lambda: F.binary_cross_entropy(X / 11, 1 - X / 11),
    "one_hot": lambda: F.one_hot(at(0, 2)),
    "gather": lambda: X.gather(-1, at(2)[None]),
    "modulo_the_size": lambda: torch.take_along_dim(X, at(0, 2)[None], 1),
    "item_below_zero": lambda: X[at(-4, 3)],
    "items": lambda: [X[0], X[-1, 2], X[..., 1], X[1:3], X[X > 3], X[None], X[MASK][:, at(0, -3)], X[True], X[[0, 3]]],
    "assignment": lambda: X.clone().__setitem__(MASK, 0.0),
    "index_put_of_a_mask": lambda: X.index_put((MASK,), torch.tensor(1.0)),
    "draws_of_one": lambda: torch.multinomial(torch.tensor([0.0, 1.0]), 1),
    "coins_at_a_share": lambda: torch.bernoulli(torch.zeros(2) + 7, 0.0),
    "coins_in_place": lambda: torch.empty(3).bernoulli_(1.0),
    "vmap": lambda: torch.vmap(lambda i: F.embedding(i, ROWS) + ROWS[i])(at(0, 1)[:, None]),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_a_gpu_would_not_survive_raises_with_its_values(name: str) -> None:
    call, words = OUTSIDE[name]
    with pytest.raises((IndexError, RuntimeError), match=words), Guarded():
        call()


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_same_raises_on_a_cpu_without_a_guard(name: str) -> None:
    """So that a guard refuses nothing that works."""
    with pytest.raises((IndexError, RuntimeError)):
        OUTSIDE[name][0]()


@pytest.mark.parametrize("name", INSIDE)
def test_what_works_is_the_same_inside_of_a_guard(name: str) -> None:
    expected = INSIDE[name]()
    with Guarded():
        result = INSIDE[name]()
    pairs = zip(result, expected, strict=True) if isinstance(result, list) else [(result, expected)]
    assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_gradients_and_autocast_pass_a_guard() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    inputs, labels = at(0, 1, 2, 4).reshape(2, 2), at(0, 2)
    F.cross_entropy(model(inputs), labels).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with Guarded():
        F.cross_entropy(model(inputs), labels).backward()
        with torch.autocast("cpu", torch.bfloat16):
            assert model(inputs).dtype is torch.bfloat16
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected, strict=True))  # type: ignore[arg-type]


def test_indices_are_not_checked_where_the_data_are_known_but_probabilities_are() -> None:
    """Those of a run that diverges are NaN, whatever its data."""
    tokens = torch.tensor([0, 9])

    def message() -> str:
        with pytest.raises(IndexError) as error, guarded():
            F.embedding(tokens, ROWS)
        return str(error.value)

    by_torch = "index out of range in self"
    assert "are 0 to 9" in message()
    with known_indices():
        assert message() == by_torch
        with known_indices():
            pass
        assert message() == by_torch
        for name in ("probabilities_nan", "draws_of_nan", "coins_nan"):
            call, words = OUTSIDE[name]
            with pytest.raises(RuntimeError, match=words), guarded():
                call()
    assert "are 0 to 9" in message()


def test_every_check_is_reached() -> None:
    """A function of the table that no case calls with bad values, in any of its forms, is a hole."""
    reached: set[Any] = set()

    def counting(check: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> None:
            try:
                check(*args, **kwargs)
            except (IndexError, RuntimeError):
                reached.add(check)
                raise

        return counted

    checks = {function: counting(check) for function, check in CHECKS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded_module, "CHECKS", checks)
        for call, _ in OUTSIDE.values():
            with pytest.raises((IndexError, RuntimeError)), Guarded():
                call()
    assert reached == set(CHECKS.values())


# in a diagnosis


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens).mean(1))


def tokens(high: int, seed: int = 0) -> Tensor:
    drawn = torch.randint(0, high, (16, 5), generator=torch.Generator().manual_seed(seed))
    drawn[0, 0] = high - 1
    return drawn


LABELS = torch.arange(16) % 4


def test_tokens_outside_of_an_embedding_are_a_finding_with_the_layer_and_the_values() -> None:
    diagnosis = wc.diagnose(wc.Problem(Words(), nn.CrossEntropyLoss(), (tokens(12), LABELS)))
    finding = diagnosis.findings[0]
    assert (finding.rule, finding.layer, finding.severity) == ("model-fails", "words", "severe")
    assert "indices of an embedding with 10 rows are 0 to 11, but must be from 0 to 9" in finding.summary


@pytest.mark.parametrize(
    ("loss", "labels", "words"),
    [
        (nn.CrossEntropyLoss(), LABELS + 1, "labels of a loss with 4 classes are 1 to 4"),
        (lambda f, y: F.nll_loss(f.log_softmax(1), y), LABELS - 1, "labels of a loss with 4 classes are -1 to 2"),
        (nn.BCELoss(), F.one_hot(LABELS).float(), "outputs of a loss of probabilities are -"),
    ],
    ids=["labels", "own_loss", "probabilities"],
)
def test_labels_and_probabilities_out_of_range_are_a_finding_with_their_values(
    loss: Any, labels: Tensor, words: str
) -> None:
    torch.manual_seed(0)
    diagnosis = wc.diagnose(wc.Problem(Words(), loss, (tokens(10), labels)))
    assert diagnosis.findings[0].rule == "output-loss-mismatch"
    assert diagnosis.findings[0].layer == "head"
    assert words in diagnosis.findings[0].summary


def test_a_later_batch_with_tokens_outside_is_a_finding() -> None:
    batches = [(tokens(10, seed), LABELS) for seed in range(9)]
    batches[7] = (tokens(12, 7), LABELS)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    diagnosis = wc.diagnose(wc.Problem(model, nn.CrossEntropyLoss(), batches), optimizer)
    finding = diagnosis.findings[0]
    assert (finding.rule, finding.layer) == ("model-fails", "words")
    assert "training ends at batch 7" in finding.summary
    assert "indices of an embedding with 10 rows are 0 to 11" in finding.summary


def test_passes_are_guarded_on_a_gpu_alone() -> None:
    def is_guarded(device: str) -> bool:
        with pytest.raises(IndexError) as error, arithmetic.passes(torch.device(device)):
            F.embedding(at(0, 9), ROWS)
        return "are 0 to 9" in str(error.value)

    assert is_guarded("cuda")  # the tensors are on a CPU, where a mistake does no harm
    assert not is_guarded("cpu")


def test_only_the_first_run_on_a_batch_checks_its_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU that passes for a GPU, while batches are passed."""
    model = Words()
    of = wc.Problem(model, nn.CrossEntropyLoss(), [(tokens(10, seed), LABELS) for seed in range(3)])
    trainer = CopyTrainer(of, torch.optim.SGD(model.parameters(), 0.1))
    checked: list[bool] = []

    class Device:
        type = "cuda"

    def training_loss(self: wc.Problem, index: int, batch: Any) -> Tensor:
        self.device = torch.device("cpu")
        checked.append(F.embedding in guarded()._checks)
        return plain(self, index, batch)

    plain = wc.Problem.training_loss
    monkeypatch.setattr(wc.Problem, "training_loss", training_loss)
    for steps, seed in ((2, 0), (3, 0), (1, 1)):
        run = trainer.start(seed=seed)
        with trainer.batches(seed) as batches, run.training():
            for _ in range(steps):
                batch = next(batches)
                run.problem.device = Device()  # type: ignore[assignment]
                run.step(batch)
    assert checked == [True, True, False, False, True, True]
