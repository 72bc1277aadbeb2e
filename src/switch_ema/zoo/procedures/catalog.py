"""The paper's training procedures by name, and the default for each network."""

from collections.abc import Callable

from switch_ema.bench.errors import UsageError
from switch_ema.bench.spec import parse_spec
from switch_ema.zoo.models.catalog import NETWORKS
from switch_ema.zoo.procedures.cifar import cifar100
from switch_ema.zoo.procedures.fitted import fitted
from switch_ema.zoo.procedures.imagenet import (
    adan,
    convnext,
    deit,
    lars,
    moganet,
    pytorch,
    rsb_a2,
    rsb_a3,
    sam,
)
from switch_ema.zoo.procedures.procedure import TrainingProcedure, unaugmented
from switch_ema.zoo.procedures.small import small

PROCEDURES: dict[str, Callable[[], TrainingProcedure]] = {
    "pytorch": pytorch,
    "sam": sam,
    "deit": deit,
    "convnext": convnext,
    "moganet": moganet,
    "rsb-a2": rsb_a2,
    "rsb-a3": rsb_a3,
    "adan": adan,
    "lars": lars,
}
"""The procedures that do not depend on the network; ``cifar100`` does."""

CIFAR = "cifar100"
NAMES = (*PROCEDURES, CIFAR)
SCALES = ("paper", "small", "fitted")


def create_procedure(
    name: str, *, network: str, scale: str = "paper", augment: bool = True
) -> TrainingProcedure:
    """Return a procedure by name.

    Args:
        name: One of ``NAMES``.
        network: A key of ``NETWORKS``; ``cifar100`` depends on it.
        scale: ``paper``; ``small`` to train the small network briefly with the same
            optimizer; or ``fitted`` to train it longer, in the paper's regime.
        augment: Whether to augment training images.

    >>> create_procedure("rsb-a2", network="resnet50").epochs
    300
    >>> create_procedure("rsb-a2", network="resnet50", scale="small").epochs < 30
    True
    """
    for key, value, known in (
        ("procedure", name, NAMES),
        ("network", network, tuple(NETWORKS)),
        ("scale", scale, SCALES),
    ):
        if value not in known:
            raise UsageError(f"{key} must be one of {', '.join(known)}, got {value!r}.")
    procedure = cifar100(network) if name == CIFAR else PROCEDURES[name]()
    if scale == "small":
        procedure = small(parse_spec(procedure.optimizer).name, network)
    elif scale == "fitted":
        procedure = fitted(procedure, network, augment=augment)
    return procedure if augment else unaugmented(procedure)


def default_procedure(network: str, dataset: str) -> str:
    """Return the paper's procedure for a network; AdamW if it uses several."""
    if dataset != "imagenet":
        return CIFAR
    if network.startswith(("swin", "convnext")):
        return "convnext"
    if network.startswith("moganet"):
        return "moganet"
    return "deit" if network.startswith(("deit", "mlp-mixer")) else "pytorch"
