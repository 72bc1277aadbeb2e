"""Thousands of mutated checkpoints: merging them runs no code and never hangs.

The mutants run in a separate process, ``python -m tests.chaos.checkpoints NUMBER``, in
which an audit hook watches imports, files and processes.
"""

import codecs
import io
import itertools
import json
import os
import pickle
import pickletools
import random
import resource
import shutil
import signal
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from switch_ema import merge_checkpoints
from tests.chaos.outcomes import DAMAGE, Outcome, Times

SECONDS = 20
"""Seconds after which a merge counts as hanging."""
MEMORY = 4 << 30
"""Memory limit beyond the process's initial size."""

STATE = {
    "body.weight": torch.arange(24.0).reshape(4, 6),
    "body.bias": torch.ones(6, dtype=torch.bfloat16),
    "steps": torch.tensor(7),
}

Mutation = Callable[[Path, random.Random], Path]
"""Makes a bad checkpoint from the good ones of a folder, and returns its path."""

KINDS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    """Register a kind of mutant."""
    KINDS[function.__name__.replace("_", " ")] = function
    return function


# Pickles.

NAMES = (
    *(("os", "system"), ("posix", "system"), ("builtins", "eval")),
    *(("builtins", "getattr"), ("evil", "anything"), ("subprocess", "Popen")),
    *(("torch", "load"), ("torch.storage", "_load_from_bytes"), ("torch", "float99")),
    ("torch.distributed.checkpoint.evil", "x"),
    ("torch.distributed.checkpoint.filesystem", "FileSystemReader"),
    ("torch.distributed.checkpoint.metadata", "Metadata.__init__"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    *(("collections", "OrderedDict"), ("pathlib", "PosixPath"), ("codecs", "encode")),
)
"""What a pickle may try to import."""

TEXTS = (
    *("touch ran", "__import__('evil')", "../private/secret", "/etc/passwd", "..", ""),
    *("\0", "\ud800", "\x1b[31m", "w" * 5000, "__class__", "__bases__", "__setstate__"),
    *("body.weight", "pipe", "link", "absent", "body", "a.b", "items"),
)
NUMBERS = (0, 1, -1, 2, 7, 255, 2**31, -(2**31), 2**62, 2**63, 2**64, 10**30)
VALUES = (
    *(None, True, 1.5, [], {}, [1] * 50, [0, 2**63], "F32", "BF16", "F4"),
    *("model-1.safetensors", "../private/secret.safetensors", "pipe.safetensors"),
)


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"X" + len(raw).to_bytes(4, "little") + raw


def _named(rng: random.Random) -> bytes:
    module, name = rng.choice(NAMES)
    if rng.random() < 0.5:
        return f"c{module}\n{name}\n".encode()
    return _text(module) + _text(name) + b"\x93"


def _snippets(rng: random.Random) -> bytes:
    """Return instructions that call something or corrupt the stack."""
    text = _text(rng.choice(TEXTS))
    return rng.choice(
        (
            _named(rng) + text + b"\x85R",
            _named(rng) + b")\x81",
            _named(rng) + b")\x81}" + text + b"NsbK\x01b",
            _named(rng) + b"N}" + text + b")s\x86b",
            _named(rng) + b"}" + text + _named(rng) + b"sb",
            b"(" + _named(rng) + text + b"o",
            b"("
            + text
            + b"i"
            + b"\n".join(n.encode() for n in rng.choice(NAMES))
            + b"\n",
            *(b"\x82\x01", b"Px\n", text + b"Q", b"0", b"2", b"(", b"1", b"}", b"]"),
            *(b")", b"R", b"b", b"\x81", b"s", b"u", b"a", b"e", b"t", b"\x85", b"."),
            b"r" + rng.randbytes(4),
            b"j" + rng.randbytes(4),
            b"\x8d" + rng.randbytes(8),
            b"\x8e" + rng.randbytes(8),
            b"\x8b" + rng.randbytes(4),
            b")" + b"\x85" * rng.choice((10, 5000)),
            b"}" + b")" + b"\x85" * rng.choice((10, 500)) + b"Ns",
            b"]\x94h\x00a",
            text,
        )
    )


def _instructions(raw: bytes) -> list[bytes]:
    places = [place for *_, place in pickletools.genops(raw)] + [len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(places)]
    return [piece for piece in pieces if piece[:1] != b"\x95"]  # frames have lengths


def _mutated_pickle(raw: bytes, rng: random.Random) -> bytes:
    """Change one to three instructions of a pickle."""
    pieces = _instructions(raw)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(1, len(pieces))
        how = rng.randrange(6)
        if how == 0:
            del pieces[at]
        elif how == 1:
            pieces.insert(at, pieces[rng.randrange(1, len(pieces))])
        elif how == 2:
            pieces[at] = _snippets(rng)
        elif how == 3:
            pieces.insert(at, _snippets(rng))
        elif pieces[at][:1] in (b"\x8c", b"X"):
            pieces[at] = _text(rng.choice(TEXTS))
        elif pieces[at][:1] in (b"K", b"M", b"J"):
            pieces[at] = pickle.dumps(rng.choice(NUMBERS), 2)[2:-1]
        elif pieces[at][:1] in (b"\x93", b"c"):
            pieces[at] = (b"00" if pieces[at] == b"\x93" else b"") + _named(rng)
        if len(pieces) < 2:
            break
    return b"".join(pieces)


def _havoc(raw: bytes, rng: random.Random) -> bytes:
    """Damage bytes regardless of their meaning."""
    content = bytearray(raw)
    kind = rng.choice([*DAMAGE, "some bytes", "a number", "a part again"])
    if kind in DAMAGE:
        kind = "one bit" if len(raw) < 8192 and "exchanged" in kind else kind
        return bytes(DAMAGE[kind](content, rng))
    at = rng.randrange(len(content))
    if kind == "some bytes":
        for _ in range(rng.randrange(1, 9)):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif kind == "a number":
        number = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1))
        content[at : at + 8] = number.to_bytes(8, "little")
    else:
        content[at:at] = content[: rng.randrange(1, 200)]
    return bytes(content)


