"""Reading text files, and what is said about bad ones."""

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.text_files import read_text


def test_reads(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ein Häuschen\n", encoding="utf-8")
    assert read_text(path) == "ein Häuschen\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"one\ntwo\nH\xe4uschen\n", r"line 3: the text must be UTF-8, got .* 0xe4\.$"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
    ],
)
def test_bad_files(tmp_path, content, said):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        read_text(path)
    assert str(caught.value).startswith(str(path))


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_text(tmp_path / "nothing.txt")
