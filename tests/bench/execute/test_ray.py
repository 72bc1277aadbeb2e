"""Comparisons on Ray: the numbers of a local run, whatever happens to the nodes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute import ray as executor
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.local import train_or_explain
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.execute.ray_progress import Board
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.results.store import Results
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.result import CellResult
from tests.bench.execute.divided import assert_trained_as_one
from tests.bench.execute.test_guard import is_alive, wait_for

NODE = {
    "num_cpus": 1,
    "num_gpus": 0,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
}
SETTINGS = {
    # Ray would kill the tests' workers if other programs fill the machine's memory.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}

# A task that can be made to wait in its second epoch, and that counts its steps.
WAITING = """

class Waiting(Tiny):
    def train_loader(self, epoch):
        import os, time
        from pathlib import Path
        import ray

        here = Path(__file__).parent
        if ray.is_initialized() and epoch == 1:
            node = ray.get_runtime_context().get_node_id()
            stops = here / f"stop-{node}", here / f"stop-{self.seed}"
            if any(stop.exists() for stop in stops):
                # Renamed into place: a reader finds the whole number or no file.
                note = here / f"waiting-{os.getpid()}"
                note.write_text(str(os.getpid()))
                note.replace(here / "waiting")
            while any(stop.exists() for stop in stops):
                time.sleep(0.05)
        return super().train_loader(epoch)

    def loss(self, model, batch):
        from pathlib import Path

        if not torch.is_grad_enabled():  # the training loss of the final weights
            return super().loss(model, batch)
        with (Path(__file__).parent / "counted").open("a") as file:
            file.write(".")
        return super().loss(model, batch)


class Divided(Tiny):
    def model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def train_loader(self, epoch):
        import os
        from pathlib import Path

        kill = Path(__file__).parent / "kill"
        if os.environ.get("RANK") == "1" and epoch == 1 and kill.exists():
            kill.unlink()
            os._exit(1)
        return super().train_loader(epoch)


class Crashing(Tiny):
    def model(self):
        import os

        os._exit(1)
"""


@pytest.fixture(scope="module")
def cluster():
    """A head of one CPU, where the driver is; tests add nodes and take them away."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def file(tiny):
    """The user's file, with tasks that go wrong."""
    path = Path(tiny.partition(":")[0])
    path.write_text(path.read_text() + WAITING)
    return path


@pytest.fixture
def config(file):
    """Four cells of twelve steps."""
    methods = ("plain", "ema", "switch-ema")
    return CompareConfig(tasks=(f"{file}:Waiting",), methods=methods, seeds=2)


def run(config, folder, **more):
    options = RunOptions(out=folder, name="run", device="cpu", **more)
    done = run_comparison(config, options)
    if done.error is not None:
        raise done.error
    found, results = open_run(done.folder)
    tasks = summarize(found, results, "run").tasks
    return [(task.curves, task.results, task.missing) for task in tasks]


def test_a_node_killed_during_the_comparison_costs_nothing(config, cluster, tmp_path):
    local = run(config, tmp_path / "local", executor="inline")
    steps, waiting = tmp_path / "counted", tmp_path / "waiting"
    assert len(steps.read_text()) == 48
    node = cluster.add_node(**NODE)
    (tmp_path / f"stop-{node.node_id}").touch()

    def kill():
        wait_for(waiting.exists)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    remote = run(config, tmp_path / "ray", executor="ray", address=cluster.address)
    killer.join()
    assert waiting.exists()
    assert remote == local
    # The lost cell went on from its checkpoint: no step was taken twice.
    assert len(steps.read_text()) == 2 * 48
    assert kept(tmp_path / "ray" / "run") == kept(tmp_path / "local" / "run")
    assert not list((tmp_path / "ray" / "run").glob(".ray-*"))


def kept(folder):
    paths = (folder / "cells").glob("**/*")
    return {str(path.relative_to(folder)) for path in paths if path.is_file()}


