"""Declared cost of each row, for plans with a time budget.

Core seconds for one seed of all methods of a row at the small scale, measured as
processor time of one epoch on a 2-core machine. They give relative costs; the speed of
the present machine is measured with one epoch of one row when planning.
"""

START_SECONDS = 6.0
"""Starting processes and imports before a row, writing pages after it."""
INLINE_SECONDS = 1.0
"""The same without processes."""

SECONDS: dict[str, dict[str, float]] = {
    "table-1": {
        "digits-sgd": 6.0,
        "digits-sam": 4.0,
        "digits-sasam": 4.0,
        "digits-adan": 2.5,
        "noisy-digits-sgd": 6.0,
        "noisy-digits-sam": 4.0,
        "noisy-digits-sasam": 4.0,
        "noisy-digits-adan": 2.5,
    },
    "table-2": {
        "resnet50-sgd": 116.3,
        "resnet50-sam": 230.9,
        "resnet50-lars": 301.0,
        "resnet50-lamb": 293.2,
        "deit-t-adamw": 87.6,
        "deit-s-adamw": 108.2,
        "swin-t-adamw": 228.3,
        "convnext-t-adamw": 136.8,
        "moganet-b-adamw": 400.2,
        "deit-s-lamb": 129.3,
        "deit-b-lamb": 175.3,
        "deit-s-adan": 105.0,
        "deit-b-adan": 141.7,
        "convnext-t-adan": 101.4,
    },
    "table-3": {
        "vgg13-bn": 126.4,
        "resnet18": 117.1,
        "resnext50-32x4d": 170.7,
        "resnet101": 196.0,
        "wrn28-10": 125.0,
        "densenet121": 191.8,
        "deit-s": 148.7,
        "mlp-mixer": 285.5,
        "swin-t": 233.4,
        "swin-s": 328.7,
        "convnext-t": 184.2,
        "convnext-s": 219.8,
        "moganet-s": 459.8,
    },
    "table-4": {
        "simclr-cifar100": 55.4,
        "simclr-stl10": 54.5,
        "moco-v2-cifar100": 54.8,
        "moco-v2-stl10": 66.3,
        "byol-cifar100": 94.4,
        "byol-stl10": 104.1,
        "barlow-twins-cifar100": 30.7,
        "barlow-twins-stl10": 42.1,
        "moco-v3-cifar100": 88.2,
        "moco-v3-stl10": 88.2,
        "simmim-cifar100": 49.9,
        "simmim-stl10": 49.9,
        "a2mim-cifar100": 51.4,
        "a2mim-stl10": 51.4,
    },
    "table-5": {
        "byol": 104.1,
        "moco-v3": 88.2,
        "simmim": 89.7,
        "mae": 85.6,
    },
    "table-6": {
        "mask-rcnn-2x": 260.0,
        "cascade-mask-rcnn-3x": 44.2,
        "cascade-mask-rcnn-9x": 111.5,
    },
    "table-7": {
        "retinanet-r50-2x": 230.0,
        "retinanet-swin-t-1x": 115.9,
        "yolox-s": 108.4,
    },
    "table-8": {
        "cifar10": 166.4,
        "celeba": 166.4,
    },
    "table-9": {
        "simvp": 46.6,
        "simvp-v2": 55.9,
        "convlstm": 48.2,
        "predrnn": 58.7,
    },
    "table-10": {
        "rcf-mnist-resnet18": 75.0,
        "rcf-mnist-resnet50": 95.0,
        "agedb-resnet50": 75.0,
        "agedb-convnext-t": 79.0,
        "imdb-wiki-resnet50": 75.0,
        "imdb-wiki-convnext-t": 79.0,
    },
    "table-11": {
        "lstm-sgd": 60.0,
        "lstm-adam": 60.0,
        "lstm-adabelief": 62.0,
    },
    "table-12": {
        "bert-yelp": 82.0,
        "bert-wikitext": 76.0,
    },
    "table-13": {
        "wrn28-10": 37.5,
        "moco-v3-cifar100": 88.2,
        "simmim-stl10": 99.8,
        "deit-s-adamw": 51.2,
        "cifar10": 221.9,
        "agedb-resnet50": 109.8,
        "bert-yelp": 125.0,
    },
    "figure-landscape": {
        "wrn28-8": 18.7,
        "swin-s": 71.9,
        "resnext50-32x4d": 24.8,
        "convnext-s": 42.3,
        "deit-s-adamw": 25.6,
        "convnext-t-adamw": 33.6,
    },
    "figure-plane": {
        "circles": 12.0,
    },
    "figure-boundary": {  # 24 seeds train as one model
        "circles": 0.5,
        "moons": 0.5,
    },
    "figure-decay": {
        "wrn28-10": 46.8,
        "deit-s-adamw": 64.0,
        "simclr-cifar100": 138.5,
        "simmim-stl10": 124.8,
        "cifar10": 277.3,
        "retinanet-r50-2x": 575.0,
        "mask-rcnn-2x": 166.8,
        "imdb-wiki-resnet50": 137.2,
        "simvp": 116.5,
        "bert-yelp": 151.2,
    },
}
"""By table or figure, and row."""
