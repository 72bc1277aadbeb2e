"""The Trainer of Transformers under FSDP2 on the CPU; run by test_transformers.py.

Usage: transformers_two_processes.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
import accelerate
from transformers import Trainer

from switch_ema.integrations.best import BestBy
from switch_ema.integrations.transformers import SwitchEMACallback
from tests.integrations import test_transformers as shared
from tests.integrations.two_processes import free_port, leave


class ShardingTrainer(Trainer):
    def create_accelerator_and_postprocess(self):
        # Accelerate looks at the plugin on a GPU only, and else makes it DDP. What
        # follows is its own and needs no GPU.
        multiple = accelerate.DistributedType.MULTI_GPU
        accelerate.PartialState().distributed_type = multiple
        super().create_accelerator_and_postprocess()


def run(folder: Path, resume: str | None = None, **options):
    # The loss falls, so the highest is that of the first epoch.
    best = BestBy("eval_loss", higher_is_better=True, error=0.0)
    more = {"best": best, "evaluate": "both", "decays": [0.5]}
    callback = SwitchEMACallback(**more, **shared.OPTIONS)
    settings = {
        "per_device_train_batch_size": shared.BATCH // 2,
        "save_strategy": "steps",
        "save_steps": shared.STEPS + 2,
        "eval_strategy": "epoch",
        "fsdp": True,
        "fsdp_config": {"transformer_layer_cls_to_wrap": ["GPT2Block"]},
        "ddp_backend": "gloo",
    }
    settings |= shared.ADAM | options
    trainer = shared.trainer(folder, callback, kind=ShardingTrainer, **settings)
    trainer.train(resume_from_checkpoint=resume)
    return callback, trainer


def report(folder: Path, name: str, callback, trainer) -> None:
    averager = callback.averager
    state = {
        "best": callback.best.averaged_state_dict(full=True),
        "further": callback.further["ema_0.5"].averaged_state_dict(full=True),
        "averaged": averager.averaged_state_dict(full=True),
        "live": averager.live_state_dict(full=True),
        "counts": (averager.steps, averager.epochs, averager.switches),
        "kind": type(trainer.model_wrapped).__name__,
        "held": sum(t.to_local().numel() for t in averager.averaged_tensors().values()),
        "losses": [
            log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log
        ],
    }
    tokens = torch.stack([row["input_ids"] for row in shared.rows()])
    with callback.best.averaged(), torch.no_grad():
        state["logits"] = trainer.model.eval()(input_ids=tokens).logits
    trainer.save_model(str(folder / f"{name} saved"))
    if trainer.is_world_process_zero():
        torch.save(state, folder / f"{name}.pt")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
    }
    child = os.fork()  # spares the second process its imports
    os.environ["LOCAL_RANK"] = os.environ["RANK"] = "0" if child else "1"
    report(folder, "whole", *run(folder / "run"))
    at = folder / "run" / f"checkpoint-{shared.STEPS + 2}"
    report(folder, "resumed", *run(folder / "again", str(at)))
    options = {"load_best_model_at_end": True, "greater_is_better": True}
    _, trainer = run(folder / "best", save_strategy="epoch", **options)
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        torch.save(loss, folder / "best.pt")
    torch.distributed.destroy_process_group()
    leave(child)
