"""The metadata of torch.distributed.checkpoint: what is read, and what cannot act."""

import io
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from switch_ema import merge_checkpoints
from switch_ema.averaging.offline.metadata import (
    Chunk,
    Place,
    Refused,
    covers,
    read_metadata,
)

files = pytest.importorskip("safetensors.torch")

STORED = Path(__file__).parents[1] / "data" / "dcp"
W = torch.arange(6.0).reshape(3, 2)
HALF = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)


@pytest.mark.parametrize("folder", sorted(STORED.iterdir()), ids=lambda path: path.name)
def test_what_each_python_has_written_is_merged(folder, tmp_path):
    """Each was written with dcp.save({"model": {"w": W, "half": HALF}, "epoch": 3})."""
    out = tmp_path / "m.safetensors"
    merge_checkpoints([folder, folder], out, key="model")
    result = files.load_file(out)
    assert torch.equal(result["w"], W) and torch.equal(result["half"], HALF)


def test_the_stored_folders_differ_in_how_python_pickles():
    """So that the test above is about what it says."""
    stored = {path.name: (path / ".metadata").read_bytes() for path in STORED.iterdir()}
    assert {name for name, raw in stored.items() if b"getattr" in raw} == {
        "python3.11.2-torch2.15.0"
    }
    assert {name for name, raw in stored.items() if b"pathlib._local" in raw} == {
        "python3.13.0-torch2.15.0"
    }


def metadata(chunks=None, places=None, **others):
    """Return what torch would write for one tensor of shape [3, 2]."""
    chunks = [((0, 0), (3, 2))] if chunks is None else chunks
    boxes = [ChunkStorageMetadata(*map(torch.Size, chunk)) for chunk in chunks]
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([3, 2]), boxes)
    stored = {
        MetadataIndex("w", box.offsets, i): _StorageInfo("__0_0.distcp", 1000 * i, 1000)
        for i, box in enumerate(boxes)
    }
    return Metadata({"w": tensor, **others}, {"w": ("w",)}, stored | (places or {}))


def read(value, protocol=4):
    raw = value if isinstance(value, bytes) else pickle.dumps(value, protocol)
    return read_metadata(io.BytesIO(raw))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_protocols_and_older_versions_of_torch(protocol, monkeypatch):
    given = metadata(epoch=BytesStorageMetadata())
    now = read(given, protocol)
    whole = TensorProperties.__getstate__
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda own: whole(own)[:5])
    assert read(given, protocol) == now  # without strides
    assert now.tensors["w"] == (torch.float32, (3, 2)) and now.others == ["epoch"]
    place = Place("w", "__0_0.distcp", 0, 1000, True)
    assert now.chunks["w"] == [Chunk((0, 0), (3, 2), place)]


def called(module, name, *arguments):
    """Pickle the call of a function with texts and numbers."""
    pushed = b"".join(pickle.dumps(argument, 2)[2:-1] for argument in arguments)
    return f"c{module}\n{name}\n".encode() + b"(" + pushed + b"tR"


RECORD = b"ctorch.distributed.checkpoint.metadata\nStorageMeta\n"
READER = b"ctorch.distributed.checkpoint.filesystem\nFileSystemReader\n"
ENUM = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"

HOSTILE = {
    "a call": (called("os", "system", "touch ran"), "import os.system"),
    "a module of the current folder": (b"cevil\nanything\n", "import evil.anything"),
    "a module inside of torch's": (
        b"ctorch.distributed.checkpoint.evil\nx\n",
        "import torch.distributed.checkpoint.evil.x",
    ),
    "another class of torch's": (READER, "filesystem.FileSystemReader"),
    "a name with dots": (
        b"ctorch.distributed.checkpoint.metadata\nMetadata.__init__\n",
        "import .*Metadata.__init__",
    ),
    "the bases of a class": (RECORD + b"N}\x8c\x09__bases__)s\x86b", "not a record"),
    "an attribute of a class": (RECORD + b"}\x8c\x04name)sb", "not a record"),
    "an invalid state": (RECORD + b")\x81K\x01b", "StorageMeta is invalid"),
    "two states": (RECORD + b")\x81}b}b", "the state of a StorageMeta twice"),
    "getattr": (
        b"cbuiltins\ngetattr\n" + RECORD + b"\x8c\x08__init__\x86R",
        "would call builtins.getattr",
    ),
    "getattr of an enum": (
        b"cbuiltins\ngetattr\n" + ENUM + b"\x8c\x0f_member_map_xyz\x86R",
        "would call builtins.getattr",
    ),
    "the call of a record": (RECORD + b")\x81)R", "would call a value"),
    "arguments of a record": (RECORD + b"K\x01\x85\x81", "not a record"),
    "a record of numbers": (called("torch", "Size", 3), "size is not of type tuple"),
    "a dtype called": (called("torch", "float32"), "would call torch.float32"),
    "an old instruction": (b"(ios\nsystem\n", "has the instruction INST"),
    "another one": (b"(" + RECORD + b"o", "has the instruction OBJ"),
    "an extension": (b"\x82\x01", "has the instruction EXT1"),
    "a persistent object": (b"Px\n", "has the instruction PERSID"),
    "a memo without end": (b"N\xff", "opcode"),
    "a deep key": (b"})" + b"\x85" * 200_000 + b"Ns", "a key that is not a name"),
    "a list inside itself": (b"]q\x00h\x00a", "no Metadata where one is expected"),
    "a text without end": (b"\x8d" + (1 << 45).to_bytes(8, "little"), "expected"),
    "nothing": (b"", "uses a value that it never created"),
    "too few": (b"\x86", "takes more values than are on the stack"),
    "what was not kept": (b"h\x07", "uses a value that it never created"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_acts_and_nothing_is_imported(kind, tmp_path, monkeypatch):
    raw, sentence = HOSTILE[kind]
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\nanything = dict\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set(sys.modules)
    (tmp_path / "pickle").write_bytes(b"\x80\x04" + raw + b".")
    with open("pickle", "rb") as file, pytest.raises(Refused, match=sentence):
        read_metadata(file)
    assert set(sys.modules) == loaded and not (tmp_path / "ran").exists()


def test_a_huge_number_in_the_memo_takes_no_memory():
    """Python's own reader makes room for all numbers below it."""
    raw = pickle.dumps(metadata(), 4)
    kept = raw[:-1] + b"r\xff\xff\xff\xff."
    assert read(kept) == read(raw)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"chunks": [((0, 0), (4, 2))]}, "'w' is outside the tensor"),
        ({"chunks": [((0,), (3,))]}, "'w' is outside the tensor"),
        ({"places": {MetadataIndex("v"): 3}}, "no _StorageInfo"),
        ({"places": {MetadataIndex("v"): _StorageInfo("f", -1, 2)}}, "whole numbers"),
        ({"places": {MetadataIndex("v"): _StorageInfo(5, 1, 2)}}, "relative_path"),
        ({"places": {"v": _StorageInfo("f", 1, 2)}}, "a key that is not an index"),
        ({"v": 5}, "no TensorStorageMetadata"),
    ],
)
def test_records_of_other_kinds_are_refused(change, sentence):
    with pytest.raises(Refused, match=sentence):
        read(metadata(**change))


