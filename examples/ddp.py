"""Switch EMA under DDP: scikit-learn's digits, with any number of processes.

    torchrun --nproc-per-node 2 examples/ddp.py

Without torchrun, the script starts two processes itself.
"""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from switch_ema import SwitchEMA, count_warmup

EPOCHS, BATCH = 10, 32


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    return images[:1400], labels[:1400], images[1400:], labels[1400:]


def main() -> None:
    dist.init_process_group("gloo")  # on GPUs: "nccl"
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y, x_test, y_test = data()
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    )
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    # Create it on every rank, from the wrapped model: DDP needs nothing else.
    sema = SwitchEMA(model, optimizer, decay=count_warmup(0.99))

    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH * world):
            own = batch[rank::world]
            nn.functional.cross_entropy(model(x[own]), y[own]).backward()
            optimizer.step()
            optimizer.zero_grad()
        sema.end_epoch()

    model.eval()
    with sema.averaged(), torch.no_grad():
        correct = (model(x_test).argmax(1) == y_test).float().mean().item()
    if rank == 0:  # all ranks have the same average: one is enough to save it
        print(f"{world} processes, test accuracy of the average: {correct:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        sys.exit(subprocess.call([*launch, "--nproc-per-node=2", __file__]))
    torch.set_num_threads(1)  # the network is too small to share between cores
    main()
