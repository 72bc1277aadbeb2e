"""Files of figures."""

from matplotlib.figure import Figure

from switch_ema.analysis.matplotlib_style import paper_style, save_figure


def a_figure():
    with paper_style():
        figure = Figure(figsize=(2, 2))
        figure.subplots().set_title("Switch EMA")
    return figure


def test_a_figure_is_written_three_times_and_the_same_again(tmp_path):
    first = save_figure(a_figure(), tmp_path, "one")
    assert [path.name for path in first] == ["one.png", "one.svg", "one.pdf"]
    again = save_figure(a_figure(), tmp_path / "again", "one")
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_text_in_an_svg_is_text(tmp_path):
    _, svg, _ = save_figure(a_figure(), tmp_path, "one")
    assert ">Switch EMA</text>" in svg.read_text()


def test_text_in_a_pdf_is_text(tmp_path):
    *_, pdf = save_figure(a_figure(), tmp_path, "one")
    content = pdf.read_bytes()
    assert b"/TrueType" in content or b"/CIDFontType2" in content
    assert b"/Type3" not in content