# Checkpoints of each format.


@mutation
def distributed_metadata(folder: Path, rng: random.Random) -> Path:
    file = folder / "dcp" / ".metadata"
    raw = file.read_bytes()
    how = rng.choice((_mutated_pickle, _mutated_pickle, _mutated_records, _havoc))
    file.write_bytes(how(raw, rng))
    return folder / "dcp"


def _mutated_records(raw: bytes, rng: random.Random) -> bytes:
    """Change values of the records, pickled as in torch."""
    metadata = pickle.loads(raw)
    for _ in range(rng.randrange(1, 4)):
        tensors = [
            v for v in metadata.state_dict_metadata.values() if hasattr(v, "size")
        ]
        tensor, place = (
            rng.choice(tensors),
            rng.choice([*metadata.storage_data.values()]),
        )
        box = rng.choice(tensor.chunks) if tensor.chunks else tensor
        sizes = torch.Size(rng.choices((0, 1, 2, 3, 4, 6, 2**40), k=rng.randrange(4)))
        changes: list[tuple[Any, str, Any]] = [
            (place, "relative_path", rng.choice(TEXTS)),
            (place, "offset", rng.choice(NUMBERS)),
            (place, "length", rng.choice(NUMBERS)),
            (place, "transform_descriptors", ["stream.zstd"]),
            (tensor, "size", sizes),
            (box, "sizes", sizes),
            (box, "offsets", sizes),
            (tensor, "chunks", tensor.chunks * rng.choice((0, 2, 3000))),
            (tensor.properties, "dtype", rng.choice((torch.int8, torch.complex128))),
            (metadata, "storage_data", rng.choice((None, [], {"a": place}))),
            (metadata, "planner_data", rng.choice((None, 5, {1: 2}))),
            (metadata, "state_dict_metadata", rng.choice((None, {}, {"a": 5}))),
        ]
        changed, name, value = rng.choice(changes)
        if name.startswith("state") and rng.random() < 0.8:
            continue
        setattr(changed, name, value)
        if not isinstance(metadata.storage_data, dict):
            break
        if (
            not metadata.state_dict_metadata
            or 5 in metadata.state_dict_metadata.values()
        ):
            break
    return pickle.dumps(metadata, rng.choice((2, 3, 4, 5)))


