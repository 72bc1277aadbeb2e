"""Hides the packages of particular tasks: the engine has to work without them.

`make test-engine` puts this folder on PYTHONPATH, so that every process, also one that
a test starts, imports it.
"""

import sys
from importlib.abc import MetaPathFinder

HIDDEN = ("diffusers", "lightly", "timm", "transformers")


class Hide(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


sys.meta_path.insert(0, Hide())
