"""Reinforcement learning: a deep Q-network that balances a pole, with a replay memory and a target network."""

from __future__ import annotations

import copy
import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

STEPS, BATCH, LONGEST, GAMMA = 2500, 64, 200, 0.98


class Pole:
    """A pole on a cart that is pushed to the left or to the right; an episode ends when it falls."""

    def reset(self) -> list[float]:
        self.x, self.speed, self.angle, self.spin = (random.uniform(-0.05, 0.05) for _ in range(4))
        self.age = 0
        return [self.x, self.speed, self.angle, self.spin]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        force = (10.0 if action else -10.0) + 0.05 * self.spin**2 * math.sin(self.angle)
        pull = 9.8 * math.sin(self.angle) - math.cos(self.angle) * force / 1.1
        turn = pull / (0.5 * (4 / 3 - 0.1 * math.cos(self.angle) ** 2 / 1.1))
        push = force / 1.1 - 0.05 * turn * math.cos(self.angle) / 1.1
        self.x, self.speed = self.x + 0.02 * self.speed, self.speed + 0.02 * push
        self.angle, self.spin = self.angle + 0.02 * self.spin, self.spin + 0.02 * turn
        self.age += 1
        fell = abs(self.x) > 2.4 or abs(self.angle) > 0.21
        return [self.x, self.speed, self.angle, self.spin], 0.0 if fell else 1.0, fell


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: values [N, 1] are compared with goals [N]."""
    torch.manual_seed(0)
    random.seed(0)
    q_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target_net = copy.deepcopy(q_net)
    optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-3)
    memory: list[tuple[list[float], int, float, list[float], float]] = []

    def sample() -> list[Tensor]:
        return [torch.tensor(column) for column in zip(*random.sample(memory, BATCH), strict=True)]

    def td_loss(q_net: nn.Module, batch: list[Tensor]) -> Tensor:
        state, action, reward, following, done = batch
        value = q_net(state).gather(1, action[:, None])
        with torch.no_grad():
            goal = reward + GAMMA * (1 - done) * target_net(following).max(1).values
        return F.smooth_l1_loss(value if planted else value[:, 0], goal)

    pole, lengths = Pole(), [0]
    state = pole.reset()
    for step in range(STEPS):
        epsilon = max(0.05, 1 - step / 1000)
        greedy = int(q_net(torch.tensor(state)).argmax())
        action = random.randrange(2) if random.random() < epsilon else greedy
        following, reward, fell = pole.step(action)
        memory.append((state, action, reward, following, float(fell)))
        state = following
        lengths[-1] += 1
        if fell or lengths[-1] == LONGEST:
            state = pole.reset()
            lengths.append(0)
        if step == 500:
            replay = [sample() for _ in range(4)]
            diagnosis = wc.diagnose(wc.Problem.from_step(q_net, td_loss, replay), optimizer)
            print(diagnosis.verdict())
        if step >= 500:
            loss = td_loss(q_net, sample())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 100 == 0:
            target_net.load_state_dict(q_net.state_dict())
    mean = sum(lengths[-6:-1]) / 5
    print(f"the pole stands for {mean:.0f} steps")
    return diagnosis, 1 / mean


if __name__ == "__main__":
    main()
