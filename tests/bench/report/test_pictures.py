"""Pictures of the methods on the page: the common ones once, wide ones in rows."""

import io

from PIL import Image

from switch_ema.bench.report.pictures import arrange
from switch_ema.bench.results.samples import SamplePicture


def picture(method, caption, shade, size=(8, 8)):
    file = io.BytesIO()
    Image.new("L", size, shade).save(file, format="PNG")
    return SamplePicture(method, caption, "a.png", file.getvalue())


def test_what_all_methods_have_is_shown_once():
    found = arrange(
        [
            picture("plain", "truth", 1),
            picture("plain", "made", 2),
            picture("ema", "truth", 1),
            picture("ema", "made", 3),
        ]
    )
    assert found is not None
    assert [one.caption for one in found.common] == ["truth"]
    captions = {name: [one.caption for one in made] for name, made in found.methods}
    assert captions == {"plain": ["made"], "ema": ["made"]}
    assert not found.wide


def test_one_method_keeps_its_pictures():
    found = arrange([picture("plain", "", 1, size=(80, 8))])
    assert found is not None
    assert found.common == []
    assert len(found.methods[0][1]) == 1
    assert found.wide


def test_nothing_to_show():
    assert arrange([]) is None
