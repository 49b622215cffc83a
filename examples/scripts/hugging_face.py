"""A BERT classifier of Hugging Face's, built from a configuration, which returns its own loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

import wellcond as wc

EPOCHS, BATCH, LENGTH, WORDS = 2, 32, 12, 100


class Reviews(Dataset):
    """Made sentences of words that are good (1 to 49) or bad (50 to 99); the label says of which there are more."""

    def __init__(self, count: int = 1024) -> None:
        generator = torch.Generator().manual_seed(0)
        taste = torch.rand(count, 1, generator=generator)
        is_bad = torch.rand(count, LENGTH, generator=generator) < taste
        words = torch.randint(1, 50, (count, LENGTH), generator=generator)
        self.lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count,), generator=generator)
        self.mask = (torch.arange(LENGTH) < self.lengths[:, None]).long()
        self.words = (words + 50 * is_bad) * self.mask
        self.labels = ((is_bad * self.mask).sum(1) > self.lengths / 2).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[i], "attention_mask": self.mask[i], "labels": self.labels[i]}


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: with the rate of SGD for AdamW."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    loader = DataLoader(Reviews(), batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 if planted else 1e-3)

    diagnosis = wc.diagnose(wc.Problem(model, None, loader), optimizer)
    print(diagnosis.verdict())

    model.train()
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in loader:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}")
    return diagnosis, total / len(loader)


if __name__ == "__main__":
    main()
