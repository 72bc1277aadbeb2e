"""Switch EMA of a model sharded by FSDP2: each rank averages its own shards.

    torchrun --nproc-per-node 2 examples/fsdp2.py

Without torchrun, the script starts two processes itself.
"""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard

from switch_ema import SwitchEMA, count_warmup

EPOCHS, BATCH = 10, 32


def build() -> tuple[nn.Module, torch.optim.Optimizer, SwitchEMA]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    fully_shard(model)  # shard first, then create optimizer and averager
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return model, optimizer, SwitchEMA(model, optimizer, decay=count_warmup(0.95))


def main(folder: str) -> None:
    dist.init_process_group("gloo")  # on GPUs: "nccl"
    rank, world = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    train, test = slice(0, 1400), slice(1400, None)
    model, optimizer, sema = build()

    for _ in range(EPOCHS):
        for batch in torch.randperm(1400).split(BATCH * world):
            own = batch[rank::world]
            nn.functional.cross_entropy(model(x[train][own]), y[train][own]).backward()
            optimizer.step()
            optimizer.zero_grad()
        sema.end_epoch()

    # Any number of processes can load this; save model and optimizer with it.
    dcp.save({"sema": sema}, checkpoint_id=folder)
    model, optimizer, sema = build()
    dcp.load({"sema": sema}, checkpoint_id=folder)

    model.eval()
    with sema.averaged(), torch.no_grad():
        correct = (model(x[test]).argmax(1) == y[test]).float().mean().item()
    weights = sema.averaged_state_dict(full=True)  # gathers; rank 0 has the result
    if rank == 0:
        plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        plain.load_state_dict(weights)
        print(f"{world} processes, test accuracy of the average: {correct:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        with tempfile.TemporaryDirectory() as folder:
            command = [*launch, "--nproc-per-node=2", __file__, folder]
            sys.exit(subprocess.call(command))
    torch.set_num_threads(1)  # the network is too small to share between cores
    main(sys.argv[1] if len(sys.argv) > 1 else "checkpoint")
    # For gloo only: its threads outlive destroy_process_group() and can abort the exit.
    sys.stdout.flush()
    os._exit(0)
