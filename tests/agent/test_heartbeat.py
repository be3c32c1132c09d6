"""What a heartbeat tells, as a message and as rows."""

import threading

from pulsetrain.agent.heartbeat import HeartbeatSender, NodeState, rows
from pulsetrain.agent.processes.rank import NodeIdentity
from pulsetrain.core.supervisor import LoopStatus
from pulsetrain.protocol.messages import Heartbeat, RankStatus, decode, encode

IDENTITY = NodeIdentity(job="gpt", node="n0", address="127.0.0.1", nproc_per_node=2)
LOOP = LoopStatus(
    name="echo", turns=3, failures=1, failures_in_a_row=0, last_error="OSError", age_s=0.25, stale=False
)


def status(rank, last_step):
    return RankStatus(
        rank=rank,
        local_rank=rank,
        pid=100 + rank,
        state="running",
        last_step=last_step,
        last_phase="forward",
        phase_age_ns=5,
        progress=1,
        progress_age_ns=2,
    )


def state(now_ns):
    return NodeState(
        attempt=4, ranks=(status(0, 7), status(1, 8)), held=(), gauges={"spool_bytes": 3.0}, loops=(LOOP,)
    )


def test_heartbeats_are_numbered_and_go_to_everybody():
    sent, recorded = [], []
    sender = HeartbeatSender(IDENTITY, state, (sent.append, recorded.append))
    for _ in range(3):
        sender.send()
    assert [h.seq for h in sent] == [0, 1, 2]
    assert sent == recorded
    assert (sent[0].job, sent[0].node, sent[0].attempt) == ("gpt", "n0", 4)
    assert sent[0].gauges["spool_bytes"] == 3.0
    assert "agent_cpu_ratio" in sent[0].gauges


def test_heartbeats_of_many_threads_keep_their_order():
    sent = []
    sender = HeartbeatSender(IDENTITY, state, (sent.append,))
    threads = [threading.Thread(target=sender.send) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [h.seq for h in sent] == list(range(20))
    assert [h.ts_ns for h in sent] == sorted(h.ts_ns for h in sent)


def test_how_the_agents_loops_are_reaches_the_hub():
    sent = []
    HeartbeatSender(IDENTITY, state, (sent.append,)).send()
    arrived = decode(encode(sent[0]))
    assert isinstance(arrived, Heartbeat)
    assert arrived.loops == (LOOP,)


def test_an_older_agent_says_nothing_of_its_loops():
    text = encode(Heartbeat(node="a", seq=0, ts_ns=0, job="j", attempt=0)).replace(',"loops":[]', "")
    assert "loops" not in text
    arrived = decode(text)
    assert isinstance(arrived, Heartbeat)
    assert arrived.loops == ()


def test_rows_are_the_node_and_its_ranks():
    heartbeat = Heartbeat(
        node="n0", seq=9, ts_ns=10**18, job="gpt", attempt=4, ranks=(status(0, 7), status(1, 8))
    )
    table = rows([heartbeat], 55).to_rows()
    assert [(row["rank"], row["pid"], row["last_step"]) for row in table] == [
        (-1, 55, 8),
        (0, 100, 7),
        (1, 101, 8),
    ]
    assert {(row["node"], row["seq"], row["job"], row["attempt"]) for row in table} == {("n0", 9, "gpt", 4)}
