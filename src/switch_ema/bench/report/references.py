"""References of methods and tests: author-year citations with BibTeX entries."""

from dataclasses import dataclass

from switch_ema.bench.method_names import base_name
from switch_ema.bench.spec import parse_method_spec


@dataclass(frozen=True)
class Publication:
    """One publication."""

    key: str
    """The BibTeX key."""
    cited: str
    """Authors and year, as in a sentence."""
    authors: str
    title: str
    venue: str
    """A BibTeX field with the journal, the proceedings or the preprint."""

    @property
    def bibtex(self) -> str:
        """The BibTeX entry."""
        kind = "inproceedings" if self.venue.startswith("booktitle") else "article"
        year = self.cited.rpartition(", ")[2]
        return (
            f"@{kind}{{{self.key},\n"
            f"  author = {{{self.authors}}},\n"
            f"  title = {{{self.title}}},\n"
            f"  {self.venue},\n"
            f"  year = {{{year}}}\n"
            "}"
        )


def _preprint(number: str) -> str:
    return f"journal = {{arXiv preprint arXiv:{number}}}"


def _talk(proceedings: str) -> str:
    return f"booktitle = {{{proceedings}}}"


def _paper(journal: str, volume: str, pages: str) -> str:
    return f"journal = {{{journal}}}, volume = {{{volume}}}, pages = {{{pages}}}"


_NEURIPS = "Advances in Neural Information Processing Systems"

_SWITCH_EMA = Publication(
    "li2024switchema",
    "Li et al., 2024",
    "Li, Siyuan and Liu, Zicheng and Tian, Juanxi and Wang, Ge and Wang, Zedong and "
    "Jin, Weiyang and Wu, Di and Tan, Cheng and Lin, Tao and Liu, Yang and Sun, Baigui "
    "and Li, Stan Z.",
    "Switch {EMA}: A Free Lunch for Better Flatness and Sharpness",
    _preprint("2402.09240"),
)
_BY_METHOD = {
    "ema": Publication(
        "polyak1992averaging",
        "Polyak and Juditsky, 1992",
        "Polyak, Boris T. and Juditsky, Anatoli B.",
        "Acceleration of Stochastic Approximation by Averaging",
        _paper("SIAM Journal on Control and Optimization", "30", "838--855"),
    ),
    "switch-ema": _SWITCH_EMA,
    "literal-eq3": _SWITCH_EMA,
    "swa": Publication(
        "izmailov2018averaging",
        "Izmailov et al., 2018",
        "Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, "
        "Dmitry and Wilson, Andrew Gordon",
        "Averaging Weights Leads to Wider Optima and Better Generalization",
        _talk("Conference on Uncertainty in Artificial Intelligence"),
    ),
    "lookahead": Publication(
        "zhang2019lookahead",
        "Zhang et al., 2019",
        "Zhang, Michael R. and Lucas, James and Hinton, Geoffrey and Ba, Jimmy",
        "Lookahead Optimizer: k Steps Forward, 1 Step Back",
        _talk(_NEURIPS),
    ),
    "lawa": Publication(
        "kaddour2022stop",
        "Kaddour, 2022",
        "Kaddour, Jean",
        "Stop Wasting My Time! Saving Days of {ImageNet} and {BERT} Training with "
        "Latest Weight Averaging",
        _preprint("2209.14981"),
    ),
    "pswa": Publication(
        "guo2022stochastic",
        "Guo et al., 2022",
        "Guo, Hao and Jin, Jiyong and Liu, Bin",
        "Stochastic Weight Averaging Revisited",
        _preprint("2201.00519"),
    ),
    "posthoc-ema": Publication(
        "karras2024analyzing",
        "Karras et al., 2024",
        "Karras, Tero and Aittala, Miika and Lehtinen, Jaakko and Hellsten, Janne and "
        "Aila, Timo and Laine, Samuli",
        "Analyzing and Improving the Training Dynamics of Diffusion Models",
        _talk("IEEE/CVF Conference on Computer Vision and Pattern Recognition"),
    ),
    "snoo": Publication(
        "kallusky2025snoo",
        "Kallusky et al., 2025",
        "Kallusky, Dominik and Rao, Vinay and Nandavanam, Vishal and Shi, Hao-Jun "
        "Michael",
        "{SNOO}: Step-{K} {Nesterov} Outer Optimizer - The Surprising Effectiveness of "
        "{Nesterov} Momentum Applied to Pseudo-Gradients",
        _preprint("2510.15830"),
    ),
    "pace": Publication(
        "au2026training",
        "Au and Block, 2026",
        "Au, Kwok Chun and Block, Adam",
        "Training for the Model You Return: Improving Optimization for "
        "Iterate-Averaged Language Models",
        _preprint("2606.25086"),
    ),
    "elastic-reset": Publication(
        "noukhovitch2023elastic",
        "Noukhovitch et al., 2023",
        "Noukhovitch, Michael and Lavoie, Samuel and Strub, Florian and Courville, "
        "Aaron",
        "Language Model Alignment with Elastic Reset",
        _talk(_NEURIPS),
    ),
    "bema": Publication(
        "block2025ema",
        "Block and Zhang, 2025",
        "Block, Adam and Zhang, Cyril",
        "{EMA} Without the Lag: Bias-Corrected Iterate Averaging Schemes",
        _preprint("2508.00180"),
    ),
    "swag": Publication(
        "maddox2019simple",
        "Maddox et al., 2019",
        "Maddox, Wesley J. and Garipov, Timur and Izmailov, Pavel and Vetrov, Dmitry "
        "and Wilson, Andrew Gordon",
        "A Simple Baseline for {Bayesian} Uncertainty in Deep Learning",
        _talk(_NEURIPS),
    ),
}
T_TEST = Publication(
    "student1908probable",
    "Student, 1908",
    "Student",
    "The Probable Error of a Mean",
    _paper("Biometrika", "6", "1--25"),
)
WELCH = Publication(
    "welch1947generalization",
    "Welch, 1947",
    "Welch, B. L.",
    "The Generalization of ``{Student}'s'' Problem when Several Different Population "
    "Variances are Involved",
    _paper("Biometrika", "34", "28--35"),
)
HOLM = Publication(
    "holm1979simple",
    "Holm, 1979",
    "Holm, Sture",
    "A Simple Sequentially Rejective Multiple Test Procedure",
    _paper("Scandinavian Journal of Statistics", "6", "65--70"),
)
SKEW = Publication(
    "hall1992removal",
    "Hall, 1992",
    "Hall, Peter",
    "On the Removal of Skewness by Transformation",
    _paper("Journal of the Royal Statistical Society B", "54", "221--228"),
)
SEQUENTIAL = Publication(
    "wang2023anytime",
    "Wang and Ramdas, 2023",
    "Wang, Hongjian and Ramdas, Aaditya",
    "Anytime-Valid t-Tests and Confidence Sequences for Gaussian Means with Unknown "
    "Variance",
    _preprint("2310.03722"),
)
EQUIVALENCE = Publication(
    "schuirmann1987comparison",
    "Schuirmann, 1987",
    "Schuirmann, Donald J.",
    "A Comparison of the Two One-Sided Tests Procedure and the Power Approach for "
    "Assessing the Equivalence of Average Bioavailability",
    _paper("Journal of Pharmacokinetics and Biopharmaceutics", "15", "657--680"),
)


def reference_of(method: str) -> Publication | None:
    """Return the paper of a method as typed; None if it has none.

    >>> reference_of("ema+best:decay=0.9").cited
    'Polyak and Juditsky, 1992'
    """
    return _BY_METHOD.get(base_name(parse_method_spec(method).name))
