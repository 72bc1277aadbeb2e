"""`switch-ema theory`: what it prints is what was computed."""

import re


def test_table_pictures_and_page(call, tmp_path):
    code, out, _ = call("theory", "--chains", 100, "--seed", 3)
    assert code == 0
    folder = tmp_path / "runs" / "theory"
    assert len(list((folder / "figures").glob("theory-*.png"))) == 4
    found = re.search(r"(\d+) numbers compared: (\d+) differ", out)
    # 0.3% by chance; nearly none even with few chains.
    assert int(found[1]) > 100 and int(found[2]) <= 4
    assert "SEMA = SGD at (1-d) rate" in out
    page = (folder / "report.html").read_text()
    assert "<details>" in page and "switch-ema theory --chains 100" in page


def test_too_few_chains_are_one_sentence(call):
    code, _, err = call("theory", "--chains", 1)
    assert code == 2 and "chains must be at least 2" in err and "Traceback" not in err
