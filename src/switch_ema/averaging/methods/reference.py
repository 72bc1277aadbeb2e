"""The methods again, slow and obviously right: the oracle of the tests.

Each class follows its paper tensor by tensor, in plain Python over a dictionary of
weights, without hooks, buffers or in-place arithmetic. ``after_step`` and
``after_epoch`` take the live weights and return the ones to train on with.
"""

from collections.abc import Callable

from torch import Tensor

Weights = dict[str, Tensor]


class Reference:
    """A method that keeps ``shadow`` and may replace the live weights."""

    def __init__(self, live: Weights) -> None:
        self.shadow = dict(live)
        self.steps = 0
        self.epochs = 0

    def after_step(self, live: Weights) -> Weights:
        """One optimizer step has happened."""
        self.steps += 1
        return live

    def after_epoch(self, live: Weights) -> Weights:
        """One epoch has ended."""
        self.epochs += 1
        return live

    def average(self, live: Weights, decay: float) -> None:
        """``shadow = d * shadow + (1 - d) * live``."""
        self.shadow = {
            name: decay * self.shadow[name] + (1 - decay) * live[name] for name in live
        }


class LateReference(Reference):
    """A method that begins after some steps or epochs, and is the live model before."""

    def __init__(
        self, live: Weights, start_steps: int = 0, start_epochs: int = 0
    ) -> None:
        super().__init__(live)
        self.start_steps, self.start_epochs = start_steps, start_epochs
        self.began: int | None = None if start_steps or start_epochs else 0

    def begin(self, live: Weights) -> None:
        """Take the live weights; the average begins with them if it is time."""
        self.shadow = dict(live)
        is_time = self.steps >= self.start_steps and self.epochs >= self.start_epochs
        self.began = self.steps if is_time else None

    def after_epoch(self, live: Weights) -> Weights:
        """Begin, perhaps."""
        super().after_epoch(live)
        if self.began is None:
            self.begin(live)
        return live


class ReferenceEMA(LateReference):
    """Average at every k-th step."""

    def __init__(
        self,
        live: Weights,
        decay: Callable[[int], float],
        every: int = 1,
        **start: int,
    ) -> None:
        super().__init__(live, **start)
        self.decay, self.every = decay, every

    def after_step(self, live: Weights) -> Weights:
        """Average with ``d(n) ** k``, where n counts steps from 0 since the start."""
        super().after_step(live)
        if self.began is None:
            self.begin(live)
        elif self.steps % self.every == 0:
            n = self.steps - 1 - self.began
            self.average(live, self.decay(n) ** self.every)
        return live


class ReferenceSwitchEMA(ReferenceEMA):
    """An EMA that training continues from after every ``switch_every`` epochs."""

    def __init__(
        self,
        live: Weights,
        decay: Callable[[int], float],
        every: int = 1,
        switch_every: int = 1,
    ) -> None:
        super().__init__(live, decay, every)
        self.switch_every = switch_every

    def after_epoch(self, live: Weights) -> Weights:
        """The line that Algorithm 1 adds."""
        super().after_epoch(live)
        return dict(self.shadow) if self.epochs % self.switch_every == 0 else live


class ReferenceSWA(Reference):
    """The mean of the weights at the ends of the epochs after ``start``."""

    def __init__(self, live: Weights, start: int = 0) -> None:
        super().__init__(live)
        self.start = start
        self.taken: list[Weights] = []

    def after_epoch(self, live: Weights) -> Weights:
        """Add the weights and take the mean of all."""
        super().after_epoch(live)
        if self.epochs > self.start:
            self.taken.append(dict(live))
            self.shadow = mean(self.taken)
        return live


class ReferenceLAWA(Reference):
    """The mean of the weights at the ends of the last k epochs."""

    def __init__(self, live: Weights, k: int) -> None:
        super().__init__(live)
        self.k = k
        self.taken: list[Weights] = []

    def after_epoch(self, live: Weights) -> Weights:
        """Add the weights and take the mean of the last k."""
        super().after_epoch(live)
        self.taken.append(dict(live))
        self.shadow = mean(self.taken[-self.k :])
        return live


class ReferencePSWA(Reference):
    """A mean over each period of epochs, from which training continues."""

    def __init__(self, live: Weights, period: int) -> None:
        super().__init__(live)
        self.period = period
        self.taken: list[Weights] = []

    def after_epoch(self, live: Weights) -> Weights:
        """Add the weights; at the end of a period continue from their mean."""
        super().after_epoch(live)
        self.taken.append(dict(live))
        self.shadow = mean(self.taken)
        if self.epochs % self.period:
            return live
        self.taken = []
        return dict(self.shadow)


class ReferenceLookahead(Reference):
    """Slow weights that follow the fast ones every k steps."""

    def __init__(self, live: Weights, k: int, alpha: float) -> None:
        super().__init__(live)
        self.k, self.alpha = k, alpha

    def after_step(self, live: Weights) -> Weights:
        """Move the slow weights by alpha and restart the fast ones there."""
        super().after_step(live)
        if self.steps % self.k:
            return live
        self.average(live, 1 - self.alpha)
        return dict(self.shadow)