def test_two_workers_train_as_one_process_also_after_one_was_killed(
    file, cluster, tmp_path
):
    task = f"{file}:Divided"
    config = CompareConfig(tasks=(task,), methods=("switch-ema",), seeds=1)
    [cell], told = make_plan(config), []
    one = train_or_explain(cell, RunContext(tmp_path / "one", "cpu"), lambda *_: None)
    (tmp_path / "kill").touch()
    node = cluster.add_node(**NODE)
    context = RunContext(tmp_path / "two", "cpu", workers=2)
    try:
        [(_, two)] = train_cells(
            [cell],
            lambda _: context,
            0,
            lambda _, *now: told.append(now),
            executor="ray",
            address=cluster.address,
        )
    finally:
        cluster.remove_node(node)
    assert not (tmp_path / "kill").exists()
    assert_trained_as_one(two, one, told)


def test_more_workers_than_the_cluster_has_room_for_are_refused():
    nodes, share = [node(4), node(1), node(9, alive=False)], executor.Share(1, 0)
    assert executor.trainings_at_once(nodes, share, 2) == 2
    with pytest.raises(
        UsageError, match=r"a training with 8 workers does not fit: .* for 5 with"
    ):
        executor.trainings_at_once(nodes, share, 8)
    with pytest.raises(UsageError, match="room for 0 with a GPU each"):
        executor.trainings_at_once(nodes, executor.Share(1, 1), 2)


def test_workers_that_do_not_see_the_folder_send_what_is_kept(
    config, cluster, tmp_path, monkeypatch
):
    cells, told = make_plan(config)[:2], []
    here, there = tmp_path / "local", tmp_path / "ray"
    local = {cell.id: result for cell, result in trained(cells, here)}
    monkeypatch.setattr(executor, "_marked", lambda folders: nullcontext(".unseen"))
    for cell, result in trained(
        cells,
        there,
        lambda cell, epoch, _: told.append((cell.id, epoch)),
        executor="ray",
        address=cluster.address,
    ):
        assert result.values == local[cell.id].values
    assert {(cell.id, 3) for cell in cells} <= set(told)
    # Of the first cell the weights of each epoch and the checkpoint, of the other none.
    assert len(kept(there)) == 6  # checkpoint, its values, and the trajectory
    assert kept(there) == {name for name in kept(here) if cells[0].id in name}


def trained(cells, folder, progress=lambda *_: None, **where):
    def context_of(cell):
        return RunContext(folder, "cpu", keeps_trajectory=cell.id == cells[0].id)

    return train_cells(cells, context_of, 1, progress, **where)


def test_progress_is_told_by_the_epoch(config, cluster, tmp_path):
    stop, told = tmp_path / "stop-0", []
    stop.touch()  # after the first epoch, until that was told

    def progress(cell, epoch, latest):
        told.append(epoch)
        assert latest[0] == "error"
        stop.unlink(missing_ok=True)

    where = {"executor": "ray", "address": cluster.address}
    list(trained(make_plan(config)[:1], tmp_path, progress, **where))
    assert told[0] == 1 and told[-1] == 3 and told == sorted(told)


def silent_notes():
    class Silent:
        def note(self, cell, *told):
            time.sleep(600)

        def read(self):
            time.sleep(600)

    return Silent


