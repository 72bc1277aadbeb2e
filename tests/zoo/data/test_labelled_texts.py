"""Labelled texts: the formats of their files, and what is said about bad ones."""

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.labelled_texts import load_labelled_texts, read_labelled


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_tab_separated(tmp_path):
    content = 'stars\ttext\n5\tIt "fits\n1\tno\n'
    texts, labels = read_labelled(write(tmp_path / "a.tsv", content), "reviews")
    assert texts == ['It "fits', "no"]
    assert labels.tolist() == [4, 0]


def test_yelp_has_quotes_and_no_header(tmp_path):
    content = '"5","so ""good"", and\nmore"\n"1","bad"\n'
    texts, labels = read_labelled(write(tmp_path / "a.csv", content), "yelp")
    assert texts == ['so "good", and\nmore', "bad"]
    assert labels.tolist() == [4, 0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("stars\ttext\n5\tgood\n6\tbad\n", r"line 3: stars .* from 1 to 5, got '6'"),
        ("stars\ttext\n0\tgood\n", "line 2: stars must be a whole number"),
        ("stars\ttext\nfive\tgood\n", "line 2: stars .* got 'five'"),
        ("label\ttext\n5\tgood\n", "line 1: the columns must include stars and text"),
        ("stars\ttext\n5\n", "line 2: expected 2 columns, got 1"),
        ("stars\ttext\n5\t \n", "line 2: text must not be empty"),
        ("stars\ttext\n", "has no texts after its header"),
        ("", "is empty"),
    ],
)
def test_bad_files(tmp_path, content, said):
    path = write(tmp_path / "bad.tsv", content)
    with pytest.raises(UsageError, match=said) as caught:
        read_labelled(path, "reviews")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_found_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    with pytest.raises(UsageError, match=r"the data sst2 was not found"):
        load_labelled_texts("sst2", 0)
    for part in ("train", "test"):
        write(tmp_path / "sst2" / f"{part}.tsv", "label\tsentence\n1\tfine\n")
    data = load_labelled_texts("sst2", 0)
    assert (data.train, data.y_test.tolist(), data.classes) == (["fine"], [1], 2)


def test_the_manual_is_split_by_the_seed():
    one, other = (load_labelled_texts("pydoc", seed) for seed in (0, 1))
    assert not set(one.train) & set(one.test)
    assert set(one.train) | set(one.test) == set(other.train) | set(other.test)
    assert one.test != other.test
    assert one.y_train.unique().tolist() == list(range(one.classes))
