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
