"""A script in the style of timm's train.py, with three lines for switch-ema.

    python examples/scripts/timm_script.py

trains as usual. These commands compare methods on it, with one process and two:

    cd examples/scripts
    switch-ema compare --metric top1 --script \
        "python timm_script.py --seed {seed} --output {folder}"
    switch-ema compare --metric top1 --script "torchrun --standalone \
        --nproc-per-node 2 timm_script.py --seed {seed} --output {folder}"
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from timm import utils
from timm.layers import Mlp
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import switch_ema


def train_one_epoch(model, loader, optimizer, loss_fn):
    model.train()
    losses = utils.AverageMeter()
    for inputs, target in loader:
        loss = loss_fn(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(target))
    return {"loss": losses.avg}


def validate(model, loader, loss_fn):
    model.eval()
    losses, top1 = utils.AverageMeter(), utils.AverageMeter()
    with torch.inference_mode():
        for inputs, target in loader:
            output = model(inputs)
            losses.update(loss_fn(output, target).item(), len(target))
            top1.update(utils.accuracy(output, target)[0].item(), len(target))
    return {"loss": losses.avg, "top1": top1.avg}


def main():
    parser = argparse.ArgumentParser(description="Digits")
    parser.add_argument("--opt", default="sgd")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--output", default="output")
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    args.device = "cpu"
    utils.init_distributed_device(args)
    utils.random_seed(args.seed, args.rank)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    train = torch.utils.data.Subset(data, range(600))
    test = torch.utils.data.Subset(data, range(600, 1797))

    model = Mlp(64, 64, 10, drop=0.1)
    optimizer = create_optimizer_v2(model, args.opt, lr=args.lr, momentum=0.9)
    scheduler, epochs = create_scheduler_v2(optimizer, num_epochs=args.epochs)
    sampler = None
    if args.distributed:
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(train, seed=args.seed)
    shuffle = sampler is None
    loader = DataLoader(train, args.batch_size, shuffle=shuffle, sampler=sampler)
    loader_eval = DataLoader(test, 500)
    loss_fn = nn.CrossEntropyLoss()
    trial = switch_ema.trial(model, optimizer)  # 1

    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        train_metrics = train_one_epoch(model, loader, optimizer, loss_fn)
        trial.end_epoch()  # 2
        metrics = trial.evaluate(lambda: validate(model, loader_eval, loss_fn))  # 3
        if utils.is_primary(args):
            summary = os.path.join(utils.get_outdir(args.output), "summary.csv")
            utils.update_summary(
                epoch, train_metrics, metrics, summary, write_header=epoch == 0
            )
            print(f"epoch {epoch}: top1 {metrics['top1']:.1f}%")
        scheduler.step(epoch + 1, metrics["top1"])
    if args.distributed:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
