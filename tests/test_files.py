"""A file is written completely or not at all."""

import errno
import os
import stat
from contextlib import nullcontext

import pytest

from switch_ema._files import read_inside, remove_unfinished, write_atomically


@pytest.mark.parametrize("content", ["text", b"text", lambda p: p.write_text("text")])
def test_content_comes_in_three_kinds(tmp_path, content):
    path = write_atomically(tmp_path / "file", content)
    assert path.read_text() == "text"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = write_atomically(tmp_path / "file", "old")

    def fail(unfinished):
        unfinished.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace

    def record(name, function):
        def recorded(*arguments):
            order.append(name)
            return function(*arguments)

        return recorded

    monkeypatch.setattr(os, "fsync", record("fsync", fsync))
    monkeypatch.setattr(os, "replace", record("rename", replace))
    write_atomically(tmp_path / "file", "text")
    assert order == ["fsync", "rename", "fsync"]  # the last one is the folder's


@pytest.mark.parametrize(
    ("number", "is_told"), [(errno.EIO, True), (errno.EINVAL, False)]
)
def test_a_folder_that_did_not_reach_the_disk_is_told(
    tmp_path, monkeypatch, number, is_told
):
    fsync = os.fsync

    def fail_for_folders(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(file)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    with pytest.raises(OSError) if is_told else nullcontext():
        write_atomically(tmp_path / "file", "text")


def test_permissions_are_those_of_a_file_that_is_simply_opened(tmp_path):
    (tmp_path / "plain").write_text("")
    path = write_atomically(tmp_path / "file", "")
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "plain", path)]
    assert modes[0] == modes[1]


def test_leftovers_of_a_kill_are_removed_and_nothing_else(tmp_path):
    for name in (".results.123.partial", "keep.partial", ".hidden"):
        (tmp_path / name).write_text("")
    remove_unfinished(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", "keep.partial"]


def test_a_link_in_the_place_of_the_temporary_file_is_not_written_through(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    inside = tmp_path / "run"
    inside.mkdir()
    (inside / f".file.{os.getpid()}.partial").symlink_to(outside)
    write_atomically(inside / "file", "text")
    assert outside.read_text() == "kept"
    assert (inside / "file").read_text() == "text"


def test_nothing_outside_of_a_folder_is_read(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    run = tmp_path / "run"
    (run / "inner").mkdir(parents=True)
    (run / "inner" / "file").write_text("own")
    (run / "link").symlink_to(tmp_path / "outside" / "file")
    (run / "linked").symlink_to(tmp_path / "outside")
    os.mkfifo(run / "pipe")
    assert read_inside(run, "inner", "file") == b"own"
    (tmp_path / "alias").symlink_to(run)
    assert read_inside(tmp_path / "alias", "inner", "file") == b"own"
    for names in (
        ("link",),
        ("linked", "file"),
        ("pipe",),
        ("inner",),
        ("..", "outside", "file"),
        ("../outside/file",),
        (str(tmp_path / "outside" / "file"),),
        ("",),
        ("missing",),
    ):
        with pytest.raises(OSError):
            read_inside(run, *names)
