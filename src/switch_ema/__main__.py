"""``python -m switch_ema`` is ``switch-ema``."""

from switch_ema.cli import main

if __name__ == "__main__":
    main()
