"""Healthy networks of the families that people train, small enough to be trained in seconds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.large_networks import transformers
from benchmarks.verdicts.case import named


def vgg_bn(widths: tuple[int, ...] = (16, 32, 64), classes: int = 10) -> nn.Sequential:
    """Two convolutions with BatchNorm and a pooling in each stage, and two linear layers, on 16×16 images."""
    modules: list[nn.Module] = []
    inputs = 3
    for width in widths:
        for _ in range(2):
            modules += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            inputs = width
        modules.append(nn.MaxPool2d(2))
    flat = inputs * (16 // 2 ** len(widths)) ** 2
    head = [nn.Flatten(), nn.Linear(flat, 64), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(64, classes)]
    return nn.Sequential(*modules, *head)


def cnn(classes: int = 10) -> nn.Sequential:
    """PyTorch's MNIST example, narrower: two convolutions, a pooling, dropout and two linear layers."""
    return named(conv1=nn.Conv2d(1, 8, 3), act1=nn.ReLU(), conv2=nn.Conv2d(8, 16, 3), act2=nn.ReLU(),
                 pool=nn.MaxPool2d(2), drop1=nn.Dropout(0.25), flatten=nn.Flatten(), fc1=nn.Linear(576, 64),
                 act3=nn.ReLU(), drop2=nn.Dropout(0.5), fc2=nn.Linear(64, classes))  # fmt: skip


class Recurrent(nn.Module):
    """Embedding, two LSTM or GRU layers, and a head on every position."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], vocabulary: int = 24, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


def autoencoder() -> nn.Sequential:
    """64-32-8-32-64 with pixels in [0, 1] at both ends."""
    return named(fc1=nn.Linear(64, 32), act1=nn.ReLU(), code=nn.Linear(32, 8), fc3=nn.Linear(8, 32), act3=nn.ReLU(),
                 out=nn.Linear(32, 64), sigmoid=nn.Sigmoid())  # fmt: skip


class VAE(nn.Module):
    """64-64-8-64-64; gives the logits of the pixels, and mean and log-variance of the code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


def vae_loss(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    """The negative evidence lower bound, a mean over the batch."""
    logits, mean, log_variance = outputs
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (reconstruction + divergence) / len(x)


class Words(nn.Module):
    """A bag of word vectors and a linear layer."""

    def __init__(self, vocabulary: int = 200, classes: int = 4) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, 32)
        self.out = nn.Linear(32, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.bag(tokens))


def discriminator() -> nn.Sequential:
    """DCGAN's, for 16×16 images: strided convolutions, LeakyReLU, BatchNorm after all but the first; N(0, 0.02)."""
    model = named(conv1=nn.Conv2d(1, 16, 4, 2, 1, bias=False), act1=nn.LeakyReLU(0.2, inplace=True),
                  conv2=nn.Conv2d(16, 32, 4, 2, 1, bias=False), bn2=nn.BatchNorm2d(32),
                  act2=nn.LeakyReLU(0.2, inplace=True), out=nn.Conv2d(32, 1, 4, 1, 0, bias=False),
                  flatten=nn.Flatten())  # fmt: skip
    for module in model:
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, 0.02)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
    return model


class LogitsOf(nn.Module):
    """A Hugging Face model whose logits are all that the loss sees."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids=tokens).logits
        return logits


def bert(classes: int = 8) -> nn.Module:
    """A BERT of two layers with its own initialization; it needs transformers."""
    library = transformers()
    config = library.BertConfig(vocab_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                intermediate_size=128, max_position_embeddings=16, num_labels=classes)  # fmt: skip
    return LogitsOf(library.BertForSequenceClassification(config))
