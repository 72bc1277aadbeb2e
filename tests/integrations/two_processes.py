"""Lightning in two processes on the CPU; run by test_lightning.py.

Usage: two_processes.py FOLDER
"""

import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

import torch
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[2]))
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from switch_ema.integrations.best import BestBy
from switch_ema.integrations.lightning import SwitchEMACallback
from switch_ema.integrations.sharding import gathered
from tests.integrations import lightning_runs as shared
from tests.integrations.helpers import OPTIONS, loader, sgd, small_network


class Module(shared.Module):
    """Each process takes every second row, so that two batches make one of 32."""

    def __init__(self, shard: bool):
        super().__init__()
        self.net, self.shard = small_network(), shard

    def configure_model(self):
        if self.shard:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])
            self.shard = False

    def configure_optimizers(self):
        return sgd(self.net)

    def train_dataloader(self):
        data = loader().dataset
        sampler = DistributedSampler(data, 2, self.global_rank, shuffle=False)
        return DataLoader(data, 16, sampler=sampler)


class Report(Callback):
    def __init__(self, callback: SwitchEMACallback, path: Path):
        self.callback, self.path = callback, path

    def on_fit_end(self, trainer, pl_module):
        averager = self.callback.averager
        state = {
            "averaged": gathered(averager.averaged_state_dict()),
            "live": gathered(averager.live_state_dict()),
            "steps": averager.steps,
            "best": gathered(self.callback.best.averaged_state_dict()),
            "further": gathered(self.callback.further["ema_0.9"].averaged_state_dict()),
            "scores": self.callback.best.scores,
            "logged": {n: float(v) for n, v in trainer.callback_metrics.items()},
        }
        if trainer.is_global_zero:
            torch.save(state, self.path)


def strategy(kind: str):
    if kind == "ddp":
        return DDPStrategy(process_group_backend="gloo")
    return ModelParallelStrategy(2, 1, False, process_group_backend="gloo")


def run(kind: str, folder: Path, name: str, ckpt: Path | None = None):
    # The loss falls, so that by this score the first average is the best.
    best = BestBy("loss", higher_is_better=True, error=0.0)
    more = {"evaluate": "both", "decays": [0.9], "log_averaging": True}
    callback = SwitchEMACallback(best=best, **more, **OPTIONS)
    keep = ModelCheckpoint(folder, f"{name}-{{epoch}}", save_top_k=-1)
    report = Report(callback, folder / f"{name}.pt")
    trainer = shared.trainer(
        folder,
        callback,
        keep,
        report,
        strategy=strategy(kind),
        devices=2,
        use_distributed_sampler=False,
    )
    module = Module(shard=kind == "fsdp2")
    trainer.fit(module, val_dataloaders=loader(), ckpt_path=ckpt)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def leave(child: int) -> NoReturn:
    """Exit with an error if this or the other process failed.

    Without Python's teardown: with FSDP2, a thread of gloo can abort it.
    """
    failed = child and os.waitpid(child, 0)[1]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    child = os.fork()  # spares the second process its imports
    os.environ["LOCAL_RANK"] = "0" if child else "1"
    for kind in ("ddp", "fsdp2"):
        run(kind, folder / kind, "whole")
        run(kind, folder / kind, "resumed", folder / kind / "whole-epoch=0.ckpt")
    leave(child)