@mutation
def distributed_shards(folder: Path, rng: random.Random) -> Path:
    shard = folder / "dcp" / "__0_0.distcp"
    raw = shard.read_bytes()
    if rng.random() < 0.3:
        shard.write_bytes(_havoc(raw, rng))
        return folder / "dcp"
    file = folder / "dcp" / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    place = rng.choice([*metadata.storage_data.values()])
    part = raw[place.offset : place.offset + place.length]
    if rng.random() < 0.7:
        part = _mutated_zip(part, rng)
    else:
        buffer = io.BytesIO()
        torch.save(rng.choice(_odd_values()), buffer)
        part = buffer.getvalue()
    place.offset, place.length = len(raw), len(part)
    shard.write_bytes(raw + part)
    file.write_bytes(pickle.dumps(metadata))
    return folder / "dcp"


def _odd_values() -> list[Any]:
    return [
        *([], {}, None, 5, "text", torch.Size([4, 6]), [torch.ones(4, 6)]),
        torch.ones(4, 6).to_sparse(),
        torch.ones(4, 6, device="meta"),
        torch.ones(4, 6, dtype=torch.int32),
        torch.ones(1).expand(4, 6),
        torch.ones(6, 4).T,
        torch.nn.Parameter(torch.ones(4, 6)),
        torch.ones(0),
        torch.quantize_per_tensor(torch.ones(4, 6), 1.0, 0, torch.qint8),
        _Runs(),
    ]


