"""The bench's promises after kills, damage and hostile input, tried many times."""

import fcntl
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from switch_ema import _files
from switch_ema.bench.compare import run_comparison, summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.judge import judge
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.sections import (
    AnalysisSection,
    Sheet,
    load_sections,
    save_section,
)
from switch_ema.bench.report.tables import FORMATS
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import parse_spec, parse_task
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.train import checkpoints, loop
from tests.bench.execute.test_guard import FAMILY
from tests.chaos.outcomes import DAMAGE, Outcome, Times, in_child

STORED = Path(__file__).parents[1] / "bench" / "stored" / "run-0.1.0"
SMALL = CompareConfig(
    tasks=("moons",), methods=("plain", "ema", "switch-ema"), seeds=2, epochs=3
)


def creation_kills(count: int, seed: int = 0) -> Outcome:
    """After a kill during its creation, a store can be created, written and read."""
    rng, broken, killed = random.Random(seed), 0, 0
    cell = make_plan(SMALL)[0]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.sqlite"

        def create() -> None:
            results = Results(path, create=True)
            results.set_meta("config", "{}")

        for _ in range(count):
            killed += in_child(create, rng.uniform(0, 0.1)) != 0
            try:
                with closing(Results(path, create=True)) as results:
                    results.set_meta("config", "{}")
                    assert cell.id not in results.statuses()
            except UsageError:
                broken += 1
            for file in Path(folder).iterdir():
                file.unlink()
    return Outcome("kills while a store is made", count, broken, f"({killed} in time)")


