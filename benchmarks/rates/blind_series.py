"""Data that evolves in time: series to forecast, tagged text, a replay buffer, a damped oscillation."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from benchmarks.rates.data import Shuffled

WORDS, TAGS, STYLES = 30, 6, 4
DAMPING, FREQUENCY = 1.0, 10.0
DISCOUNT = 0.95


def passengers(size: int, window: int = 20, ahead: int = 4) -> Shuffled:
    """Windows of a monthly series with a trend and seasons, scaled to [0, 1], and its next values."""
    generator = torch.Generator().manual_seed(21)
    month = torch.arange(2400.0)
    level = 1 + month / 1200
    noise, errors = torch.zeros(2400), torch.randn(2400, generator=generator)
    for i in range(1, 2400):
        noise[i] = 0.7 * noise[i - 1] + 0.1 * errors[i]
    year = 2 * math.pi * month / 12
    series = level * (1 + 0.4 * year.sin() + 0.2 * (2 * year + 1).cos()) + noise
    series = (series - series.min()) / (series.max() - series.min())
    windows = series.unfold(0, window + ahead, 1)
    return Shuffled((windows[:, :window, None].contiguous(), windows[:, window:].contiguous()), size)


def demand(size: int, window: int = 24) -> Shuffled:
    """Windows of many series whose spread grows with their level, and the next value."""
    generator = torch.Generator().manual_seed(22)
    count = 4096
    time = torch.arange(window + 1.0)
    phase, period = 6.3 * torch.rand(count, 1, generator=generator), 5 + 9 * torch.rand(count, 1, generator=generator)
    level = (0.5 * torch.randn(count, 1, generator=generator)).exp()
    series = level * (1.5 + (2 * math.pi * time / period + phase).sin())
    series = series * (0.25 * torch.randn(series.shape, generator=generator)).exp()
    return Shuffled((series[:, None, :-1].contiguous(), series[:, -1:].contiguous()), size)


def tagged(size: int, sentences: int = 2048, length: int = 10) -> Shuffled:
    """Words, and their tags; a word can have several tags, and tags follow one another by rules."""
    generator = torch.Generator().manual_seed(23)
    follows = torch.randn(TAGS, TAGS, generator=generator).mul(2).softmax(-1)
    emitted = torch.randn(TAGS, WORDS, generator=generator).mul(1.5).softmax(-1)
    tags = torch.randint(0, TAGS, (sentences, 1), generator=generator)
    for _ in range(length - 1):
        tags = torch.cat([tags, torch.multinomial(follows[tags[:, -1]], 1, generator=generator)], 1)
    words = torch.multinomial(emitted[tags.flatten()], 1, generator=generator).reshape(tags.shape)
    return Shuffled((words, tags), size)


def styles(size: int, texts: int = 4096, length: int = 10) -> Shuffled:
    """Texts of four authors, who differ in the words that follow one another."""
    generator = torch.Generator().manual_seed(24)
    follows = torch.randn(STYLES, WORDS, WORDS, generator=generator).mul(1.5).softmax(-1)
    y = torch.randint(0, STYLES, (texts,), generator=generator)
    words = torch.randint(0, WORDS, (texts, 1), generator=generator)
    for _ in range(length - 1):
        words = torch.cat([words, torch.multinomial(follows[y, words[:, -1]], 1, generator=generator)], 1)
    return Shuffled((words, y), size)


def pushed(state: Tensor, action: Tensor) -> Tensor:
    """States of a cart with a pole a fiftieth of a second after a push to the left (0) or to the right (1)."""
    place, speed, angle, turning = state.unbind(-1)
    force = 20.0 * action - 10
    inner = (force + 0.05 * turning.square() * angle.sin()) / 1.1
    bend = (9.8 * angle.sin() - angle.cos() * inner) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    pull = inner - 0.05 * bend * angle.cos() / 1.1
    return torch.stack([place + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turning, turning + 0.02 * bend], -1)


@cache
def experience(carts: int = 64, steps: int = 128) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, actions, next states and whether the pole fell, of a random policy."""
    generator = torch.Generator().manual_seed(25)
    state, rows = torch.zeros(carts, 4), []
    for _ in range(steps):
        action = torch.randint(0, 2, (carts,), generator=generator)
        after = pushed(state, action)
        fell = (after[:, 2].abs() > 0.21) | (after[:, 0].abs() > 2.4)
        rows.append((state, action, after, fell))
        begin = 0.1 * torch.rand(carts, 4, generator=generator) - 0.05
        state = torch.where(fell[:, None], begin, after)
    states, actions, afters, falls = (torch.cat(each) for each in zip(*rows, strict=True))
    return states, actions, afters, falls


@cache
def returns() -> Tensor:
    """What a fixed target network says that every transition is worth, after some rounds of fitted Q iteration."""
    state, action, after, fell = experience()
    generator = torch.Generator().manual_seed(26)
    weight, bias = torch.randn(4, 128, generator=generator), torch.randn(128, generator=generator)
    scale = state.std(0)
    hidden, later = (torch.tanh(each / scale @ weight + bias) for each in (state, after))
    solve = [torch.linalg.solve(h.T @ h + 10 * torch.eye(128), h.T) for h in (hidden[action == 0], hidden[action == 1])]
    worth = torch.ones(len(state))
    for _ in range(40):
        heads = torch.stack([solve[i] @ worth[action == i] for i in (0, 1)], 1)
        best = (later @ heads).amax(1).clamp(0, 1 / (1 - DISCOUNT))
        worth = 1 + DISCOUNT * best * ~fell
    return worth


def replay_buffer(size: int) -> Shuffled:
    """States, and two targets in one row: the action, and the reward plus the discounted worth of what followed."""
    state, action, _, _ = experience()
    return Shuffled((state, torch.stack([action.float(), returns()], 1)), size)


def oscillation(size: int, measured: int = 512) -> Shuffled:
    """Times from 0 to 1, and noisy displacements of a damped oscillator that begins at 1 and at rest."""
    generator = torch.Generator().manual_seed(27)
    time = torch.rand(measured, 1, generator=generator)
    fast = math.sqrt(FREQUENCY**2 - DAMPING**2)
    shift = math.atan(-DAMPING / fast)
    y = (-DAMPING * time).exp() * (fast * time + shift).cos() / math.cos(shift)
    return Shuffled((time, y + 0.05 * torch.randn(y.shape, generator=generator)), size)