class _Runs:
    """A pickle that would run something."""

    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def _mutated_zip(raw: bytes, rng: random.Random) -> bytes:
    """Change the pickle or another member of a torch zip file."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in members if name.endswith("data.pkl"))
    if rng.random() < 0.85:
        members[name] = _mutated_pickle(members[name], rng)
    else:
        other = rng.choice(list(members))
        members[other] = _havoc(members[other] or b"?", rng)
        if rng.random() < 0.3:
            del members[other]
    buffer = io.BytesIO()
    how = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@mutation
def torch_files(folder: Path, rng: random.Random) -> Path:
    path = folder / "c.pt"
    raw = path.read_bytes()
    how = rng.choice((_mutated_zip, _mutated_zip, _mutated_zip, _havoc))
    path.write_bytes(how(raw, rng))
    if rng.random() < 0.05:
        value = rng.choice(_odd_values())
        torch.save({**STATE, "body.weight": value}, path)
    return path


@mutation
def safetensors_files(folder: Path, rng: random.Random) -> Path:
    path = folder / "c.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    if rng.random() < 0.4:
        path.write_bytes(_havoc(raw, rng))
        return path
    header = _mutated_json(raw[8 : 8 + length], rng)
    if rng.random() < 0.3:
        header = _havoc(header, rng)
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    return path


@mutation
def indices_of_shards(folder: Path, rng: random.Random) -> Path:
    shards = folder / "shards"
    index = shards / "model.safetensors.index.json"
    raw = index.read_bytes()
    index.write_bytes(_mutated_json(raw, rng))
    if rng.random() < 0.3:
        index.write_bytes(_havoc(raw, rng))
    shard = shards / "model-1.safetensors"
    if rng.random() < 0.2:
        shard.unlink()
        rng.choice(
            (
                lambda: os.mkfifo(shard),
                lambda: shard.symlink_to("../private/secret.safetensors"),
                lambda: shard.symlink_to(shard),
                lambda: shard.symlink_to("/dev/zero"),
                shard.mkdir,
                lambda: None,
            )
        )()
    beside = shards / rng.choice(("tokenizer.json", "config.json", "tokenizer"))
    if rng.random() < 0.2:
        rng.choice(
            (
                lambda: os.mkfifo(beside),
                lambda: beside.symlink_to("../private/secret"),
                lambda: beside.symlink_to("/dev/zero"),
                lambda: beside.symlink_to(".."),
            )
        )()
    return shards


def _mutated_json(raw: bytes, rng: random.Random) -> bytes:
    """Change one to three values or names of a JSON file, at any depth."""
    content = json.loads(raw)
    for _ in range(rng.randrange(1, 4)):
        place: Any = content
        while place:
            key = rng.choice(
                list(place) if isinstance(place, dict) else range(len(place))
            )
            if isinstance(place[key], (dict, list)) and rng.random() < 0.8:
                place = place[key]
                continue
            value = rng.choice([*TEXTS, *NUMBERS, *VALUES, *_deep()])
            how = rng.randrange(4)
            if how == 0:
                del place[key]
            elif how == 1 and isinstance(place, dict):
                place[rng.choice(TEXTS)] = place[key]
            else:
                place[key] = value
            break
    return json.dumps(content).encode()


def _deep() -> list[Any]:
    value: Any = 1
    for _ in range(300):
        value = [value]
    return [value]


# The process that tries them.


def _write_good(folder: Path) -> None:
    """Write a checkpoint of each format, and files that none of them may touch."""
    save_file(STATE, folder / "good.safetensors")
    save_file(STATE, folder / "c.safetensors")
    torch.save(STATE, folder / "c.pt")
    dcp.save(STATE, checkpoint_id=folder / "dcp", no_dist=True)
    (folder / "shards").mkdir()
    places = {}
    for number, (name, tensor) in enumerate(STATE.items()):
        places[name] = f"model-{number % 2}.safetensors"
        chosen = {n: t for n, t in STATE.items() if places.get(n) == places[name]}
        save_file(chosen | {name: tensor}, folder / "shards" / places[name])
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "shards" / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "private").mkdir()
    (folder / "private" / "secret").write_text("secret")
    save_file(STATE, folder / "private" / "secret.safetensors")
    (folder / "evil.py").write_text("open('ran', 'w').close()\nanything = dict\n")
    os.mkfifo(folder / "dcp" / "pipe")
    (folder / "dcp" / "link").symlink_to("../private/secret")


class _Hangs(BaseException):
    """A merge takes too long."""


class _Watch:
    """Records forbidden actions triggered by a checkpoint."""

    ACTS = ("exec", "compile", "pickle.find_class", "os.exec", "os.fork", "os.forkpty")
    STARTS = ("subprocess.", "os.system", "os.posix_spawn", "os.spawn", "socket.")
    STARTS += ("ctypes.", "urllib.", "os.link", "os.symlink")

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.inside = ""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.inside:
            return
        if event == "open":
            path = arguments[0]
            if not isinstance(path, int) and not self._may_open(os.fsdecode(path)):
                self.seen.append(f"opened {os.path.realpath(path)}")
        elif event == "import" or event in self.ACTS or event.startswith(self.STARTS):
            self.seen.append(f"{event} {arguments!r:.80}")

    def _may_open(self, path: str) -> bool:
        real = os.path.realpath(path)
        is_inside = real == self.inside or real.startswith(f"{self.inside}/")
        return is_inside and not real.startswith(f"{self.inside}/private")


def _try(bad: Path, out: Path) -> str:
    """Merge a good and a bad checkpoint; return what went wrong, if anything."""
    try:
        merge_checkpoints([out.parent / "good.safetensors", bad], out)
    except (ValueError, OSError) as error:
        left = [*out.parent.glob("out*"), *out.parent.glob(".out*")]
        if left:
            return f"left {left}"
        return "refused" if str(error).strip() else "no sentence"
    except _Hangs:
        return "hangs"
    except BaseException as error:
        return f"traceback: {type(error).__name__}: {str(error)[:200]}"
    return "merged"


def _canary(folder: Path, rng: random.Random) -> Path:
    """Do the forbidden actions, to detect a watch that sees nothing."""

    class Acts(os.PathLike[str]):
        def __fspath__(self) -> str:
            os.system("true")
            open("/etc/hostname").close()
            __import__("evil")
            return str(folder / "c.safetensors")

    return Acts()  # type: ignore[return-value]


def try_all(count: int, seed: int, kinds: dict[str, Mutation]) -> Iterator[str]:
    """Try mutants of all kinds in turn; yield how each ended."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Modules that Python and torch import on first use, for text and error messages.
    codecs.lookup("raw-unicode-escape")
    repr(torch.ones(1))

    def ring(*_: Any) -> None:
        raise _Hangs

    signal.signal(signal.SIGALRM, ring)
    watch = _Watch()
    memory = (
        "/dev/shm" if Path("/dev/shm").is_dir() else None
    )  # forced writes cost less
    with TemporaryDirectory(dir=memory) as root:
        good, folder = Path(root, "good"), Path(root, "case")
        good.mkdir()
        _write_good(good)
        sys.path.insert(0, str(folder))
        for number in range(-8, count):  # the first ones are valid, and do all imports
            kind = list(kinds)[number % len(kinds)]
            rng = random.Random(seed + number)
            shutil.copytree(good, folder, symlinks=True, copy_function=_copy)
            os.chdir(folder)
            names = ("dcp", "c.pt", "c.safetensors", "shards")
            bad = folder / names[number % 4] if number < 0 else kinds[kind](folder, rng)
            out = folder / rng.choice(("out", "out.safetensors"))
            signal.alarm(SECONDS)
            watch.inside = os.path.realpath(folder) if number >= 0 else ""
            ended = _try(bad, out)
            watch.inside = ""
            signal.alarm(0)
            if (folder / "ran").exists():
                watch.seen.append("it ran")
            if watch.seen:
                ended = f"acts: {watch.seen}"
            watch.seen.clear()
            os.chdir(root)
            shutil.rmtree(folder)
            if number < 0:
                assert ended == "merged", ended
                _limit_memory()
            else:
                yield ended


