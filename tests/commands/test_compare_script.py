"""`switch-ema compare --script`, as it is typed."""

SCRIPT = ("compare", "--script", "python train.py --seed {seed}")


def test_the_plan_has_two_trainings_for_each_seed(call):
    code, out, _ = call(*SCRIPT, "--seeds", "3", "--metric", "loss", "--dry-run")
    assert code == 0 and "plain, ema" in out and "switch-ema" in out
    assert out.count("its own") == 2


def test_bad_input_is_one_sentence(call):
    for more, sentence in (
        (("digits",), "a script is compared by itself, without tasks."),
        (("--track", "tensorboard"), "a script logs by itself; --track is for tasks."),
        (("--epochs", "3"), "epochs does not go with a script"),
        (("--config", "x.json"), "--config repeats a stored comparison"),
    ):
        arguments = ("compare", *more, *SCRIPT[1:])
        code, _, err = call(*arguments, "--dry-run")
        assert code == 2 and sentence in err
