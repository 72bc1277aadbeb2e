"""JSON read entry by entry equals JSON read as a whole."""

import json

import pytest

from switch_ema.zoo.data.json_entries import elements, members

CONTENT = {
    "info": {"year": 2017, "text": 'a "quoted" ] and }, text'},
    "empty": [],
    "images": [{"id": 1, "name": "é"}, {"id": 2, "parts": [[1.5, -2e3], []]}],
    "none": None,
    "numbers": [1, [2, [3]], "x"],
}


@pytest.mark.parametrize("indent", [None, 1])
def test_lists_are_those_of_the_whole(indent):
    text = json.dumps(CONTENT, indent=indent)
    found = dict(members(text))
    assert list(found) == list(CONTENT)
    for key in ("empty", "images", "numbers"):
        assert list(elements(text, found[key])) == CONTENT[key]


@pytest.mark.parametrize(
    "text", ["", "{", '{"a"}', '{"a": [1 2]}', '{"a": [1,', '{"a": 1 "b": 2}', "[1,"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="Expecting"):
        list(members(text))
