"""What can be wrong with an average: evidence, meaning, likely cause and fix."""

from collections.abc import Sequence
from dataclasses import dataclass

from switch_ema._checks import listed


@dataclass(frozen=True)
class Fault:
    """A kind of fault, as explained to people."""

    name: str
    meaning: str
    cause: str
    fix: str


@dataclass(frozen=True)
class Finding:
    """A fault that was found in a checkpoint or during training."""

    fault: Fault
    evidence: str
    """In numbers."""
    tensors: tuple[str, ...] = ()
    """Concerned tensors; empty: the whole average."""

    def __str__(self) -> str:
        where = f" ({listed(self.tensors, most=3)})" if self.tensors else ""
        return f"{self.fault.name}{where}: {self.evidence}"


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "equal to live",
            "The average has the live weights' values, so nothing is averaged.",
            "The live weights were saved in place of the average, the decay is 0 or "
            "inverted, or the average was reset just before saving.",
            "Save the average's own state dict; check that the decay is near 1.",
        ),
        Fault(
            "frozen",
            "The average did not move while the live weights did.",
            "update() is never called, the optimizer is not the one that is hooked, or "
            "names do not match because of prefixes such as module. or _orig_mod.",
            "Call update() after each optimizer step, on the unwrapped model.",
        ),
        Fault(
            "frozen tensors",
            "Some tensors of the average did not move while the live ones did.",
            "They were replaced or added after the average was made, or a filter or a "
            "name prefix leaves them out.",
            "Make the average after the model is complete, and compare the names.",
        ),
        Fault(
            "initial weights",
            "The average still consists mostly of its initial weights.",
            "The decay is too close to 1 for the number of updates, without a warm-up.",
            "Use a warm-up of the decay (count_warmup), or a smaller decay.",
        ),
        Fault(
            "moving away",
            "The average moved away from the live weights.",
            "The two weights of the update have the wrong sign, or another model is "
            "averaged.",
            "The rule is shadow = decay * shadow + (1 - decay) * live.",
        ),
        Fault(
            "names",
            "Names of the average and of the model do not match.",
            "A prefix of a wrapper, another model, or layers that were renamed.",
            "Take both state dicts from the unwrapped model.",
        ),
        Fault(
            "stale buffers",
            "Running statistics of the average did not change while the live ones did.",
            "Only parameters are averaged, and buffers are never copied.",
            "Copy or average the buffers (use_buffers=True in torch), or recompute "
            "them with recalibrate() or update_bn().",
        ),
        Fault(
            "averaged integers",
            "Integer buffers, such as counters, were averaged.",
            "The average treats every value of the state dict alike.",
            "Copy integer buffers.",
        ),
        Fault(
            "not finite",
            "The weights have NaN or infinite values.",
            "Training diverged; an average never forgets a NaN.",
            "Resume from the last finite checkpoint, and skip non-finite steps.",
        ),
        Fault(
            "stalled",
            "Most numbers of the average no longer change: their updates are smaller "
            "than half a unit in the last place of its dtype.",
            "The average is kept in bfloat16 or float16 with a decay near 1.",
            "Keep the average in float32, or use dtype=torch.bfloat16 of switch-ema, "
            "which rounds stochastically.",
        ),
        Fault(
            "inverted decay",
            "The average follows the live weights almost at once.",
            "decay and 1 - decay are exchanged.",
            "The decay is the weight of the old average, such as 0.999.",
        ),
        Fault(
            "other decay",
            "The decay in force is not the declared one.",
            "update() runs for each micro-batch, only every k-th step without "
            "decay**k, or with another setting; or a warm-up is not over yet.",
            "Update once per optimizer step, or convert the decay.",
        ),
        Fault(
            "uneven decay",
            "Tensors of one average have different decays.",
            "Tied weights are averaged once under each of their names, or several "
            "optimizers update parts of the model at different rates.",
            "Average each tensor once per step.",
        ),
        Fault(
            "restarted",
            "The average jumped to the live weights between checkpoints.",
            "The average was not restored on resuming, or its warm-up began again.",
            "Save and load the average's state dict, with its update counter.",
        ),
        Fault(
            "exchanged",
            "What is stored as live weights behaves as the average, and vice versa.",
            "The checkpoint was written while the model showed the average.",
            "Save the live weights (live_state_dict()), or save outside averaged().",
        ),
        Fault(
            "not an average",
            "The movement of the average is not explained by any decay.",
            "Another model, noise, or an update that is not a moving average.",
            "Check that both parts belong to the same run.",
        ),
    )
}
"""By name."""


def found(name: str, evidence: str, tensors: Sequence[str] = ()) -> Finding:
    """Return a finding of a known fault."""
    return Finding(FAULTS[name], evidence, tuple(tensors))