class ReferenceEq3(Reference):
    """Equation 3: the averaged iterate is the live one, except every T-th."""

    def __init__(self, live: Weights, decay: float, every: int) -> None:
        super().__init__(live)
        self.decay, self.every = decay, every

    def after_step(self, live: Weights) -> Weights:
        """Keep the optimizer's iterate at multiples of T, else average it."""
        super().after_step(live)
        if self.steps % self.every == 0:
            self.shadow = dict(live)
        else:
            self.average(live, self.decay)
        return dict(self.shadow)


class ReferenceSnoo(Reference):
    """An outer SGD with Nesterov momentum on the difference after k steps."""

    def __init__(
        self,
        live: Weights,
        parameters: set[str],
        k: int,
        alpha: float,
        momentum: float,
    ) -> None:
        super().__init__(live)
        self.parameters, self.k = parameters, k
        self.alpha, self.momentum = alpha, momentum
        self.velocity = {name: 0 * live[name] for name in parameters}

    def after_step(self, live: Weights) -> Weights:
        """``v = m v + g; p -= alpha (g + m v)`` as torch's SGD has it."""
        super().after_step(live)
        if self.steps % self.k:
            return live
        slow = dict(self.shadow)
        self.average(live, 1 - self.alpha)
        for name in self.parameters:
            gradient = slow[name] - live[name]
            self.velocity[name] = self.momentum * self.velocity[name] + gradient
            outer = gradient + self.momentum * self.velocity[name]
            self.shadow[name] = slow[name] - self.alpha * outer
        return dict(self.shadow)


class ReferenceElasticReset(ReferenceEMA):
    """Switch EMA after every n steps, whose shadow then begins anew."""

    def __init__(
        self, live: Weights, decay: Callable[[int], float], switch_every: int
    ) -> None:
        super().__init__(live, decay)
        self.initial, self.switch_every = dict(live), switch_every

    def after_step(self, live: Weights) -> Weights:
        """Continue from the average, which goes back to the initial weights."""
        super().after_step(live)
        if self.steps % self.switch_every:
            return live
        average, self.shadow = self.shadow, dict(self.initial)
        return average


class ReferencePACE(Reference):
    """A pull towards the average at every step."""

    def __init__(
        self,
        live: Weights,
        parameters: set[str],
        rate: float,
        strength: float,
        kappa: float,
    ) -> None:
        super().__init__(live)
        self.parameters, self.before = parameters, dict(live)
        self.rate, self.strength, self.kappa = rate, strength, kappa
        self.roots: dict[str, Tensor] = {}
        """``sqrt(v) + eps`` by name, where the optimizer is Adam."""

    def after_step(self, live: Weights) -> Weights:
        """The three lines of the paper's update, after the optimizer's own."""
        super().after_step(live)
        weight = max((1 + self.steps) ** -self.kappa, 1e-4)
        for name in self.parameters:
            pull = (
                self.rate
                * self.strength
                * weight
                / self.roots.get(name, 1 + 0 * live[name])
            )
            way = self.shadow[name] - self.before[name]
            live[name] = live[name] + pull.clamp(max=1) * way
        self.average(live, 1 - weight)
        self.before = dict(live)
        return live


class ReferenceBEMA(Reference):
    """An EMA with a share of the way from the initial weights."""

    def __init__(
        self,
        live: Weights,
        parameters: set[str],
        kappa: float,
        eta: float,
        rho: float,
        gamma: float,
    ) -> None:
        super().__init__(live)
        self.parameters, self.initial = parameters, dict(live)
        self.kappa, self.eta, self.rho, self.gamma = kappa, eta, rho, gamma
        self.mean = dict(live)

    def after_step(self, live: Weights) -> Weights:
        """``beta = age^-kappa`` averages, ``alpha = age^-eta`` corrects."""
        super().after_step(live)
        age = self.rho + self.gamma * self.steps
        beta, alpha = age**-self.kappa, age**-self.eta
        for name in live:
            self.mean[name] = (1 - beta) * self.mean[name] + beta * live[name]
            way = live[name] - self.initial[name]
            corrects = name in self.parameters
            self.shadow[name] = self.mean[name] + alpha * way * corrects
        return live


class ReferenceTailEMA(LateReference):
    """A mixture of the live weights and their EMA."""

    def __init__(
        self,
        live: Weights,
        parameters: set[str],
        decay: Callable[[int], float],
        share: float,
        **start: int,
    ) -> None:
        super().__init__(live, **start)
        self.parameters, self.decay, self.share = parameters, decay, share
        self.mean = dict(live)

    def begin(self, live: Weights) -> None:
        """Begin the EMA, too."""
        super().begin(live)
        self.mean = dict(live)

    def after_step(self, live: Weights) -> Weights:
        """``(1 - share) live + share ema``; buffers are the EMA's."""
        super().after_step(live)
        if self.began is None:
            self.begin(live)
            return live
        decay = self.decay(self.steps - 1 - self.began)
        for name in live:
            self.mean[name] = decay * self.mean[name] + (1 - decay) * live[name]
            share = self.share if name in self.parameters else 1.0
            self.shadow[name] = (1 - share) * live[name] + share * self.mean[name]
        return live


def mean(taken: list[Weights]) -> Weights:
    """Average sets of weights equally."""
    return {
        name: sum((weights[name] for weights in taken[1:]), taken[0][name]) / len(taken)
        for name in taken[0]
    }