def damaged_checkpoints(count: int, kind: str) -> Outcome:
    """An altered checkpoint is refused."""
    rng, believed = random.Random(kind), 0
    state = {
        "model": {f"weight{i}": torch.randn(100, 50) for i in range(8)},
        "epoch": 3,
        "zeros": torch.zeros(3000),
        "lines": 3,
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cell.pt"
        checkpoints.save(path, state)
        good = path.read_bytes()
        for _ in range(count):
            bad = bytes(DAMAGE[kind](bytearray(good), rng))
            path.write_bytes(bad)
            try:
                found = checkpoints.read(path)
            except checkpoints.Unreadable:
                continue
            # Zeros over zeros, or a page swapped with itself, are no damage.
            believed += bad != good or found is None or not _same(found, state)
    return Outcome(f"checkpoints: {kind}", count, believed)


def _same(found: dict, state: dict) -> bool:
    return (
        found.keys() == state.keys()
        and found["epoch"] == state["epoch"]
        and torch.equal(found["zeros"], state["zeros"])
        and all(torch.equal(found["model"][k], v) for k, v in state["model"].items())
    )


def damaged_stores(count: int, kind: str) -> Outcome:
    """A damaged run is shown, or refused in one sentence."""
    rng, broken = random.Random(kind), 0
    with TemporaryDirectory() as folder:
        run = shutil.copytree(STORED, Path(folder) / "run")
        path = run / "results.sqlite"
        good = path.read_bytes()
        for _ in range(count):
            path.write_bytes(DAMAGE[kind](bytearray(good), rng))
            try:
                summarize_run(run)
            except UsageError:
                continue
            except Exception as error:
                broken += 1
                print(f"  {kind}: {type(error).__name__}: {error}")
    return Outcome(f"stores: {kind}", count, broken)


VALUES = [
    *(None, True, 0, -1, 10**30, 10**5000, 1e308, float("nan"), float("inf")),
    *("", "\0", "\ud800", "a" * 100_000, "\x1b[2J", "../../x", "/dev/zero", "moons"),
    *("moons:", "moons:lr", "moons:lr=" + "(" * 500, "moons:lr=1e999", "x.py:", ":"),
    *(
        "ema:decay=[[[[",
        "ema:decay=" + "9" * 5000,
        "ema:decay=0.9,decay=0.8",
        "~x.py:A",
    ),
    *(
        [],
        {},
        [None],
        ["a", "a"],
        [[[]]],
        {"a": 1},
        ["moons"],
        ["plain", "ema:decay=2"],
    ),
]


def mutated_configurations(count: int, seed: int = 0) -> Outcome:
    """An untrusted configuration is read, or refused in one sentence."""
    rng, broken = random.Random(seed), 0
    for text in _mutations(count, rng):
        try:
            config = CompareConfig.from_json(text)
            _ = config.default_name
            for task in config.tasks:
                parse_task(task)
            for method in config.methods:
                parse_spec(method)
            if config.seeds <= 100:
                make_plan(config)
        except UsageError as error:
            broken += "\n" in str(error).strip()
        except Exception as error:
            broken += 1
            print(f"  {text[:200]!a}: {type(error).__name__}: {str(error)[:200]!a}")
    return Outcome("configurations, mutated", count, broken)


def _mutations(count: int, rng: random.Random) -> Iterator[str]:
    names = list(json.loads(SMALL.to_json()))
    for _ in range(count):
        values = json.loads(SMALL.to_json())
        for _ in range(rng.randrange(1, 3)):
            values[rng.choice([*names, "unknown"])] = rng.choice(VALUES)
        kind = rng.randrange(6)
        try:
            text = json.dumps(values)
        except ValueError:  # numbers that json does not write
            text = "[" * 200_000
        if kind == 0:
            text = text[: rng.randrange(len(text))]
        elif kind == 1:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice('{}[]",:\\9\0e') + text[at + 1 :]
        elif kind == 2:
            text = '{"tasks": ' + "[" * rng.choice((10, 1000, 100_000)) + "]"
        elif kind == 3:
            text = '{"seeds": ' + "9" * rng.choice((20, 4000, 5000)) + "}"
        yield text


def damaged_sections(count: int, seed: int = 0) -> Outcome:
    """A damaged analysis is reported and does not break the page."""
    rng, broken = random.Random(seed), 0
    sheet = Sheet(caption="c", header=["a", "b"], rows=[["1", "2"]])
    section = AnalysisSection(key="one", title="t", command="c", sheets=[sheet])
    with TemporaryDirectory() as folder:
        path = save_section(section, Path(folder))
        values = json.loads(path.read_text())
        for _ in range(count):
            changed = json.loads(json.dumps(values))
            changed[rng.choice(list(changed))] = rng.choice([*VALUES[:4], *VALUES[9:]])
            text = json.dumps(changed)
            if rng.random() < 0.3:
                text = text[: rng.randrange(len(text))]
            path.write_text(text)
            try:
                load_sections(Path(folder))
            except Exception as error:
                broken += 1
                print(f"  {text[:200]!a}: {type(error).__name__}: {error}")
    return Outcome("analysis sections, damaged", count, broken)


def exploded_seeds(count: int, seed: int = 0) -> Outcome:
    """A diverging seed changes only its own method's result."""
    rng, broken = random.Random(seed), 0
    for _ in range(count):
        curves, better = _comparison(rng), rng.random() < 0.5
        whole = {r.method: r for r in compare(curves, higher_is_better=better)}
        victim = rng.choice([method for method in curves if method != "plain"])
        value = rng.choice((-1, 1)) * 10 ** rng.uniform(3, 20)
        if rng.random() < 0.5:  # the baseline's values of a seed that the victim lost
            for method, own in curves.items():
                own[99] = [value if method == "plain" else float("nan")]
        else:
            curves[victim][rng.choice(list(curves[victim]))] = [value]
            del whole[victim]
        for result in compare(curves, higher_is_better=better):
            before = whole.get(result.method)
            if before is None or before.difference is None:
                continue
            after = result.difference
            same = after is not None and (after.p, after.mean, after.sd, after.n) == (
                before.difference.p,
                before.difference.mean,
                before.difference.sd,
                before.difference.n,
            )
            broken += not same
    return Outcome("comparisons with an exploded seed", count, broken)


def _comparison(rng: random.Random) -> dict[str, dict[int, list[float]]]:
    """Draw losses, or accuracies on some number of samples, for several methods."""
    seeds, samples = rng.randrange(3, 17), rng.choice((0, 0, 360, 10_000))
    level, noise = 10 ** rng.uniform(-3, 2), 10 ** rng.uniform(-4, -1)
    plain = [level * rng.gauss(1, noise) for _ in range(seeds)]
    curves = {}
    for method in ("plain", "ema", "swa", "lookahead")[: rng.randrange(3, 5)]:
        gain = 0 if method == "plain" else level * noise * rng.uniform(-1, 1)
        values = [v + gain * rng.gauss(1, 0.2) for v in plain]
        if samples:
            values = [round(v / level * samples) / samples for v in values]
        curves[method] = {number: [value] for number, value in enumerate(values)}
    return curves


_HOSTILE = [
    *(
        b"\0",
        b"\xff\xfe",
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"\r",
        b"\n",
        b"\r\n",
        b'"',
        b",",
        b"|",
    ),
    *(
        b"1" + b"0" * 400,
        b"9" * 5000,
        b"1e400",
        b"-1e400",
        b"NaN",
        b"Infinity",
        b"1e200",
    ),
    *(b"[" * 100_000, b'{"a":' * 2000, b"x" * 140_000, b"=1+1", b"\x1b[2J", b"\t@A1"),
    *(
        b"null",
        b"true",
        b'""',
        b"{}",
        b"[]",
        b"\\ud800",
        b"-",
        b"0x1p9",
        b"\xef\xbb\xbf",
    ),
]
"""Values to put into logs."""


def hostile_logs(count: int, seed: int = 0) -> Outcome:
    """Untrusted logs are judged, or refused in one sentence."""
    rng, broken, judged = random.Random(seed), 0, 0
    with TemporaryDirectory() as folder:
        for _ in range(count):
            kind = rng.choice([*_LOGS])
            logs = _write_logs(Path(folder), kind, rng)
            victim = rng.choice(logs[rng.choice([*logs])])
            content = bytearray(victim.read_bytes())
            for _ in range(rng.randrange(1, 4)):
                start = rng.randrange(len(content) + 1)
                end = start + rng.choice((0, 0, 1, 5))
                content[start:end] = rng.choice(_HOSTILE)
            victim.write_bytes(content)
            try:
                found = judge(logs, metric=rng.choice(("acc", "acc", None)))
                _ = str(found) + "".join(
                    spell(found.summary) for spell in FORMATS.values()
                )
                judged += 1
            except UsageError as error:
                broken += "\n" in str(error).strip()
            except Exception as error:
                broken += 1
                print(f"  {kind}: {type(error).__name__}: {str(error)[:200]!a}")
            for path in Path(folder).rglob("*.*"):
                path.unlink()
    return Outcome("logs, hostile", count, broken, f"({judged} judged)")


_LOGS: dict[str, Callable[[list[float]], str]] = {
    "metrics.csv": lambda values: "acc,note\n" + "".join(f"{v},a\n" for v in values),
    "metrics.tsv": lambda values: (
        "note\tacc\n" + "".join(f'"a b"\t{v}\n' for v in values)
    ),
    "log.jsonl": lambda values: "".join(json.dumps({"acc": v}) + "\n" for v in values),
    "list.json": lambda values: json.dumps([{"acc": v, "b": {"c": 1}} for v in values]),
    "history.json": lambda values: json.dumps({"acc": values}),
    "trainer_state.json": lambda values: json.dumps(
        {"log_history": [{"acc": v, "step": 1} for v in values]}
    ),
}


def _write_logs(folder: Path, name: str, rng: random.Random) -> dict[str, list[Path]]:
    logs: dict[str, list[Path]] = {}
    for method in ("plain", "ema"):
        for number in range(3):
            path = folder / method / f"seed-{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_LOGS[name]([rng.random(), rng.random()]))
            logs.setdefault(method, []).append(path)
    return logs


def kills_at_writes(count: int) -> Outcome:
    """A comparison killed at a file write and resumed gives the same values.

    It is killed at the first write, and after each resume at the next one, until it
    finishes; both before and after the file gets its name.
    """
    broken = kills = 0
    with TemporaryDirectory() as folder:
        expected = _train(Path(folder), "whole")
        step = max(1, 14 // count)
        for moment in range(1, 15, step):
            name = f"killed-{moment}"
            for _ in range(40):
                if in_child(lambda m=moment, n=name: _die(m, folder, n)) == 0:
                    break
                kills += 1
            broken += _train(Path(folder), name) != expected
    return Outcome("comparisons killed at their writes", kills, broken)


def _die(moment: int, folder: str, name: str) -> None:
    """Train, and be killed at the n-th fsync."""
    force, calls = _files._force_to_disk, 0

    def dying(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        force(path)

    _files._force_to_disk = dying
    _train(Path(folder), name)


def _train(folder: Path, name: str) -> list[tuple]:
    options = RunOptions(out=folder, name=name, executor="inline", device="cpu")
    run = run_comparison(SMALL, options, keeps_trajectory=False)
    if run.error is not None:
        raise run.error
    with closing(sqlite3.connect(run.folder / "results.sqlite")) as file:
        query = (
            "SELECT method, seed, metric, epoch, value FROM metrics ORDER BY 1,2,3,4"
        )
        return file.execute(query).fetchall()


def full_disks(count: int) -> Outcome:
    """A checkpoint that does not fit on the disk leaves only the previous one."""
    broken = 0
    old, new = {"epoch": 1, "lines": 1}, {"epoch": 2, "weights": torch.randn(50_000)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cell.pt"
        checkpoints.save(path, old)

        def fill(limit: int) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            checkpoints.save(path, new)

        for number in range(count):
            limit = 1 + 200_000 * number // count
            if in_child(lambda limit=limit: fill(limit)) == 0:
                broken += 1
            left = [file.name for file in Path(folder).iterdir()]
            broken += checkpoints.read(path) != old or left != ["cell.pt"]
    return Outcome("full disks", count, broken)


_TRIALS = """
import subprocess, sys
import torch
import switch_ema

model = torch.nn.Linear(1, 1)
trial = switch_ema.trial(model, torch.optim.SGD(model.parameters(), lr=0.1))
trial.evaluate(lambda: {"score": 1.0})
if "again" not in sys.argv:
    subprocess.run([sys.executable, *sys.argv, "again"])
"""
SCRIPTS = {
    "hangs": (FAMILY, ""),
    "is deaf": (FAMILY, "deaf"),
    "leaves children": (FAMILY, "ends"),
    "calls trial in a child": (_TRIALS, ""),
}
"""Behaviours of scripts and their arguments; all but the last start processes in new
sessions."""


def killed_scripts(count: int, seed: int = 0) -> Outcome:
    """Scripts of a killed comparison leave no process, and none of their values count.

    Every fifth comparison has a worker, which is killed first.
    """
    rng, broken, in_time = random.Random(seed), 0, 0
    for number in range(count):
        text, argument = list(SCRIPTS.values())[number % len(SCRIPTS)]
        has_worker = number % 5 == 4
        slow = has_worker or text == _TRIALS  # they import torch
        with TemporaryDirectory() as name:
            folder, mark = Path(name), f"chaos-{os.getpid()}-{seed}-{number}"
            (folder / "script.py").write_text(text)
            child = os.fork()
            if child == 0:
                with suppress(BaseException):
                    os.environ["SWITCH_EMA_CHAOS"] = mark
                    os.chdir(folder)
                    _compare_script(argument, "local" if has_worker else "inline")
                os._exit(0)
            if (
                rng.random() < 0.75
            ):  # once the script has started, otherwise at any moment
                _wait_for(lambda mark=mark: _processes(mark, "script.py"))
            time.sleep(rng.uniform(0, 8 if slow else 1.5))
            if has_worker:
                for process in _processes(mark, "multiprocessing.spawn"):
                    os.kill(process, signal.SIGKILL)
                time.sleep(rng.uniform(0, 3))
            in_time += bool(_processes(mark, "script.py"))
            os.kill(child, rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
            os.waitpid(child, 0)
            _wait_for(lambda mark=mark: not _processes(mark))
            left = _processes(mark)
            for process in left:
                os.kill(process, signal.SIGKILL)
            believed = False
            with (
                suppress(UsageError),
                closing(Results(folder / "run/results.sqlite")) as r,
            ):
                believed = "done" in r.statuses().values()
            if left or believed:
                broken += 1
                print(f"  script {number}: left {left}, values stored: {believed}")
    note = f"({in_time} while they ran)"
    return Outcome("scripts with families, killed", count, broken, note)


def _compare_script(argument: str, executor: str) -> None:
    task = f"script:{sys.executable} script.py {{seed}} {argument}"
    config = CompareConfig(tasks=(task,), methods=("plain",), seeds=1)
    options = RunOptions(out=Path(), name="run", executor=executor, device="cpu")
    run_comparison(config, options)


def _wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)


def _processes(mark: str, program: str = "") -> list[int]:
    """List the running processes that inherited a mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended, or belongs to another user
                marked = mark.encode() in (folder / "environ").read_bytes()
                if marked and program.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
    return found


_SHUT_DOWN, _WITHOUT_THE_LOG = 0x8004587D, 2
"""ioctl that stops a file system at once, like a power cut."""


def power_cuts(count: int, seed: int = 0) -> Outcome:
    """After a power cut the last reported checkpoint, or a newer one, exists.

    Stops a file system on an image while checkpoints and a store are written, which
    loses everything that was not synced.
    """
    rng, broken, unreported = random.Random(seed), 0, 0
    with TemporaryDirectory() as folder:
        image, disk = Path(folder) / "image", Path(folder) / "disk"
        disk.mkdir()
        try:
            with image.open("wb") as file:
                file.truncate(64 << 20)
            _call("mkfs.ext4", "-q", "-F", image)
            _call("mount", "-o", "loop", image, disk)
        except (OSError, subprocess.CalledProcessError):
            note = "(skipped: needs root, mkfs.ext4 and a loop device)"
            return Outcome("power cuts while checkpoints are written", 0, 0, note)
        try:
            for _ in range(count):
                reported = _write_until_the_cut(disk, rng.uniform(0.05, 0.4))
                _call("umount", disk)
                _call("mount", "-o", "loop", image, disk)
                try:
                    found = checkpoints.read(disk / "cell.pt")
                    last = -1 if found is None else found["epoch"]
                    with closing(Results(disk / "results.sqlite", create=True)):
                        broken += last < reported
                    unreported += last > reported
                except UsageError as error:
                    broken += 1
                    print(f"  {error}")
        finally:
            _call("umount", disk)
    note = f"({unreported} newer than reported)"
    return Outcome("power cuts while checkpoints are written", count, broken, note)


def _call(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


def _write_until_the_cut(disk: Path, seconds: float) -> int:
    """Write checkpoints of successive epochs; return the last one reported."""
    found = checkpoints.read(disk / "cell.pt")
    first = 0 if found is None else found["epoch"] + 1
    reader, writer = os.pipe()

    def work() -> None:
        weights = torch.randn(100_000)
        with closing(Results(disk / "results.sqlite", create=True)) as results:
            for epoch in range(first, first + 10_000):
                checkpoints.save(disk / "cell.pt", {"epoch": epoch, "weights": weights})
                os.write(writer, struct.pack("q", epoch))
                results.set_meta("epoch", str(epoch))

    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.close(writer)
    time.sleep(seconds)
    folder = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(folder, _SHUT_DOWN, struct.pack("I", _WITHOUT_THE_LOG))
    os.close(folder)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        reports = pipe.read()
    return struct.unpack("q", reports[-8:])[0] if reports else first - 1


def long_trainings(epochs: int) -> Outcome:
    """The last epochs of a long training take no longer than the first."""
    times, save = [time.perf_counter()], loop.save_checkpoint

    def save_and_look(training: loop.Training) -> None:
        save(training)
        times.append(time.perf_counter())

    config = CompareConfig(tasks=("moons",), methods=("plain",), seeds=1, epochs=epochs)
    loop.save_checkpoint = save_and_look
    try:
        with TemporaryDirectory() as folder:
            options = RunOptions(
                out=Path(folder), name="long", executor="inline", device="cpu"
            )
            run = run_comparison(config, options, keeps_trajectory=False)
    finally:
        loop.save_checkpoint = save
    if run.error is not None:
        raise run.error
    lengths = [after - before for before, after in itertools.pairwise(times)]
    tenth = max(1, epochs // 10)
    early = statistics.median(lengths[tenth : 2 * tenth])
    ratio = statistics.median(lengths[-tenth:]) / early
    note = f"(the last tenth takes {ratio:.2f} times as long as the second)"
    return Outcome("epochs of one training", epochs, int(ratio > 1.5), note)


def everything(times: Times) -> Iterator[Outcome]:
    """Run all attempts against the bench."""
    yield creation_kills(times(300))
    for kind in DAMAGE:
        yield damaged_checkpoints(times(400), kind)
    for kind in DAMAGE:
        yield damaged_stores(times(400), kind)
    yield mutated_configurations(times(4000))
    yield damaged_sections(times(1000))
    yield exploded_seeds(times(4000))
    yield hostile_logs(times(2000))
    yield full_disks(times(100))
    yield killed_scripts(times(60))
    yield kills_at_writes(times(14))
    yield power_cuts(times(60))
    yield long_trainings(times(2000))
