"""The benchmark of images: what it reads of the events of two moves."""

from moving import images


def test_sizes_are_of_the_first_image_and_what_the_second_added():
    first = {"bytes": 900, "stored_bytes": 400, "new_bytes": 400}
    second = {"bytes": 910, "stored_bytes": 410, "new_bytes": 90}
    dumps = [
        {"image": image, "stages_ns": {"hold": 20_000_000, "dump": 3_000_000_000}, "lost_steps": 0}
        for image in (first, second)
    ]
    found = images.summary(2, dumps, [{"restore_ns": 1_000_000_000}, {"restore_ns": 1_500_000_000}])
    assert (found["raw"], found["stored"], found["new"]) == (900, 400, 90)
    assert found["state"] == 12 * 6
    assert found["stages_s"] == {"hold": 0.02, "dump": 3.0}
    assert found["restore_s"] == [1.0, 1.5]
    assert found["steps_redone"] == 0


def test_a_host_that_cannot_dump_is_said_and_leaves_the_figure_out(monkeypatch, capsys):
    monkeypatch.setattr(images.process_dump, "lacks", lambda: "no criu in PATH")
    assert images.run(quick=True) == {}
    assert "no criu in PATH" in capsys.readouterr().err
