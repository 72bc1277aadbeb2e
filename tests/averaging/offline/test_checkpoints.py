"""Checkpoints that are damaged, or made to do harm: one sentence each."""

import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from switch_ema import merge_checkpoints
from switch_ema.averaging.offline.checkpoints import open_checkpoint

files = pytest.importorskip("safetensors.torch")

STATE = {"a": torch.arange(6.0), "b": torch.ones(2, 2)}


def refused(path, sentence, key=""):
    """Merge a checkpoint with itself; nothing may be written."""
    out = path.parent / "out"
    with pytest.raises(ValueError, match=sentence) as raised:
        merge_checkpoints([path, path], out, key=key)
    assert "\n" not in str(raised.value)
    assert not out.exists() and not list(path.parent.glob(".out*"))


@pytest.fixture
def folder(tmp_path):
    """A folder of torch.distributed.checkpoint."""
    dcp.save(STATE, checkpoint_id=tmp_path / "c", no_dist=True)
    return tmp_path / "c"


def change(folder, edit):
    """Edit the metadata of a folder."""
    file = folder / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    edit(metadata)
    file.write_bytes(pickle.dumps(metadata))


def places(metadata):
    return {index.fqn: index for index in metadata.storage_data}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("../shard", "refers to '../shard', which is not a file in it"),
        ("/etc/passwd", "refers to '/etc/passwd', which is not a file in it"),
        ("..", "refers to '..', which is not a file in it"),
        ("link", "c/link is a link that leads out of .*c and is not followed"),
        ("pipe", "c/pipe is not a regular file"),
        ("nul\0", r"refers to 'nul\\x00', which is not"),
    ],
)
def test_metadata_that_names_other_files(name, sentence, folder):
    os.mkfifo(folder / "pipe")
    (folder / "__0_0.distcp").rename(folder.parent / "shard")
    (folder / "link").symlink_to(folder.parent / "shard")

    def edit(metadata):
        for place in metadata.storage_data.values():
            place.relative_path = name

    change(folder, edit)
    refused(folder, sentence)


def test_a_metadata_file_that_is_a_link_or_a_pipe(folder):
    (folder / ".metadata").rename(folder.parent / "elsewhere")
    (folder / ".metadata").symlink_to(folder.parent / "elsewhere")
    refused(folder, r"c/.metadata is a link that leads out")
    (folder / ".metadata").unlink()
    os.mkfifo(folder / ".metadata")
    refused(folder, "0 safetensors files, 0 shard indices and no .metadata")


def test_chunks_that_are_larger_than_what_is_stored(folder):
    """So that a small file cannot ask for all memory."""

    def grow(metadata):
        tensor = metadata.state_dict_metadata["a"]
        tensor.size = tensor.chunks[0].sizes = torch.Size([1 << 40])

    change(folder, grow)
    refused(folder, r"a in .*c has 4398046511104 bytes, but only \d+ are stored")


def test_places_that_lie_upon_each_other(folder):
    def edit(metadata):
        size = (folder / "__0_0.distcp").stat().st_size
        for place in metadata.storage_data.values():
            place.offset, place.length = 0, size

    change(folder, edit)
    refused(folder, "__0_0.distcp is shorter than the metadata says")


def test_a_chunk_is_another_tensor_than_the_metadata_says(folder):
    def exchange(metadata):
        at = places(metadata)
        stored = metadata.storage_data
        stored[at["a"]], stored[at["b"]] = stored[at["b"]], stored[at["a"]]

    change(folder, exchange)
    refused(folder, r"[ab] in .*__0_0.distcp does not match its description")


def test_a_damaged_shard(folder):
    shard = folder / "__0_0.distcp"
    shard.write_bytes(bytes(shard.stat().st_size))
    refused(folder, r"[ab] in .*__0_0.distcp is not a whole file that torch.load reads")


def test_transformed_chunks(folder):
    def compress(metadata):
        at = places(metadata)["a"]
        place = metadata.storage_data[at]
        metadata.storage_data[at] = _StorageInfo(
            place.relative_path, place.offset, place.length, ["stream.zstd"]
        )

    change(folder, compress)
    refused(folder, "a in .*c is compressed or otherwise transformed")


def test_what_is_stored_beside_the_tensors_is_never_read(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)

    class Runs:
        def __reduce__(self):
            return os.mkdir, ("it-ran",)

    hostile = {"model": STATE, "other": Runs()}
    dcp.save(hostile, checkpoint_id="hostile", no_dist=True)
    merge_checkpoints(["hostile", "hostile"], "m.safetensors", key="model")
    assert torch.equal(files.load_file("m.safetensors")["a"], STATE["a"])
    assert not Path("it-ran").exists()


def index(folder, weight_map):
    folder.mkdir(exist_ok=True)
    text = weight_map if isinstance(weight_map, str) else json.dumps(weight_map)
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    "content",
    [
        *({"weight_map": {"a": name}} for name in ("../x.safetensors", "..", "", 5)),
        {"weight_map": {"a": "config.json"}},
        {"weight_map": []},
        [],
        "[" * 100_000,
        '{"weight_map": {"a": 1e999}}',
        "\ufeff",
    ],
    ids=lambda content: str(content)[:30],
)
def test_an_index_that_is_none(content, tmp_path):
    refused(index(tmp_path / "c", content), "index.json is not an index of safetensors")


