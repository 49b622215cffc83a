"""One embedding that is listed for several fields, and embeddings that are shared on purpose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc

G = torch.Generator().manual_seed(4)
FIELDS = torch.randint(20, (192, 3), generator=G)
LABELS = (torch.randn(3, 20, generator=G)[torch.arange(3), FIELDS].sum(1) > 0).long()


class Fields(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        table = nn.Embedding(20, 6)
        if how == "one":
            self.tables = nn.ModuleList([table] * 3)
        elif how == "each":
            self.tables = nn.ModuleList([nn.Embedding(20, 6) for _ in range(3)])
        else:
            self.first, self.second = table, table  # names for one table, as an encoder and a decoder have them
        self.head = nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        tables = self.tables if hasattr(self, "tables") else [self.first, self.second, self.first]
        out: Tensor = self.head(torch.cat([table(x[:, k]) for k, table in enumerate(tables)], 1))
        return out


@pytest.mark.parametrize(("how", "expected"), [("one", [("tables.0", "warning")]), ("each", []), ("shared", [])])
def test_one_table_for_several_fields(how: str, expected: list[tuple[str, str]]) -> None:
    model = Fields(how)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(FIELDS[k::3], LABELS[k::3]) for k in range(3)])
    findings = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 1e-3), select=["shared-weight"]).findings
    assert [(each.layer, each.severity) for each in findings] == expected


class Factors(nn.Module):
    """Users and items in tables, or two texts."""

    def __init__(self, tables: str, count: int = 20) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users = self.items = nn.Embedding(count, 6)
        if tables == "one each":
            self.items = nn.Embedding(count, 6)
        elif tables == "one name":
            del self.items
        elif tables == "in parts":
            self.items, self.part = self.users, nn.Module()
            self.part.items = self.items
            del self.items

    def forward(self, pair: Tensor) -> Tensor:
        items = getattr(self, "items", getattr(getattr(self, "part", None), "items", self.users))
        user, item = self.users(pair[:, 0]), items(pair[:, 1])
        if pair.dim() == 3:
            user, item = user.mean(1), item.mean(1)  # words of a question and of an answer
        return (user * item).sum(-1)


@pytest.mark.parametrize(
    ("tables", "words", "expected"),
    [
        ("one", 1, ["users"]),
        ("one", 5, []),
        ("one each", 1, []),
        ("one name", 1, []),
        ("in parts", 1, []),
    ],
)
def test_a_chained_assignment(tables: str, words: int, expected: list[str]) -> None:
    pairs = torch.randint(20, (192, 2, words), generator=torch.Generator().manual_seed(5))
    pairs = pairs[..., 0] if words == 1 else pairs
    rating = torch.randn(192, generator=torch.Generator().manual_seed(6))
    model = Factors(tables)
    problem = wc.Problem(model, nn.MSELoss(), [(pairs[k::3], rating[k::3]) for k in range(3)])
    findings = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 1e-2), select=["shared-weight"]).findings
    assert [each.layer for each in findings if each.severity == "warning"] == expected
    assert not any(each.severity == "severe" for each in findings)


class Copied(nn.Module):
    """Decodes step by step with the table of the encoder, under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = self.said = nn.Embedding(20, 6)
        self.cell, self.out = nn.GRUCell(6, 6), nn.Linear(6, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        state = torch.zeros(len(tokens), 6)
        for t in range(3):
            state = self.cell(self.heard(tokens[:, t]), state)
        for t in range(3, 5):
            state = self.cell(self.said(tokens[:, t]), state)
        out: Tensor = self.out(state)
        return out


def test_one_table_of_words_under_two_names() -> None:
    torch.manual_seed(0)
    model = Copied()
    tokens = torch.randint(20, (192, 5), generator=torch.Generator().manual_seed(5))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(tokens[k::3], tokens[k::3, 4]) for k in range(3)])
    assert not wc.diagnose(problem, torch.optim.Adam(model.parameters()), select=["shared-weight"]).findings
