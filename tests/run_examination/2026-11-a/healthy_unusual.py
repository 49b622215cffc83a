"""Healthy runs of other kinds: rewards, pretrained networks, a second-order method."""

from __future__ import annotations

import copy

import data
import torch
import torch.nn.functional as F
from program import Record, healthy
from torch import nn


class Grid:
    """Many 5x5 rooms at once: walk from a random place to the goal (given) in at most 10 moves, -0.05 a move, +1 there."""

    def __init__(self, count: int, g: torch.Generator) -> None:
        self.g, self.count = g, count
        self.moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def reset(self) -> torch.Tensor:
        self.place = torch.randint(5, (self.count, 2), generator=self.g)
        self.goal = torch.randint(5, (self.count, 2), generator=self.g)
        self.done = (self.place == self.goal).all(1)
        return self.see()

    def see(self) -> torch.Tensor:
        return torch.cat([self.place, self.goal], 1).float() / 2 - 1

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        was_done = self.done
        self.place = torch.where(was_done[:, None], self.place, (self.place + self.moves[action]).clamp(0, 4))
        arrived = (self.place == self.goal).all(1) & ~was_done
        self.done = was_done | arrived
        return self.see(), torch.where(was_done, 0.0, -0.05) + arrived.float(), self.done


def policy_loss(logits: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    actions, advantages = targets
    log_p = F.log_softmax(logits, 1)
    entropy = -(log_p.exp() * log_p).sum(1).mean()
    return -(log_p.gather(1, actions[:, None])[:, 0] * advantages).mean() - 0.01 * entropy


@healthy("REINFORCE: the loss hovers around zero and means nothing, the reward rises", steps=2000)
def reinforce(record: Record) -> None:
    torch.manual_seed(121)
    g = torch.Generator().manual_seed(121)
    grid = Grid(16, g)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    recorder = record(policy, optimizer, policy_loss)
    rewards: list[float] = []
    for _ in range(2000):
        state = grid.reset()
        states, actions, gains, alive = [], [], [], []
        with torch.no_grad():
            for _ in range(10):
                action = torch.distributions.Categorical(logits=policy(state)).sample()
                alive.append(~grid.done)
                states.append(state)
                actions.append(action)
                state, gain, _ = grid.step(action)
                gains.append(gain)
        value = torch.zeros(16)
        returns = []
        for gain in reversed(gains):
            value = gain + 0.95 * value
            returns.insert(0, value)
        rewards.append(sum(r.mean().item() for r in gains))
        keep = torch.cat(alive)
        inputs, chosen, back = torch.cat(states)[keep], torch.cat(actions)[keep], torch.cat(returns)[keep]
        targets = (chosen, (back - back.mean()) / (back.std() + 1e-6))
        loss = policy_loss(policy(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
    data.SCORES["reinforce"] = -sum(rewards[-200:]) / 200


@healthy("DQN with replay and a target network copied every 100 steps: what it aims at moves, with a jump at every copy", steps=2000)
def dqn(record: Record) -> None:
    torch.manual_seed(122)
    g = torch.Generator().manual_seed(122)
    grid = Grid(8, g)
    online = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)

    def td_loss(q: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.smooth_l1_loss(q.gather(1, targets[0][:, None])[:, 0], targets[1])

    recorder = record(online, optimizer, td_loss)
    memory: list[tuple[torch.Tensor, ...]] = []
    state, moves, total = grid.reset(), 0, []
    earned = 0.0
    while len(memory) < 2032:
        explore = max(0.05, 1 - len(memory) / 1000)
        with torch.no_grad():
            action = online(state).argmax(1)
        dice = torch.rand(8, generator=g) < explore
        action = torch.where(dice, torch.randint(4, (8,), generator=g), action)
        was_done = grid.done.clone()
        after, reward, done = grid.step(action)
        memory.append((state, action, reward, after, done.clone(), ~was_done))
        earned += reward.mean().item()
        state, moves = after, moves + 1
        if moves == 10:
            total.append(earned)
            state, moves, earned = grid.reset(), 0, 0.0
        if len(memory) <= 32:
            continue
        chosen = [memory[int(i)] for i in torch.randint(len(memory), (12,), generator=g)]
        s, a, r, s2, d, valid = (torch.cat(part) for part in zip(*chosen, strict=True))
        s, a, r, s2, d = s[valid], a[valid], r[valid], s2[valid], d[valid]
        with torch.no_grad():
            goal = r + 0.9 * (~d).float() * target(s2).max(1).values
        loss = td_loss(online(s), (a, goal))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (s, (a, goal)))
        if len(memory) % 100 == 0:
            target.load_state_dict(online.state_dict())
    data.SCORES["dqn"] = -sum(total[-40:]) / 40


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.bn2 = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))).flatten(1)


class Classifier(nn.Module):
    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(16 * 36, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def pretrain(seed: int) -> Classifier:
    images, labels = data.digits(4000, seed)
    model = Classifier(Backbone(), 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(400):
        pick = torch.randint(4000, (32,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[pick]), labels[pick]).backward()
        optimizer.step()
    return model


@healthy("Fine-tuning a pretrained network at a small rate on noisier images: the loss is low at once and falls little", steps=2000)
def fine_tuning(record: Record) -> None:
    torch.manual_seed(123)
    model = pretrain(81)
    images, labels = data.digits(8000, 82, noise=0.25)
    held, held_labels = data.digits(600, 83, noise=0.25)
    optimizer = torch.optim.AdamW(
        [
            {"params": model.backbone.parameters(), "lr": 5e-5},
            {"params": model.head.parameters(), "lr": 2e-4},
        ]
    )
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for step in range(2000):
        model.train()
        pick = torch.randint(8000, (32,))
        optimizer.zero_grad()
        loss = criterion(model(images[pick]), labels[pick])
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (images[pick], labels[pick]))
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                value = criterion(model(held), held_labels).item()
            recorder.validation(value)
    data.SCORES["fine_tuning"] = value


@healthy("A pretrained backbone frozen on purpose, its BatchNorm in eval mode; only a new head for odd/even learns", steps=2000)
def frozen_backbone(record: Record) -> None:
    torch.manual_seed(124)
    model = Classifier(pretrain(84).backbone, 2)
    for p in model.backbone.parameters():
        p.requires_grad = False
    images, labels = data.digits(6000, 85)
    held, held_labels = data.digits(600, 86)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.002, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for step in range(2000):
        model.train()
        model.backbone.eval()
        pick = torch.randint(6000, (32,))
        inputs, targets = images[pick], labels[pick] % 2
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 200 == 199:
            model.eval()
            with torch.no_grad():
                value = criterion(model(held), held_labels % 2).item()
            recorder.validation(value)
    data.SCORES["frozen_backbone"] = value


@healthy("LBFGS with closures on the whole data: few steps, each of many evaluations, the same batch always", steps=60)
def lbfgs(record: Record) -> None:
    torch.manual_seed(125)
    x, y = data.friedman(1000, 87, noise=0.3)
    held_x, held_y = data.friedman(1000, 88, noise=0.3)
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=10, history_size=10, line_search_fn="strong_wolfe")
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y) + 1e-4 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(60):
        loss = optimizer.step(closure)
        recorder.step(loss.item(), (x, y))
    with torch.no_grad():
        data.SCORES["lbfgs"] = criterion(model(held_x), held_y).item()