def test_a_board_that_does_not_answer_delays_nothing(
    config, cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(Board, "_notes", staticmethod(silent_notes))
    where = {"executor": "ray", "address": cluster.address}
    [(_, result)] = trained(make_plan(config)[:1], tmp_path, **where)
    assert result.status == "done"


def test_an_error_in_the_users_task_is_one_line(file, cluster, tmp_path):
    config = CompareConfig(tasks=(f"{file}:Tiny:fail=True",), methods=("plain",))
    with pytest.raises(UsageError, match=r"tiny\.py, line \d+: KeyError: 'lost key'"):
        run(config, tmp_path, executor="ray", address=cluster.address)


def test_a_cell_that_always_kills_its_worker_is_given_up(
    file, cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(executor, "RETRIES", 0)
    config = CompareConfig(tasks=(f"{file}:Crashing",), methods=("plain",), seeds=1)
    where = {"executor": "ray", "address": cluster.address}
    [(_, result)] = trained(make_plan(config), tmp_path, **where)
    assert result.status == "failed"
    assert result.message.startswith("Ray gave it up: WorkerCrashedError: ")
    assert "\n" not in result.message


def test_weights_too_large_to_send_are_dropped_with_a_sentence(
    config, cluster, tmp_path, monkeypatch
):
    cell = make_plan(config)[0]
    context = RunContext(tmp_path / "elsewhere", "cpu", keeps_trajectory=True)
    job = executor.Job(cell, context, ".not-there", str(tmp_path), 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executor, "LARGEST", 1000)
    outcome = executor.train_anywhere(job, lambda *_: None)
    assert outcome.result.status == "done" and outcome.files is None
    executor._connect(cluster.address)
    with pytest.warns(UserWarning, match="weights are not kept"):
        fetched = executor._fetch(ray.put(outcome), cell, tmp_path)
    assert isinstance(fetched, CellResult) and fetched.values == outcome.result.values


def test_ctrl_c_cancels_and_leaves_a_report_of_what_finished(config, cluster, tmp_path):
    (tmp_path / "stop-1").touch()  # the second seed never finishes
    saved, waiting = tmp_path / "config.json", tmp_path / "waiting"
    saved.write_text(config.to_json())
    command = [
        *(sys.executable, "-m", "switch_ema", "compare", "--config", str(saved)),
        *("--out", str(tmp_path), "--name", "run", "--device", "cpu"),
        *("--executor", "ray", "--address", cluster.address),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    results = tmp_path / "run" / "results.sqlite"
    wait_for(lambda: stored(results) == 2 and waiting.exists())
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.strip() == "switch-ema: stopped; run the same command to continue."
    assert stored(results) == 2
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    worker = int(waiting.read_text())
    wait_for(lambda: not is_alive(worker))


def stored(path):
    with contextlib.suppress(UsageError):  # not there, or not complete, yet
        return len(Results(path).statuses())
    return 0


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install \"switch-ema\[bench,ray\]\""):
        RunOptions(executor="ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"executor": "k8s"},
            "executor must be local, ray, slurm or inline, got 'k8s'",
        ),
        ({"address": "auto"}, "address needs --executor ray, got 'auto'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        RunOptions(**options)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_an_address_where_nobody_listens_is_one_sentence(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError, match=f"Ray cannot be used at {address}: .*[.]$"):
        executor._connect(address)


def node(cpus, gpus=0, alive=True):
    return {"Alive": alive, "Resources": {"CPU": float(cpus), "GPU": float(gpus)}}


@pytest.mark.parametrize(
    ("nodes", "jobs", "gpus", "share"),
    [
        ([node(8)], 0, True, (1, 0)),  # one cell per core
        ([node(8)], 2, True, (4, 0)),
        ([node(8)], 20, True, (1, 0)),  # more than fit: they wait
        ([node(8), node(2)], 1, True, (2, 0)),  # the small node can take it, too
        ([node(0), node(8), node(99, alive=False)], 0, True, (1, 0)),
        ([node(64, 8)], 0, True, (8, 1)),  # one cell per GPU
        ([node(64, 8), node(64)], 0, True, (8, 1)),  # not on the node without
        ([node(64, 8)], 0, False, (1, 0)),
        ([], 0, True, (1, 0)),
    ],
)
def test_a_cell_gets_its_share_of_the_cluster(nodes, jobs, gpus, share):
    assert executor.share_of(nodes, jobs, gpus=gpus) == executor.Share(*share)


def test_a_cell_gets_the_cores_of_its_loaders():
    nodes = [node(8), node(12)]
    assert executor.share_of(nodes, 0, gpus=False, cores=4) == executor.Share(4, 0)
    assert executor.share_of(nodes, 0, gpus=False, cores=99) == executor.Share(8, 0)