def test_shards_that_are_links_or_pipes(tmp_path):
    folder = index(tmp_path / "c", {"weight_map": {"a": "1.safetensors"}})
    files.save_file(STATE, tmp_path / "outside.safetensors")
    shard = folder / "1.safetensors"
    shard.symlink_to(tmp_path / "outside.safetensors")
    refused(folder, "1.safetensors is a link that leads out of")
    shard.unlink()
    os.mkfifo(shard)
    refused(folder, "1.safetensors is not a regular file")
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"1\.safetensors"):
        open_checkpoint(folder)


def test_links_inside_of_a_folder_and_in_the_cache_of_hugging_face(tmp_path):
    folder = tmp_path / "models--x" / "snapshots" / "main"
    blobs = tmp_path / "models--x" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    files.save_file(STATE, blobs / "0123")
    (blobs / "4567").write_text("{}")
    (folder / "model.safetensors").symlink_to("../../blobs/0123")
    (folder / "config.json").symlink_to("../../blobs/4567")
    (folder / "tokenizer.json").symlink_to("config.json")
    merge_checkpoints([folder, folder], tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()
    (blobs / "4567").unlink()
    (tmp_path / "secret").write_text("secret")
    (blobs / "4567").symlink_to(tmp_path / "secret")
    refused(folder, "config.json is a link that leads out of")


def test_a_pipe_in_the_place_of_a_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "pipe is not a regular file")


def cyclic():
    content = {"a": torch.ones(1)}
    content["again"] = content
    return content


def laughing():
    content = {"a": torch.ones(1)}
    for _ in range(60):
        content = {"left": content, "right": content}
    return content


def rewrite(path, change):
    """Change the pickle inside of a file of torch."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in content.items():
            archive.writestr(name, change(raw) if name.endswith("data.pkl") else raw)


ENDLESS = {
    "cyclic": (cyclic, "its dictionaries are nested too deeply"),
    "laughing": (laughing, "its dictionaries are nested too deeply"),
    "collision": (
        lambda: {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        "two values are named a.b",
    ),
    "numbers": (
        lambda: {"1": torch.ones(1), 1: torch.ones(1)},
        "two values are named 1",
    ),
    "meta": (lambda: {"a": torch.ones(1, device="meta")}, "not dense tensors: a"),
    "half a character": (
        lambda: {"\ud800": torch.ones(1)},
        "a tensor whose name is not valid text",
    ),
    "expanded": (
        lambda: {"a": torch.ones(1).expand(1 << 40)},
        "take 4398046511104 bytes, but the",
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_files_of_torch_that_do_not_end(kind, tmp_path):
    make, sentence = ENDLESS[kind]
    torch.save(make(), tmp_path / "c.pt")
    refused(tmp_path / "c.pt", sentence)


def test_a_key_that_is_no_text_is_shown_by_its_type(tmp_path):
    torch.save({"a": {(1, 2): torch.ones(1)}}, tmp_path / "c.pt")
    assert list(open_checkpoint(tmp_path / "c.pt").tensors) == ["a.tuple"]


def test_nesting_that_torch_itself_does_not_pickle(tmp_path):
    """Each dictionary is put into the next one."""
    torch.save({"a": torch.ones(1)}, tmp_path / "c.pt")
    deep = b"\x80\x02" + b"}X\x01\x00\x00\x00a" * 5000 + b"N" + b"s" * 5000 + b"."
    rewrite(tmp_path / "c.pt", lambda raw: deep)
    refused(tmp_path / "c.pt", "its dictionaries are nested too deeply")


HOLLOW = b"\x80\x02})" + b"\x85" * 3_000_000 + b"Ns."
"""A dictionary whose key is a tuple in a tuple in a tuple: to hash it ends Python."""


def test_keys_that_would_end_python(folder, tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "c.pt")
    rewrite(tmp_path / "c.pt", lambda raw: HOLLOW)
    refused(tmp_path / "c.pt", "its tuples are nested too deeply")
    shard = (tmp_path / "c.pt").read_bytes()
    (folder / "__0_0.distcp").write_bytes(shard)

    def edit(metadata):
        for place in metadata.storage_data.values():
            place.offset, place.length = 0, len(shard)
        metadata.state_dict_metadata.pop("b")
        metadata.storage_data.pop(places(metadata)["b"])

    change(folder, edit)
    refused(folder, "a in .*its tuples are nested too deeply")


def test_attributes_from_a_file_are_not_called(tmp_path):
    content = OrderedDict(a=torch.ones(1))
    content.itemz = 5
    torch.save(content, tmp_path / "c.pt")
    rewrite(tmp_path / "c.pt", lambda raw: raw.replace(b"itemz", b"items"))
    merge_checkpoints([tmp_path / "c.pt"] * 2, tmp_path / "m.safetensors")
    assert files.load_file(tmp_path / "m.safetensors")["a"].tolist() == [1.0]


def test_names_may_collide_outside_of_the_part_that_is_merged(tmp_path):
    other = {"a.b": 1, "a": {"b": 2}}
    torch.save({"model": STATE, "other": other}, tmp_path / "c.pt")
    merge_checkpoints([tmp_path / "c.pt"] * 2, tmp_path / "m.safetensors", key="model")
