"""`switch-ema theory`: what it prints is what was computed."""

import io
import re

from rich.console import Console

from switch_ema.commands.theory import Theory


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


def test_simulations_and_figures_are_counted_as_they_are_made(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    Theory(chains=2, out=tmp_path)(console)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    counts = re.findall(r"(simulations|figures)\D*(\d+)/(\d+)", shown)
    done = [int(number) for name, number, _ in counts if name == "simulations"]
    total = {int(total) for name, _, total in counts if name == "simulations"}
    assert {done[-1]} == total and set(done) >= set(range(1, done[-1] + 1))
    figures = [(int(n), int(of)) for name, n, of in counts if name == "figures"]
    assert {(n, 4) for n in range(5)} == set(figures)
