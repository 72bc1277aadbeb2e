"""Names the tensors of an average that is stored as a list.

torch_ema and diffusers store the averages of ``model.parameters()`` in order, without
names. They get the names of a model's tensors with the same shapes; where several have
the same shape, those whose values are nearest, since an average is close to the live
weights.
"""

from collections.abc import Mapping, Sequence

import torch

from switch_ema.doctor.holdings import is_statistic
from switch_ema.doctor.reading import Leaf, sample

_SAMPLE = 4096
"""Numbers of each tensor that are compared."""


def name_list(tensors: Sequence[Leaf], model: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Return the tensors of a list by the names of a model.

    Raises:
        ValueError: the shapes do not fit, or values do not decide between two names.
    """
    names = [  # such a list has no buffers
        name
        for name, leaf in model.items()
        if leaf.info.dtype.is_floating_point and not is_statistic(name)
    ]
    shapes = [leaf.info.shape for leaf in tensors]
    in_order: dict[str, Leaf] | None = None
    if [model[name].info.shape for name in names] == shapes:
        in_order = dict(zip(names, tensors, strict=True))
        if _is_near_in_order(tensors, [model[name] for name in names]):
            return in_order
    try:
        return _by_value(tensors, names, model)
    except ValueError:
        if in_order is None:
            raise
        return in_order


def _by_value(
    tensors: Sequence[Leaf], names: Sequence[str], model: Mapping[str, Leaf]
) -> dict[str, Leaf]:
    shapes = [leaf.info.shape for leaf in tensors]
    result: dict[str, Leaf] = {}
    for shape in dict.fromkeys(shapes):
        listed = [leaf for leaf in tensors if leaf.info.shape == shape]
        known = [name for name in names if model[name].info.shape == shape]
        if len(known) < len(listed):
            raise ValueError(
                f"The list has {len(listed)} tensors of shape {list(shape)}, the model "
                f"{len(known)}."
            )
        result |= _nearest(listed, {name: model[name] for name in known})
    return {name: result[name] for name in names if name in result}


def _is_near_in_order(tensors: Sequence[Leaf], known: Sequence[Leaf]) -> bool:
    """Whether each tensor is nearest to its own place among those of its shape.

    Files that sort their names have another order than the model.
    """
    for shape in dict.fromkeys(leaf.info.shape for leaf in tensors):
        mine = [i for i, leaf in enumerate(tensors) if leaf.info.shape == shape]
        distances = _distances([tensors[i] for i in mine], [known[i] for i in mine])
        own = distances.diagonal()
        if (own > distances.min(dim=1).values + 1e-6 * distances.mean()).any():
            return False
    return True


def _nearest(tensors: Sequence[Leaf], known: Mapping[str, Leaf]) -> dict[str, Leaf]:
    distances = _distances(tensors, list(known.values()))
    names, chosen = list(known), distances.argmin(dim=1).tolist()
    if len(set(chosen)) < len(chosen):
        raise ValueError(
            "Values do not decide which names the tensors of shape "
            f"{list(tensors[0].info.shape)} have; give the live weights of the same "
            "checkpoint with like (--like)."
        )
    return {names[i]: leaf for i, leaf in zip(chosen, tensors, strict=True)}


def _distances(tensors: Sequence[Leaf], known: Sequence[Leaf]) -> torch.Tensor:
    rows, columns = (
        torch.stack([sample(leaf, _SAMPLE) for leaf in leaves])
        for leaves in (tensors, known)
    )
    return torch.cdist(rows, columns, compute_mode="donot_use_mm_for_euclid_dist")
