"""C compilers that do not do what is asked for."""

from pathlib import Path

BROKEN_COMPILERS = {
    "ends well without a file": "exit 0",
    "writes something else": 'echo hello > "$out"',
    "is killed": "kill -9 $$",
    "takes for ever": "exec sleep 100",
    "cuts its file off": 'cc "$@" && truncate -s 9000 "$out"',
    "writes zeros": 'cc "$@" && dd if=/dev/zero of="$out" bs=4096 seek=1 count=2 '
    "conv=notrunc 2>/dev/null",
    "leaves our functions out": 'echo "int x;" | cc -shared -x c - -o "$out"',
    "makes a folder": 'mkdir "$out"',
}


def broken_compiler(path: Path, how: str) -> str:
    """Write a compiler; returns what ``$CC`` has to be."""
    output = 'for out in "$@"; do :; done'  # the last argument
    path.write_text(f"#!/bin/sh\n{output}\n{BROKEN_COMPILERS[how]}\n")
    path.chmod(0o700)
    return str(path)
