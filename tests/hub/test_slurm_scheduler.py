"""What is asked of Slurm, in its own commands. The real one is in tests/deploy/test_slurm.py."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import Unavailable, UsageError
from pulsetrain.hub.slurm_scheduler import SlurmScheduler, checked_name, run
from pulsetrain.recovery.scheduler import NodeRequest, SchedulerConfig, Unanswered
from tests.hub.fake_slurm import FakeSlurm

TEMPLATE = "/etc/spare file.sbatch"
MANY = ("", "ALL", "all", "n[1-9]", "n1,n2", "-n", "a b", "a;b", "a=b", "n1\n", "é", "x" * 65)


COMMENT = "--comment=pulsetrain-7f6567cb-7"


def scheduler(slurm, environ=None, **config):
    config = SchedulerConfig(kind="slurm", template=TEMPLATE, **config)
    return SlurmScheduler(config, environ or {}, slurm)


def test_a_node_is_drained_with_the_reason_on_one_line():
    slurm = FakeSlurm()
    scheduler(slurm).drain("gpu-07", 'Xid 79:\n "fallen off" the bus', job="j")
    assert slurm.commands[-1] == [
        "scontrol", "update", "NodeName=gpu-07", "State=DRAIN",
        "Reason=pulsetrain: Xid 79: fallen off the bus",
    ]  # fmt: skip


def test_a_reason_is_not_long():
    slurm = FakeSlurm()
    scheduler(slurm).drain("a", "x" * 10_000, job="j")
    assert len(slurm.reason) < 200


def test_what_somebody_else_has_drained_keeps_its_reason():
    slurm = FakeSlurm("MIXED+DRAIN", "a new fan")
    assert scheduler(slurm).drain("a", "gpu", job="j") == "a was drained already: a new fan"
    assert scheduler(slurm).give_back("a") == "a stays drained: a new fan"
    assert all("show" in command for command in slurm.commands)


def test_what_was_drained_here_is_given_back():
    slurm = FakeSlurm()
    scheduler(slurm).drain("a", "gpu", job="j")
    scheduler(slurm).give_back("a")
    assert slurm.commands[-1] == ["scontrol", "update", "NodeName=a", "State=RESUME"]
    assert scheduler(slurm).give_back("a") == "a was not drained"


def test_words_may_be_before_and_behind_the_programs():
    slurm = FakeSlurm()
    both = scheduler(slurm, scontrol="sudo -n scontrol", sbatch="sbatch --partition 'big gpus'")
    both.drain("a", "gpu", job="j")
    both.replace(NodeRequest(job="j", nnodes=4, least=4))
    assert slurm.commands[0][:3] == ["sudo", "-n", "scontrol"]
    assert slurm.commands[-1][:3] == ["sbatch", "--partition", "big gpus"]


def test_a_replacement_is_one_node_and_not_one_that_was_evicted():
    slurm = FakeSlurm()
    said = scheduler(slurm).replace(
        NodeRequest(job='j "$(touch x)"', nnodes=4, least=2, exclude=("n1", "n2"), number=7)
    )
    comment = "--comment=pulsetrain-f4ea4b75-7"
    assert slurm.commands == [["sbatch", "--parsable", "--nodes=1", comment, "--exclude=n1,n2", TEMPLATE]]
    assert said == "Slurm's job 4711"
    assert slurm.environs == [
        {"PULSETRAIN_REPLACEMENT_JOB": 'j "$(touch x)"', "PULSETRAIN_REPLACEMENT_NNODES": "2:4"}
    ]


def test_an_evicted_node_that_slurm_does_not_know_does_not_prevent_a_replacement():
    slurm = FakeSlurm(nodes=("n1", "n2"))
    request = NodeRequest(job="j", nnodes=4, least=2, exclude=("n1", "laptop"), number=7)
    assert scheduler(slurm).replace(request) == "Slurm's job 4711"
    assert slurm.commands[-1] == ["sbatch", "--parsable", "--nodes=1", COMMENT, "--exclude=n1", TEMPLATE]


def test_a_submission_without_an_answer_is_not_made_twice():
    slurm = FakeSlurm(nodes=("n1",), error="sbatch: no answer in 20 s")
    with pytest.raises(Unavailable, match="no answer"):
        scheduler(slurm).replace(NodeRequest(job="j", nnodes=4, least=2, exclude=("laptop",)))
    assert len(slurm.commands) == 1


def test_a_submission_without_an_answer_is_looked_for_before_it_is_made_again():
    slurm = FakeSlurm(slow=True)
    request = NodeRequest(job="j", nnodes=4, least=4, number=12)
    with pytest.raises(Unanswered):
        scheduler(slurm).replace(request)
    slurm.slow = False
    assert scheduler(slurm).replace(replace(request, again=True)) == "Slurm's job 4711"
    assert len(slurm.comments) == 1
    assert scheduler(slurm).replace(replace(request, number=1, again=True)) == "Slurm's job 4712"
    slurm.error = "scontrol: no answer in 20 s"
    with pytest.raises(Unanswered, match="not known whether a replacement was submitted"):
        scheduler(slurm).replace(replace(request, again=True))


@pytest.mark.parametrize("where", ["command", "template"])
def test_a_site_that_books_jobs_by_their_comment_keeps_it(tmp_path, where):
    template = tmp_path / "node.sbatch"
    template.write_text(
        "#!/bin/sh\n#SBATCH -N1 --comment=project-x\n" if where == "template" else "#!/bin/sh\n"
    )
    sbatch = "sbatch --comment project-x" if where == "command" else "sbatch"
    slurm = FakeSlurm()
    config = SchedulerConfig(kind="slurm", sbatch=sbatch, template=str(template))
    theirs = SlurmScheduler(config, {}, slurm)
    request = NodeRequest(job="j", nnodes=4, least=4, number=12)
    theirs.replace(request)
    assert not any(word.startswith("--comment=pulsetrain") for word in slurm.commands[0])
    assert "may have been submitted" in theirs.replace(replace(request, again=True))
    assert len(slurm.commands) == 1


def test_a_controller_that_was_too_slow_for_sbatch_may_have_taken_the_job():
    said = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    with pytest.raises(Unanswered, match=r"ended with status 1: .*timed out"):
        run(["sh", "-c", f"echo {said} >&2; exit 1"], {"PATH": "/bin:/usr/bin"}, 20)


def test_a_job_that_slurm_refuses_for_another_reason_is_submitted_once():
    slurm = FakeSlurm(error="sbatch: no such partition")
    with pytest.raises(Unavailable, match="no such partition"):
        scheduler(slurm).replace(NodeRequest(job="j", nnodes=4, least=2))
    assert len(slurm.commands) == 1


def test_the_hubs_own_place_in_slurm_is_not_that_of_the_replacement():
    slurm = FakeSlurm()
    environ = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "PATH": "/bin"}
    scheduler(slurm, environ).replace(NodeRequest(job="j", nnodes=1, least=1))
    assert {"SLURM_CONF", "PATH"} < slurm.environs[0].keys()
    assert not {"SLURM_JOB_ID", "SLURMD_NODENAME"} & slurm.environs[0].keys()


@pytest.mark.parametrize("name", MANY)
def test_a_name_that_slurm_would_read_as_more_than_one_node_is_refused(name):
    slurm = FakeSlurm()
    for call in (
        lambda: scheduler(slurm).drain(name, "gpu", job="j"),
        lambda: scheduler(slurm).give_back(name),
    ):
        with pytest.raises(UsageError, match="no name of a Slurm node"):
            call()
    assert slurm.commands == []
    scheduler(slurm).replace(NodeRequest(job="j", nnodes=1, least=1, exclude=("n1", name), number=7))
    assert slurm.commands == [["sbatch", "--parsable", "--nodes=1", COMMENT, "--exclude=n1", TEMPLATE]]


@given(st.text(max_size=70))
def test_every_name_that_passes_is_a_single_word(name):
    try:
        checked = checked_name(name)
    except UsageError:
        return
    assert checked == name
    assert not set(name) & set("[],=*;$`'\" \n\t/")


def test_a_command_that_fails_is_one_line():
    with pytest.raises(Unavailable, match=r"ended with status 3: not permitted$"):
        run(["sh", "-c", "echo first >&2; echo not permitted >&2; exit 3"], {"PATH": "/bin:/usr/bin"}, 20)
    with pytest.raises(Unavailable, match="no-such-program: No such file or directory"):
        run(["no-such-program"], {}, 20)


def test_a_command_that_does_not_end_is_ended():
    with pytest.raises(Unavailable, match=r"no answer in 0.2 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.2)


def test_a_command_gets_its_words_as_they_are():
    code = "import sys, os; print(sys.argv[1], os.environ['A'])"
    assert run([sys.executable, "-c", code, "$(id) ; *"], {"A": "`id`"}, 20) == "$(id) ; * `id`\n"
