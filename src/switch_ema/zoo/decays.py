"""The paper's decays for EMA and Switch EMA (its Tables A1 and A2)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Decays:
    """Decays of both methods in one setting."""

    ema: float
    switch_ema: float

    def options(self) -> dict[str, dict[str, float]]:
        """Return method options in the form a recipe uses.

        >>> Decays(0.9, 0.99).options()
        {'ema': {'decay': 0.9}, 'switch-ema': {'decay': 0.99}}
        """
        return {"ema": {"decay": self.ema}, "switch-ema": {"decay": self.switch_ema}}


DECAYS: dict[tuple[str, str], Decays] = {
    # Table A1
    ("cifar100", "classification"): Decays(0.99, 0.99),
    ("cifar100", "contrastive"): Decays(0.999, 0.999),
    ("cifar100", "masked"): Decays(0.9, 0.999),
    ("stl10", "contrastive"): Decays(0.9999, 0.999),
    ("stl10", "masked"): Decays(0.999, 0.999),
    ("imagenet", "classification"): Decays(0.9999, 0.999),
    ("imagenet", "contrastive"): Decays(0.99996, 0.9999),
    ("imagenet", "masked"): Decays(0.999, 0.999),
    ("cifar10", "generation"): Decays(0.9999, 0.9999),
    ("celeba", "generation"): Decays(0.9999, 0.9999),
    ("coco", "detection"): Decays(0.9999, 0.999),
    ("coco", "segmentation"): Decays(0.9999, 0.999),
    # Table A2
    ("rcf-mnist", "regression"): Decays(0.999, 0.999),
    ("agedb", "regression"): Decays(0.999, 0.999),
    ("imdb-wiki", "regression"): Decays(0.999, 0.999),
    ("moving-mnist", "video"): Decays(0.999, 0.999),
    ("penn-treebank", "language"): Decays(0.9999, 0.999),
    ("yelp", "classification"): Decays(0.9999, 0.999),
    ("wikitext103", "language"): Decays(0.9999, 0.999),
}
"""By data and kind of training."""
