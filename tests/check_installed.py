"""What a user has after `pip install switch-ema` alone; `make dist` runs it.

It has to be run in an environment that has the wheel and torch, and nothing else.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import switch_ema


def main() -> None:
    """Train with the library, call the console script, ask for what is missing."""
    assert "site-packages" in switch_ema.__file__, switch_ema.__file__
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = switch_ema.EMA(model, optimizer)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    with ema.averaged():
        assert ema.steps == 1
    script = Path(sys.executable).with_name("switch-ema")
    assert shutil.which(str(script)), script
    assert run(script, "--version") == (0, f"switch-ema {switch_ema.__version__}")
    code, text = run(script, "--help")
    assert code == 0 and "compare" in text, text
    code, text = run(script, "compare")
    assert code == 2 and 'pip install "switch-ema[bench]"' in text, text
    assert "Traceback" not in text, text
    print(f"switch-ema {switch_ema.__version__} works with torch alone.")


def run(*command: object) -> tuple[int, str]:
    """Return the exit code and all that was printed."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True
    )
    return done.returncode, (done.stdout + done.stderr).strip()


if __name__ == "__main__":
    main()
