"""A paragraph on averaged weights for a model card."""

from switch_ema.averaging.offline.provenance import without_prefix
from switch_ema.doctor.holdings import Holdings

_METHODS = {
    "ema": "an exponential moving average (EMA) of the weights during training",
    "switch-ema": (
        "the exponential moving average of Switch EMA, from which training resumed "
        "after every epoch"
    ),
    "swa": "a uniform average of the weights at the end of training (SWA)",
}
"""What the averages are, by method."""


def model_card(holdings: Holdings) -> str:
    """Return what a file says about its weights, as Markdown sentences."""
    told = without_prefix(holdings.provenance)
    averages = holdings.of("average")
    if not averages and told.get("weights") != "merge":
        return (
            f"`{holdings.path.name}` does not say whether its weights are averaged, so "
            "there is nothing to tell in a model card."
        )
    facts = {**(dict(averages[0].facts) if averages else {}), **told}
    method = str(facts.get("method", ""))
    if facts.get("weights") == "merge":
        what = f"a merge of {facts.get('checkpoints', 'several')} checkpoints"
    else:
        what = _METHODS.get(method, "an average of the weights during training")
    sentences = [f"The weights in `{holdings.path.name}` are {what}."]
    if "decay" in facts:
        sentences.append(f"The decay at the end was {float(facts['decay']):.6g}.")
    counted = [f"{facts[name]} {name}" for name in ("steps", "epochs") if name in facts]
    if counted:
        sentences.append(f"The average covers {' and '.join(counted)} of training.")
    library = told.get("library") or next(
        (part.library for part in averages if part.library), ""
    )
    origin = [f"`{told['source']}`"] if "source" in told else []
    if library and library != "switch-ema":
        origin.append(f"averaged by {library}")
    if "commit" in told:
        origin.append(f"commit {told['commit']}")
    if origin:
        sentences.append(f"Origin: {', '.join(origin)}.")
    if "version" in told:
        sentences.append(f"Written by switch-ema {told['version']}.")
    return " ".join(sentences)
