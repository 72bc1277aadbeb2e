"""TD3 on a toy problem: target networks that are asked before they first move.

The critics learn at every step, the actor and all targets every second step only, so
the targets are used while the optimizers have already stepped. Actions should be the
negative of the state.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

RATE, DELAY = 0.005, 2


def network(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 1))


class CopiedTarget:
    """A target network as the paper's code has it: a copy, moved by hand."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.target = model, copy.deepcopy(model)

    def __call__(self, x: Tensor) -> Tensor:
        return self.target(x)

    @torch.no_grad()
    def update(self) -> None:
        pairs = zip(self.model.parameters(), self.target.parameters(), strict=True)
        for live, slow in pairs:
            slow.lerp_(live, RATE)

    def state(self) -> dict[str, Tensor]:
        return self.target.state_dict()


@contextmanager
def random_numbers(seed: int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def train(make_target: Callable[[nn.Module], CopiedTarget], steps: int = 20):
    """Train; return the targets of the critics and of the actor."""
    with random_numbers(0):
        critics, actor = network(2), network(1)
        critic_targets, actor_target = make_target(critics), make_target(actor)
        critic_steps = torch.optim.Adam(critics.parameters(), lr=0.01)
        actor_steps = torch.optim.Adam(actor.parameters(), lr=0.01)
        for step in range(1, steps + 1):
            state, action, after = torch.randn(3, 32, 1).unbind()
            reward = -((state + action) ** 2)
            with torch.no_grad():
                there = torch.cat([after, actor_target(after)], 1)
                goal = reward + 0.9 * critic_targets(there)
            guess = critics(torch.cat([state, action], 1))
            nn.functional.mse_loss(guess, goal).backward()
            critic_steps.step()
            critic_steps.zero_grad()
            if step % DELAY == 0:
                (-critics(torch.cat([state, actor(state)], 1)).mean()).backward()
                actor_steps.step()
                actor_steps.zero_grad()
                critic_steps.zero_grad()
                critic_targets.update()
                actor_target.update()
        return critic_targets, actor_target
