"""Merges of checkpoints on disk: the result, the formats, and what is refused."""

import json
import os
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp

from switch_ema import (
    decay_profile,
    decay_weights,
    merge_checkpoints,
    power_profile,
    uniform_soup,
)
from switch_ema._files import write_atomically
from switch_ema.averaging.offline import merge, streams
from switch_ema.averaging.offline.profiles import DECAYS, profile_weights
from tests.averaging import helpers

files = pytest.importorskip("safetensors.torch")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let every tensor but the smallest be read in several blocks, in several parts."""
    for module in ("streams", "checkpoints"):
        name = f"switch_ema.averaging.offline.{module}.BLOCK"
        monkeypatch.setattr(name, 8)
    monkeypatch.setattr(streams, "PART", 20)


def state(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {
        "body.weight": torch.randn(7, 5, generator=generator).to(dtype),
        "body.bias": torch.randn(5, generator=generator).to(dtype),
        "scale": torch.randn((), generator=generator).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
        "counter": torch.tensor(seed),
        "mask": torch.tensor([True, False]),
    }


def saved(folder, states):
    folder.mkdir(exist_ok=True)
    paths = []
    for i, one in enumerate(states):
        paths.append(folder / f"step-{i}.safetensors")
        files.save_file(one, paths[-1])
    return paths


def floats(state):
    return {name: value for name, value in state.items() if value.is_floating_point()}


def assert_same(first, second):
    helpers.assert_same(dict(sorted(first.items())), dict(sorted(second.items())))


def test_the_mean_is_the_uniform_soup_bit_for_bit(tmp_path):
    states = [state(seed) for seed in range(7)]
    merged = merge_checkpoints(saved(tmp_path, states), tmp_path / "m.safetensors")
    result = files.load_file(merged.path)
    assert_same(floats(result), floats(uniform_soup(states)))
    assert result.keys() == states[0].keys()
    assert result["counter"].item() == 6  # of the last
    assert merged.coefficients == (1 / 7,) * 7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_summed_exactly_and_rounded_once(dtype, tmp_path):
    states = [state(seed, dtype) for seed in range(3)]
    out = tmp_path / "m.safetensors"
    merge_checkpoints(saved(tmp_path, states), out, [0.5, 0.25, 0.25])
    expected = sum(
        factor * one["body.weight"].double()
        for factor, one in zip([0.5, 0.25, 0.25], states, strict=True)
    )
    assert torch.equal(files.load_file(out)["body.weight"], expected.to(dtype))


def test_weights_stand_for_a_decay_of_the_learning_rate(tmp_path):
    """Steps of a constant rate, merged, end where steps of the decayed rate end."""
    steps = torch.randn(4, 3, dtype=torch.float64)
    shares = [0.9, 0.6, 0.2]
    states = [{"w": steps[: n + 1].sum(0)} for n in range(4)]
    out = tmp_path / "m.safetensors"
    merge_checkpoints(saved(tmp_path, states), out, decay_weights(shares))
    decayed = steps[0] + sum(
        share * step for share, step in zip(shares, steps[1:], strict=True)
    )
    torch.testing.assert_close(files.load_file(out)["w"], decayed, rtol=1e-12, atol=0)


def test_named_profiles():
    # 1 - sqrt falls steeply at first: sqrt(1/4) is the share of the oldest of four.
    minus_sqrt = profile_weights(decay_profile(DECAYS["minus-sqrt"]), 4)
    assert minus_sqrt[0] == pytest.approx(0.5) and minus_sqrt[1] == pytest.approx(
        0.5**0.5 - 0.5
    )
    linear = profile_weights(decay_profile(DECAYS["linear"]), 5)
    assert linear == pytest.approx([0.2] * 5)
    cosine = profile_weights(decay_profile(DECAYS["cosine"]), 4)
    assert cosine == pytest.approx(cosine[::-1]) and cosine[0] == pytest.approx(
        (1 - 0.5**0.5) / 2
    )
    power = profile_weights(power_profile(0.1), 4)
    assert power == sorted(power) and sum(power) == pytest.approx(1)


def test_a_decay_that_rises_and_weights_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must not rise"):
        decay_weights([0.2, 0.5])
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\], got 1.5"):
        decay_weights([1.5])
    paths = saved(tmp_path, [state(0), state(1)])
    for weights in ([1.0], [0.5, 0.6], [float("nan")] * 2):
        with pytest.raises(ValueError, match="2 numbers, one per checkpoint"):
            merge_checkpoints(paths, tmp_path / "m.safetensors", weights)
    with pytest.raises(ValueError, match="weights must be 'mean' or 'linear' or"):
        merge_checkpoints(paths, tmp_path / "m.safetensors", "median")


def test_formats_give_the_same_result(tmp_path):
    states = [state(seed) for seed in range(3)]
    expected = tmp_path / "expected.safetensors"
    merge_checkpoints(saved(tmp_path, states), expected, "cosine")
    torch_files, folders = [], []
    for i, one in enumerate(states):
        whole = {"model": one, "optimizer": {"moment": torch.ones(2)}, "epoch": 3}
        torch_files.append(tmp_path / f"{i}.pt")
        torch.save(whole, torch_files[-1])
        folders.append(tmp_path / f"dcp-{i}")
        dcp.save(whole, checkpoint_id=folders[-1], no_dist=True)
    for name, paths in {"torch": torch_files, "dcp": folders}.items():
        out = tmp_path / f"{name}.safetensors"
        merge_checkpoints(paths, out, "cosine", key="model")
        assert_same(files.load_file(out), files.load_file(expected))
    mixed = tmp_path / "mixed.safetensors"
    with pytest.raises(ValueError, match="has no tensors below 'model'; it has body"):
        merge_checkpoints([*folders, expected], mixed, key="model")
    with pytest.raises(ValueError, match=r"not dense tensors: epoch; name the part"):
        merge_checkpoints(torch_files, mixed)
    with pytest.raises(ValueError, match="not dense tensors: epoch"):
        merge_checkpoints(folders, mixed)


def test_transposed_tensors_of_torch_files(tmp_path):
    values = torch.arange(40.0).reshape(4, 10)
    for i in range(2):
        torch.save({"w": values.T + i}, tmp_path / f"{i}.pt")
    out = tmp_path / "m.safetensors"
    merge_checkpoints([tmp_path / "0.pt", tmp_path / "1.pt"], out)
    assert torch.equal(files.load_file(out)["w"], values.T + 0.5)


def sharded(folder, one):
    folder.mkdir()
    names = list(one)
    parts = {"a-1.safetensors": names[:2], "a-2.safetensors": names[2:]}
    for file, chosen in parts.items():
        files.save_file({name: one[name] for name in chosen}, folder / file)
    places = {name: file for file, chosen in parts.items() for name in chosen}
    index = folder / "a.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text("{}")
    return folder


def test_shards_come_out_as_they_went_in(tmp_path):
    states = [state(seed) for seed in range(2)]
    paths = [sharded(tmp_path / f"c{i}", one) for i, one in enumerate(states)]
    merged = merge_checkpoints(paths, tmp_path / "merged")
    folder = merged.path
    assert {file.name for file in folder.iterdir()} == {
        "a-1.safetensors",
        "a-2.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "merge.json",
    }
    places = json.loads((folder / "model.safetensors.index.json").read_text())
    result = {
        name: files.load_file(folder / file)[name]
        for name, file in places["weight_map"].items()
    }
    assert_same(floats(result), floats(uniform_soup(states)))
    merge_checkpoints(paths, tmp_path / "one.safetensors")
    assert_same(files.load_file(tmp_path / "one.safetensors"), result)


def test_transformers_loads_the_merged_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1
    )
    models = [transformers.GPT2LMHeadModel(config) for _ in range(2)]
    paths = [tmp_path / "0", tmp_path / "1"]
    for path, model in zip(paths, models, strict=True):
        model.save_pretrained(path, max_shard_size="1KB")
    merge_checkpoints(paths, tmp_path / "merged")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "merged")
    expected = uniform_soup([model.state_dict() for model in models])
    assert_same(dict(loaded.state_dict()), expected)


def test_the_record_says_what_it_was_made_from(tmp_path):
    paths = saved(tmp_path, [state(seed) for seed in range(2)])
    merged = merge_checkpoints(paths, tmp_path / "m.safetensors", "minus-sqrt")
    record = json.loads(merged.record.read_text())
    assert merged.record.name == "m.merge.json"
    assert [c["path"] for c in record["checkpoints"]] == [str(path) for path in paths]
    given = [c["coefficient"] for c in record["checkpoints"]]
    assert tuple(given) == merged.coefficients and given[0] == pytest.approx(0.5**0.5)
    assert record["weights"] == "minus-sqrt" and record["parameters"] == 41
    assert record["copied_from_the_last"] == ["counter", "mask"]


def without(name):
    return {key: value for key, value in state(1).items() if key != name}


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 4)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (without("body.bias"), r"missing: body\.bias"),
        (state(1) | {"new": torch.zeros(1)}, r"unexpected: new"),
        (
            state(1) | {"body.bias": torch.zeros(4)},
            r"of another shape: body\.bias is \[4\], expected \[5\]",
        ),
        (
            state(1) | {"scale": torch.tensor(0.5, dtype=torch.float64)},
            r"of another dtype: scale is torch.float64, expected torch.float32",
        ),
    ],
)
def test_another_model_is_refused_with_the_names(second, message, tmp_path):
    paths = saved(tmp_path, [state(0), second])
    with pytest.raises(ValueError, match=f"step-1.safetensors belongs to.*; {message}"):
        merge_checkpoints(paths, tmp_path / "m.safetensors")
    assert {file.name for file in tmp_path.iterdir()} == {path.name for path in paths}


class Runs:
    """A pickle that would run something."""

    def __reduce__(self):
        return os.mkdir, ("it-ran",)


def test_damaged_and_hostile_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = saved(tmp_path, [state(0), state(1)])
    cut(second)
    bad = {
        "step-1.safetensors": "is not a whole safetensors file",
        "cut.pt": "is not a whole file that torch.load reads",
        "object.pt": "is not a whole file that torch.load reads with weights_only",
        "plain.pkl": "is neither a safetensors file nor a zip file of torch.save",
        "list.pt": "has no tensors",
        "cut": r"__0_0.distcp is truncated: .* is not in it",
        "hostile": r"\.metadata is not from .*: it would import (posix|nt).mkdir",
        "nothing": "has 0 safetensors files, 0 shard indices and no .metadata",
        "x.safetensors.index.json": "is not an index of safetensors shards",
    }
    torch.save(state(1), "cut.pt")
    cut(tmp_path / "cut.pt")
    torch.save({"w": Runs()}, "object.pt")
    torch.save([torch.ones(1)], "list.pt")
    with open("plain.pkl", "wb") as file:
        pickle.dump(Runs(), file)
    for folder in ("cut", "hostile"):
        dcp.save(state(1), checkpoint_id=folder, no_dist=True)
    cut(tmp_path / "cut" / "__0_0.distcp")
    with open("hostile/.metadata", "wb") as file:
        pickle.dump(Runs(), file)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "x.safetensors.index.json").write_text(
        '{"weight_map": {"w": "../step-0.safetensors"}}'
    )
    for name, message in bad.items():
        with pytest.raises(ValueError, match=message) as raised:
            merge_checkpoints([first, tmp_path / name], tmp_path / "m.safetensors")
        assert name in str(raised.value)
    assert not (tmp_path / "it-ran").exists()
    assert not list(tmp_path.glob("m.*")) and not list(tmp_path.glob(".m*"))
    with pytest.raises(FileNotFoundError):
        merge_checkpoints([first, tmp_path / "absent"], tmp_path / "m.safetensors")


def test_shards_that_lack_a_tensor_are_refused(tmp_path):
    path = sharded(tmp_path / "c", state(0))
    files.save_file({"scale": torch.zeros(())}, path / "a-2.safetensors")
    with pytest.raises(ValueError, match="lack empty, counter, mask"):
        merge_checkpoints([path, path], tmp_path / "m.safetensors")


def test_the_folder_of_the_result_has_to_exist(tmp_path):
    paths = saved(tmp_path, [state(0), state(1)])
    with pytest.raises(FileNotFoundError, match=r"folder does not exist: '.*absent'"):
        merge_checkpoints(paths, tmp_path / "absent" / "m.safetensors")


def test_eight_bits_and_complex_numbers(tmp_path):
    values = torch.tensor([1.0, 2.0])
    states = [
        {"small": (values * n).to(torch.float8_e5m2), "complex": values * (1 + n * 1j)}
        for n in (1, 2)
    ]
    out = tmp_path / "m.safetensors"
    merge_checkpoints(saved(tmp_path, states), out)
    result = files.load_file(out)
    assert result["small"].dtype == torch.float8_e5m2
    assert result["small"].float().tolist() == [1.5, 3.0]
    assert result["complex"].tolist() == [1 + 1.5j, 2 + 3j]


def test_a_file_that_shrinks_meanwhile_is_named(tmp_path, monkeypatch):
    paths = saved(tmp_path, [state(0), state(1)])

    def shrink_and_write(path, content):
        cut(paths[1])
        return write_atomically(path, content)

    monkeypatch.setattr(merge, "write_atomically", shrink_and_write)
    with pytest.raises(ValueError, match=r"step-1.safetensors was truncated"):
        merge_checkpoints(paths, tmp_path / "m.safetensors")
    assert {file.name for file in tmp_path.iterdir()} == {path.name for path in paths}


def test_the_progress_is_told_part_by_part(tmp_path):
    paths, seen = saved(tmp_path, [state(0), state(1)]), []
    merge_checkpoints(
        paths, tmp_path / "m", progress=lambda done, total: seen.append((done, total))
    )
    done, totals = zip(*seen, strict=True)
    bytes_of_all = sum(tensor.nbytes for tensor in state(0).values())
    assert list(done) == sorted(done) and done[-1] == bytes_of_all
    assert set(totals) == {bytes_of_all}


@pytest.mark.parametrize("name", ["m.safetensors", "m"])
def test_nothing_is_left_behind_or_overwritten(name, tmp_path, monkeypatch):
    paths = saved(tmp_path, [state(seed) for seed in range(2)])
    before = {file.name for file in tmp_path.iterdir()}

    def fails(file, memory):
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(streams, "_write_all", fails)
        with pytest.raises(OSError, match="disk full"):
            merge_checkpoints(paths, tmp_path / name)
    assert {file.name for file in tmp_path.iterdir()} == before
    merge_checkpoints(paths, tmp_path / name)
    with pytest.raises(FileExistsError):
        merge_checkpoints(paths, tmp_path / name)


def test_a_weight_of_zero_leaves_infinities_out(tmp_path):
    good, bad = state(0), state(1)
    bad["body.bias"][:2] = torch.tensor([float("inf"), float("nan")])
    for order in ([good, bad], [bad, good]):
        weights = [1.0, 0.0] if order[0] is good else [0.0, 1.0]
        out = tmp_path / f"{weights[0]}.safetensors"
        merge_checkpoints(saved(tmp_path, order), out, weights)
        assert torch.equal(files.load_file(out)["body.bias"], good["body.bias"])


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m"])
def test_values_that_are_not_finite_are_refused_unless_allowed(name, tmp_path):
    for value in (float("nan"), float("-inf")):
        bad = state(1)
        bad["body.weight"][6, 4] = value  # in the last block
        paths = saved(tmp_path, [state(0), bad])
        message = r"step-1.safetensors has NaN or infinite values in body.weight; leave"
        with pytest.raises(ValueError, match=message):
            merge_checkpoints(paths, tmp_path / name)
        assert {file.name for file in tmp_path.iterdir()} == {p.name for p in paths}
    out = tmp_path / "allowed.safetensors"
    merge_checkpoints(paths, out, allow_non_finite=True)
    assert files.load_file(out)["body.weight"][6, 4] == float("-inf")


def test_large_numbers_are_finite_though_their_sum_is_not(tmp_path):
    largest = {"w": torch.full((4,), 1.7e308, dtype=torch.float64)}
    small = {"w": torch.tensor([2.0, 448.0]).to(torch.float8_e4m3fn)}
    for number, one in enumerate((largest, small)):
        out = tmp_path / f"m{number}.safetensors"
        merge_checkpoints(saved(tmp_path, [one, one]), out)
        assert torch.equal(files.load_file(out)["w"].double(), one["w"].double())
    nan = {"w": torch.tensor([2.0, float("nan")]).to(torch.float8_e4m3fn)}
    with pytest.raises(ValueError, match=r"step-0.safetensors has NaN"):
        merge_checkpoints(saved(tmp_path, [nan, small]), tmp_path / "bad.safetensors")


def test_the_ending_of_the_result_decides_its_format(tmp_path):
    paths = saved(tmp_path, [state(0), state(1)])
    expected = files.load_file(
        merge_checkpoints(paths, tmp_path / "m.safetensors").path
    )
    for name in ("torch.pt", "torch.pth"):
        merged = merge_checkpoints(paths, tmp_path / name)
        assert_same(torch.load(merged.path, weights_only=True), expected)
        assert merged.record == merged.path.with_suffix(".merge.json")
        merged.record.unlink()
    for name in ("merged", "llama-3.1", "qwen2.5-merged"):
        assert merge_checkpoints(paths, tmp_path / name).path.is_dir()
    for name in ("m.bin", "m.ckpt", "m.PT", "m.npz"):
        with pytest.raises(ValueError, match=r"out must end in .*, got 'm\.\w+'\."):
            merge_checkpoints(paths, tmp_path / name)


def test_names_in_files_cannot_move_the_cursor(tmp_path):
    clear = "\x1b[2Jw"
    paths = saved(tmp_path, [{"w": torch.zeros(2)}, {clear: torch.zeros(2)}])
    nan = saved(tmp_path / "more", [{clear: torch.tensor([float("nan")])}] * 2)
    torch.save({"model": {"w": torch.zeros(2)}, clear: "text"}, tmp_path / "other.pt")
    torch.save({"w": torch.zeros(2), "more": Named()}, tmp_path / "named.pt")
    raw = paths[0].read_bytes().replace(b'"F32"', rb'"\u001b"')
    raw = (len(raw) - 16).to_bytes(8, "little") + raw[8:]
    (tmp_path / "dtype.safetensors").write_bytes(raw)
    for wrong in (
        paths,
        nan,
        [tmp_path / "other.pt"] * 2,
        [tmp_path / "named.pt"] * 2,
        [tmp_path / "dtype.safetensors"] * 2,
    ):
        with pytest.raises(ValueError) as raised:
            merge_checkpoints(wrong, tmp_path / "m.safetensors")
        assert str(raised.value).isprintable() and r"\x1b" in str(raised.value)


class Named:
    """A pickle that names a function with a control character."""

    def __reduce__(self):
        return eval, ("\x1b[2J",)


def linked(folder):
    (folder / "tokenizer.json").symlink_to(folder.parent / "secret")


def piped(folder):
    os.mkfifo(folder / "vocab.txt")


def linked_folder(folder):
    (folder / "tokenizer").symlink_to(folder.parent / "private")


def linked_inside(folder):
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").symlink_to(folder.parent / "secret")


@pytest.mark.parametrize("put", [linked, piped, linked_folder, linked_inside])
def test_what_goes_with_the_weights_is_not_taken_from_elsewhere(put, tmp_path):
    (tmp_path / "private").mkdir()
    for name in ("secret", "private/secret"):
        (tmp_path / name).write_text("secret")
    folder = sharded(tmp_path / "c", state(0))
    put(folder)
    progress = []
    with pytest.raises(
        ValueError, match=r"(tokenizer|vocab).* is (a link|not a regul)"
    ):
        merge_checkpoints(
            [folder, folder],
            tmp_path / "out",
            progress=lambda *done: progress.append(done),
        )
    assert not progress  # it is said before the work, not after it
    assert not list(tmp_path.glob("*out*"))
    merge_checkpoints([folder, folder], tmp_path / "one.safetensors")


def test_a_folder_with_the_tokenizer_is_copied(tmp_path):
    folder = sharded(tmp_path / "c", state(0))
    (folder / "tokenizer" / "more").mkdir(parents=True)
    (folder / "tokenizer" / "vocab.json").write_text("{}")
    (folder / "tokenizer" / "more" / "merges.txt").write_text("a b")
    merged = merge_checkpoints([folder, folder], tmp_path / "out").path
    assert (merged / "tokenizer" / "vocab.json").read_text() == "{}"
    assert (merged / "tokenizer" / "more" / "merges.txt").read_text() == "a b"


def test_what_a_killed_merge_has_left_is_removed(tmp_path):
    paths = saved(tmp_path, [state(0), state(1)])
    dead = 2**22 + 1  # above the largest number that Linux gives to a process
    left = {
        f".m.safetensors.{dead}.partial": True,
        f".m.safetensors.{os.getpid()}.partial": True,
        f".m.merge.json.{dead}.partial": True,
        f".m.safetensors.{os.getppid()}.partial": False,  # it is being written
        f".n.safetensors.{dead}.partial": False,
        ".m.safetensors.mine.partial": False,
    }
    for name in left:
        (tmp_path / name).write_text("")
    merge_checkpoints(paths, tmp_path / "m.safetensors")
    assert {name for name in left if not (tmp_path / name).exists()} == {
        name for name, is_removed in left.items() if is_removed
    }
    folder = tmp_path / f".out.{os.getpid()}.partial"
    folder.mkdir()
    (folder / "model.safetensors").write_text("half")
    merge_checkpoints(paths, tmp_path / "out")
    assert not folder.exists()