def _copy(source: str, target: str) -> None:
    if Path(source).is_fifo():
        os.mkfifo(target)
    else:
        shutil.copy(source, target)


def _limit_memory() -> None:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.RLIM_INFINITY))


def main(arguments: list[str]) -> None:
    """Print how each mutant ended, as one line of JSON."""
    count, seed = int(arguments[0]), int(arguments[1])
    kinds = {"canary": _canary} if arguments[2:] == ["canary"] else KINDS
    for ended in try_all(count, seed, kinds):
        print(json.dumps(ended), flush=True)


def run(count: int, *more: str) -> list[str]:
    """Try mutants in other processes; a crash ends one process and is reported."""
    endings: list[str] = []
    while len(endings) < count:
        given = [str(count - len(endings)), str(len(endings)), *more]
        command = [sys.executable, "-m", "tests.chaos.checkpoints", *given]
        limit = 120 + count
        try:
            process = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit)
            text, code = process.stdout, process.returncode
        except subprocess.TimeoutExpired as expired:
            text, code = expired.stdout or b"", -1
        endings += map(json.loads, text.decode().splitlines())
        if code != 0:
            endings.append(f"ended with code {code}")
    return endings


def hostile_checkpoints(count: int) -> Iterator[Outcome]:
    """Mutants are merged or refused in one sentence, and nothing else happens."""
    endings = run(count)
    for number, kind in enumerate(KINDS):
        own = endings[number :: len(KINDS)]
        broken = [ended for ended in own if ended not in ("refused", "merged")]
        for ended in broken[:5]:
            print(f"  {kind}: {ended}")
        note = f"({own.count('refused')} refused, {own.count('merged')} merged)"
        yield Outcome(f"hostile {kind}", len(own), len(broken), note)


def everything(times: Times) -> Iterator[Outcome]:
    """Try mutants of all formats."""
    yield from hostile_checkpoints(times(20_000))


if __name__ == "__main__":
    main(sys.argv[1:])