def test_chunks_that_are_one_list_end_soon():
    """A list that is named often would take the square of the file's size."""
    given = metadata()
    tensor = given.state_dict_metadata["w"]
    tensor.chunks *= 1000
    given.state_dict_metadata |= {f"w{i}": tensor for i in range(1000)}
    with pytest.raises(Refused, match="far more chunks than are stored"):
        read(given)


def chunks(*boxes):
    return [
        Chunk(offsets, sizes, Place("w", "f", 0, 1, True)) for offsets, sizes in boxes
    ]


@pytest.mark.parametrize(
    ("expected", "boxes"),
    [
        (True, [((0, 0), (4, 6))]),
        (True, [((0, 0), (2, 6)), ((2, 0), (2, 6))]),
        (True, [((0, 0), (2, 3)), ((2, 0), (2, 3)), ((0, 3), (4, 3))]),
        (True, [((0, 0), (4, 6)), ((4, 0), (0, 6))]),  # a rank without elements
        (False, []),
        (False, [((0, 0), (4, 5))]),
        (False, [((0, 0), (2, 6)), ((0, 0), (2, 6))]),
        (False, [((0, 0), (2, 6)), ((1, 0), (2, 6))]),
        (False, [((0, 0), (4, 6)), ((0, 0), (4, 6))]),
        (False, [((0, 0), (2, 3)), ((2, 3), (2, 3)), ((0, 0), (2, 6))]),
    ],
)
def test_chunks_cover_a_tensor_or_do_not(expected, boxes):
    assert covers((4, 6), chunks(*boxes)) is expected


def test_coverage_agrees_with_counting():
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(2000):
        cuts = torch.randint(0, 3, (3, 2, 2), generator=generator).sort(-1).values
        boxes = [
            (tuple(cut[:, 0].tolist()), tuple((cut[:, 1] - cut[:, 0]).tolist()))
            for cut in cuts
        ]
        counted = torch.zeros(2, 2, dtype=torch.int64)
        for (x, y), (width, height) in boxes:
            counted[x : x + width, y : y + height] += 1
        expected = bool((counted == 1).all())
        seen.add(expected)
        assert covers((2, 2), chunks(*boxes)) is expected
    assert seen == {True, False}


def test_sharded_tensors_of_torch_are_read(tmp_path):
    """A folder as several ranks write it: here the chunks come from one process."""
    values = torch.randn(5, 3)
    halves = {"0": values[:2].clone(), "1": values[2:].clone()}
    folder = tmp_path / "c"
    dcp.save(halves, checkpoint_id=folder, no_dist=True)
    with open(folder / ".metadata", "rb") as file:
        given = pickle.load(file)
    boxes, places = [], {}
    for name, first in (("0", 0), ("1", 2)):
        (box,) = given.state_dict_metadata[name].chunks
        box.offsets = torch.Size([first, 0])
        boxes.append(box)
        (place,) = (v for k, v in given.storage_data.items() if k.fqn == name)
        places[MetadataIndex("w", box.offsets)] = place
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([5, 3]), boxes)
    whole = Metadata({"w": tensor}, {}, places)
    (folder / ".metadata").write_bytes(pickle.dumps(whole))
    merge_checkpoints([folder, folder], tmp_path / "m.safetensors")
    assert torch.equal(files.load_file(tmp_path / "m.safetensors")["w"], values)
    boxes.pop()
    (folder / ".metadata").write_bytes(pickle.dumps(whole))
    with pytest.raises(ValueError, match=r"chunks of w in .*c do not cover each"):
        merge_checkpoints([folder, folder], tmp_path / "n.safetensors")
    assert not list(tmp_path.glob("*n.*"))
