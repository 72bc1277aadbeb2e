"""The datasets: files, publisher's page and download of each."""

from dataclasses import dataclass

_IDX = tuple(
    f"{part}-{what}*"
    for part in ("train", "t10k")
    for what in ("images-idx3-ubyte", "labels-idx1-ubyte")
)
_STL10 = ("train_X", "train_y", "test_X", "test_y", "unlabeled_X")
_COCO = ("annotations/instances_train*.json", "annotations/instances_val*.json")


def _inside(folder: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset that is read from files."""

    layouts: tuple[tuple[str, ...], ...]
    """File patterns below a folder of data: the publisher's layout first, then others
    that are read as well. A dataset is found where all patterns of one layout match."""
    page: str
    """The publisher's page."""
    trained: int | None = None
    """Training examples as published and as tasks count them: images, texts, or words
    with the ends of lines; None where no row of the paper uses the dataset."""
    torchvision: str = ""
    """Torchvision's class that downloads it, if any."""
    hub: str = ""
    """Its name on the Hugging Face Hub, if it can be downloaded from there."""

    @property
    def can_download(self) -> bool:
        """Whether torchvision or datasets can download it."""
        return bool(self.torchvision or self.hub)


DATASETS: dict[str, Dataset] = {
    "mnist": Dataset(
        layouts=(_inside("MNIST/raw", _IDX), ("mnist.npz",)),
        page="http://yann.lecun.com/exdb/mnist/",
        trained=60_000,
        torchvision="MNIST",
    ),
    "fashion_mnist": Dataset(
        layouts=(_inside("FashionMNIST/raw", _IDX), ("fashion_mnist.npz",)),
        page="https://github.com/zalandoresearch/fashion-mnist",
        trained=60_000,
        torchvision="FashionMNIST",
    ),
    "moving_mnist": Dataset(
        layouts=(
            ("mnist_test_seq.npy",),
            ("MovingMNIST/mnist_test_seq.npy",),
            ("moving_mnist/mnist_test_seq.npy",),
        ),
        page="https://www.cs.toronto.edu/~nitish/unsupervised_video/",
        torchvision="MovingMNIST",
    ),
    "cifar10": Dataset(
        layouts=(
            _inside(
                "cifar-10-batches-py",
                (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
            ),
            ("cifar10.npz",),
        ),
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        trained=50_000,
        torchvision="CIFAR10",
    ),
    "cifar100": Dataset(
        layouts=(_inside("cifar-100-python", ("train", "test")), ("cifar100.npz",)),
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        trained=50_000,
        torchvision="CIFAR100",
    ),
    "stl10": Dataset(
        layouts=(
            _inside("stl10_binary", tuple(f"{name}.bin" for name in _STL10)),
            ("stl10.npz",),
        ),
        page="https://cs.stanford.edu/~acoates/stl10/",
        trained=105_000,
        torchvision="STL10",
    ),
    "imagenet": Dataset(
        layouts=tuple(
            _inside(folder, ("train", "val"))
            for folder in ("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
        ),
        page="https://image-net.org/download.php",
        trained=1_281_167,
    ),
    "celeba": Dataset(
        layouts=(("celeba/img_align_celeba",), ("img_align_celeba",)),
        page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        trained=162_770,
        torchvision="CelebA",
    ),
    "coco": Dataset(
        layouts=(_inside("coco", _COCO), _COCO),
        page="https://cocodataset.org/#download",
        trained=117_266,
    ),
    "agedb": Dataset(
        layouts=(("agedb/*.csv",), ("agedb-dir/data/agedb.csv",)),
        page="https://ibug.doc.ic.ac.uk/resources/agedb/",
        trained=12_208,
    ),
    "imdb-wiki": Dataset(
        layouts=(("imdb_wiki/*.csv",), ("imdb-wiki-dir/data/imdb_wiki.csv",)),
        page="https://data.vision.ee.ethz.ch/cvl/rrothe/imdb-wiki/",
        trained=191_509,
    ),
    "ptb": Dataset(
        layouts=(
            _inside("simple-examples/data", ("ptb.train.txt", "ptb.test.txt")),
            ("ptb/*train.txt", "ptb/*test.txt"),
        ),
        page="http://www.fit.vutbr.cz/~imikolov/rnnlm/",
        trained=929_589,
    ),
    "wikitext2": Dataset(
        layouts=(
            _inside("wikitext-2", ("wiki.valid.tokens", "wiki.test.tokens")),
            ("wikitext2/valid.txt", "wikitext2/test.txt"),
        ),
        page="https://huggingface.co/datasets/Salesforce/wikitext",
        hub="Salesforce/wikitext:wikitext-2-v1",
    ),
    "wikitext103": Dataset(
        layouts=(
            _inside("wikitext-103", ("wiki.train.tokens", "wiki.test.tokens")),
            ("wikitext103/*train*", "wikitext103/*test*"),
        ),
        page="https://huggingface.co/datasets/Salesforce/wikitext",
        trained=103_227_021,
        hub="Salesforce/wikitext:wikitext-103-v1",
    ),
    "yelp": Dataset(
        layouts=(
            _inside("yelp_review_full_csv", ("train.csv", "test.csv")),
            ("yelp/train.csv", "yelp/test.csv"),
        ),
        page="https://huggingface.co/datasets/Yelp/yelp_review_full",
        trained=650_000,
        hub="Yelp/yelp_review_full",
    ),
    "bccd": Dataset(
        layouts=(("bccd/train.json", "bccd/val.json", "bccd/images*"),),
        page="https://github.com/Shenggan/BCCD_Dataset",
    ),
    "nuclei": Dataset(
        layouts=(("masks/train.json", "masks/val.json", "masks/images*"),),
        page="https://www.kaggle.com/c/data-science-bowl-2018",
    ),
    "sst2": Dataset(
        layouts=(("sst2/train.tsv", "sst2/test.tsv"),),
        page="https://nlp.stanford.edu/sentiment/",
    ),
    "reviews": Dataset(
        layouts=(("reviews/train.tsv", "reviews/test.tsv"),),
        page=(
            "https://www.kaggle.com/datasets/nicapotato/womens-ecommerce-clothing-reviews"
        ),
    ),
}
"""The datasets by name."""

LIBRARIES: dict[str, str] = {
    "digits": "sklearn",
    "circles and moons": "sklearn",
    "mnist1d": "mnist1d",
    "pydoc": "pydoc_data",
}
"""The module that ships each of the others."""
