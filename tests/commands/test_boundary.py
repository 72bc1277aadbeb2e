"""`switch-ema boundary`: tables, pictures and a page."""


def test_table_pictures_and_page(call, tmp_path):
    task = "moons:lr=0.1,momentum=0.9"
    code, out, _ = call("boundary", task, "--seeds", 3, "--epochs", 4)
    assert code == 0
    (folder,) = (tmp_path / "runs").glob("boundary-moons-*")
    for name in ("boundary-moons", "boundary-moons-measures"):
        for ending in ("png", "svg"):
            assert (folder / "figures" / f"{name}.{ending}").stat().st_size > 1000
    assert "roughness" in out and "baseline" in out
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 2
    assert task in page and "<script" not in page
    code, out, _ = call("boundary", task, "--seeds", 3, "--epochs", 4)
    assert code == 0 and "2 of 2 trainings are already done" in out


def test_a_task_that_is_not_in_the_plane_is_one_sentence(call):
    code, _, err = call("boundary", "digits", "--seeds", 2)
    assert code == 2 and "choose circles or moons" in err and "Traceback" not in err
