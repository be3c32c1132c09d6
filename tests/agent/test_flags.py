"""torchrun's flags, and Pulsetrain's own, as options of a launch."""

import signal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pulsetrain.agent.flags import CONTEXT, launch_flags, launch_options
from pulsetrain.core.errors import UsageError


@pytest.fixture
def parse():
    """Options and notes of a command line."""

    def parse(*words, **more):
        notes, results = [], []

        @click.command(context_settings=CONTEXT)
        @launch_flags
        def command(**flags):
            results.append(launch_options(flags, notes.append, **more))

        CliRunner().invoke(command, words, standalone_mode=False, catch_exceptions=False)
        return results[0], notes

    return parse


def test_torchruns_words_mean_the_same(parse):
    options, notes = parse(
        *("--nproc_per_node=2", "--nnodes=3", "--max_restarts", "1", "--rdzv-id", "gpt"),
        *("--local_addr", "10.0.0.7", "--hub", "http://h:1", "train.py", "--lr", "3", "--hub"),
    )
    assert options.program.argv == ("train.py", "--lr", "3", "--hub")
    assert (options.node.nproc_per_node, options.node.nnodes, options.node.max_restarts) == (2, 3, 1)
    assert (options.job_name, options.node.address, options.hub.url) == ("gpt", "10.0.0.7", "http://h:1")
    assert notes == []


def test_a_log_folder_is_the_one_that_was_meant_also_for_a_script_that_goes_elsewhere(parse):
    options, _ = parse("--log-dir", "logs", "--data", "kept", "train.py")
    assert (options.output.log_dir, options.data) == (Path.cwd() / "logs", Path.cwd() / "kept")


SLURM = {
    "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "gpt", "SLURM_JOB_ID": "77",
    "SLURMD_NODENAME": "n2", "SLURM_STEP_NUM_NODES": "4",
}  # fmt: skip


def test_in_a_slurm_step_job_node_and_number_of_nodes_are_the_steps(parse):
    options, _ = parse("--hub", "http://h:1", "train.py", environ=SLURM)
    assert (options.job_name, options.node_name, options.node.nnodes) == ("gpt-77-train", "n2", 4)


def test_flags_win_over_slurm(parse):
    words = ("--job", "mine", "--node", "here", "--nnodes", "2", "--hub", "http://h:1", "train.py")
    options, _ = parse(*words, environ=SLURM)
    assert (options.job_name, options.node_name, options.node.nnodes) == ("mine", "here", 2)


@pytest.mark.parametrize("missing", ["SLURM_STEP_ID", "SLURM_PROCID"])
def test_a_batch_script_is_no_step(parse, missing):
    environ = {key: value for key, value in SLURM.items() if key != missing}
    options, _ = parse("train.py", environ=environ)
    assert (options.job_name, options.node.nnodes) == ("train", 1)


def test_flags_without_effect_are_noted(parse):
    _, notes = parse("--node-rank", "1", "--tee", "3", "--master-addr", "h", "train.py")
    assert [note.split()[1] for note in notes] == ["--node-rank", "--tee", "--master-addr"]


def test_short_spellings_and_newer_flags_of_torchrun_are_noted(parse):
    words = ("-r", "3", "-t", "0:1,1:2")
    _, notes = parse(*words, "--log-line-prefix-template", "x", "train.py")
    assert {note.split()[1] for note in notes} == {
        "--redirects", "--tee", "--log-line-prefix-template",
    }  # fmt: skip


def test_the_time_that_ranks_may_take_to_end_is_given_as_for_torchrun(parse):
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert parse("train.py")[0].shutdown_timeout_s is None
    assert parse("train.py", environ=environ)[0].shutdown_timeout_s == 7
    assert parse("--shutdown_timeout", "9", "train.py", environ=environ)[0].shutdown_timeout_s == 9


def test_signals_that_end_the_run_too_are_named_as_for_torchrun(parse):
    options, notes = parse("--signals_to_handle", "SIGTERM, SIGUSR1", "train.py")
    assert (set(options.end_signals), notes) == ({signal.SIGTERM, signal.SIGUSR1}, [])
    for wrong in ("SIGNONE", "SIGUSR1,SIGKILL"):
        with pytest.raises(UsageError, match=f"--signals-to-handle={wrong}: allowed: names"):
            parse("--signals-to-handle", wrong, "train.py")


PET = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "7", "PET_RDZV_ID": "gpt"}


@pytest.fixture
def pet(monkeypatch):
    """Set torchrun's variables."""
    for name, value in PET.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("pet")
def test_torchruns_variables_are_taken_and_flags_go_before_them(parse):
    options, notes = parse("--hub", "http://h:1", "--max-restarts", "1", "train.py")
    node = options.node
    assert (node.nnodes, node.nproc_per_node, node.max_restarts, node.job) == (2, 3, 1, "gpt")
    assert node.may_begin_anew
    assert notes == []
    assert parse("--nnodes", "4", "--hub", "http://h:1", "train.py")[0].node.nnodes == 4


@pytest.mark.usefixtures("pet")
def test_torchruns_variables_go_before_slurm(parse):
    assert parse("--hub", "http://h:1", "train.py", environ=SLURM)[0].node.nnodes == 2


def test_restarts_that_nobody_asked_for_do_not_let_a_script_begin_anew(parse):
    options, _ = parse("--hub", "http://h:1", "train.py")
    assert (options.node.max_restarts, options.node.may_begin_anew) == (3, False)


def test_variables_of_switches_are_taken(parse, monkeypatch):
    monkeypatch.setenv("PET_MODULE", "1")
    monkeypatch.setenv("PET_STANDALONE", "0")
    options, _ = parse("train")
    assert (options.program.mode, options.hub.own) == ("module", False)


def test_a_wrong_variable_is_named(parse, monkeypatch):
    monkeypatch.setenv("PET_MAX_RESTARTS", "x")
    with pytest.raises(click.UsageError) as refused:
        parse("train.py")
    assert "PET_MAX_RESTARTS" in refused.value.format_message()


def test_variables_without_effect_are_one_note_and_refuse_nothing(parse):
    environ = {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "h", "PET_RDZV_BACKEND": "c10d", "PET_TEE": ""}
    options, notes = parse("--nnodes", "2", "--hub", "http://h:1", "train.py", environ=environ)
    assert options.node.nnodes == 2
    assert len(notes) == 1
    assert "PET_NODE_RANK, PET_RDZV_BACKEND, PET_MASTER_ADDR" in notes[0]


def test_a_flag_that_would_change_what_happens_is_refused(parse):
    with pytest.raises(UsageError, match="--start-method: ranks are forked"):
        parse("--start-method", "spawn", "train.py")


@pytest.mark.parametrize(
    ("words", "mode"),
    [(["train.py"], "script"), (["-m", "train"], "module"), (["--no-python", "sh"], "exec")],
)
def test_how_the_program_runs(parse, words, mode):
    assert parse(*words)[0].program.mode == mode


def test_what_the_command_adds(parse):
    options, _ = parse("--quiet", "--local-ranks-filter", "0, 2", "--data", "~/d", "t.py", needs_hub=True)
    assert options.hub.required
    assert options.output.local_ranks == {0, 2}
    assert options.data == Path("~/d").expanduser()
    assert parse("t.py", standby=True)[0].node.standby


def test_a_relative_data_folder_is_that_of_the_command(parse):
    assert parse("--data", "here", "t.py")[0].data == Path.cwd() / "here"


def test_nothing_is_inferred_where_the_flag_says_so(parse):
    assert parse("t.py")[0].auto
    assert not parse("--no-auto", "t.py")[0].auto


@pytest.mark.parametrize(
    ("flags", "argv", "mode"),
    [
        (["--replay", "small.py --out '/a b'"], ("small.py", "--out", "/a b"), "script"),
        (["--replay", "-m pack.small 3", "-m"], ("pack.small", "3"), "module"),
        (["--replay", "small --x", "--no-python"], ("small", "--x"), "exec"),
    ],
)
def test_what_is_replayed_to_find_a_faulty_node(parse, flags, argv, mode):
    replay = parse(*flags, "train.py", "--layers", "96")[0].replay
    assert (replay.argv, replay.mode) == (argv, mode)
    assert parse("train.py")[0].replay is None


@pytest.mark.parametrize("text", ["", "-m", "small.py 'x"])
def test_a_replay_that_names_no_script_is_refused(parse, text):
    with pytest.raises(UsageError, match="--replay="):
        parse("--replay", text, "train.py")


@pytest.mark.parametrize("words", [("--job", "../x"), ("--rdzv-id", "/x"), ("--node", "a/../../b")])
def test_a_name_does_not_lead_out_of_the_data_folder(parse, words):
    with pytest.raises(UsageError, match=r"--(job|node)=.*: allowed: a name"):
        parse(*words, "train.py")


@pytest.mark.parametrize("name", ["two\nlines", "\udcff", "x" * 256, "名" * 86])
def test_a_name_that_no_hub_or_folder_takes_is_refused_at_once(parse, name):
    with pytest.raises(UsageError, match=r"--node .*: allowed: printable characters, 255 bytes at most"):
        parse("--node", name, "train.py")


def test_a_name_may_have_dots_and_parts(parse):
    options, _ = parse("--job", "team/gpt..2", "--node", "n1.cluster", "train.py")
    assert (options.job_name, options.node_name) == ("team/gpt..2", "n1.cluster")
