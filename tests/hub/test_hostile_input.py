"""Whatever comes over the wire, the hub answers in one line and goes on: no exception leaves a route."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from pulsetrain.hub.app import api
from pulsetrain.hub.routes.agents import serve_agent
from pulsetrain.hub.routes.guard import MAX_BODY_BYTES
from pulsetrain.protocol.messages import Heartbeat, Hello, RankStatus, encode
from tests.hub.routes.test_agents import Socket

TOKEN = "t"
NESTED = "[" * 100_000
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", "x" * 5000, "preempt", "wait", "now", "a", "j", 1 << 70]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    *("actor", "comment", "decision", "dry_run", "lose_progress", "matchers", "node", "note", "ranks"),
    *("reason", "seconds", "steps", "wait_s", "what"),
)
BODIES = st.one_of(
    st.binary(max_size=40),
    st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)).map(lambda b: json.dumps(b).encode()),
    st.fixed_dictionaries(dict.fromkeys(FIELDS, JSON)).map(lambda b: json.dumps(b).encode()),
    st.sampled_from(
        [b"", b"null", b'{"seconds": NaN}', b'{"seconds": 1e400, "actor": "a"}', b"\xff", NESTED.encode(),
         b'{"actor": ' + NESTED.encode(), b'{"actor": "\\ud800"}', b" " * (MAX_BODY_BYTES + 1)]
    ),
)  # fmt: skip
SLOWLY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def parts(hub):
    made = hub.make()
    yield made
    made.alerts.close()


def ask(parts, method, path, content=b""):
    """The answer of the application. What a route raises is raised here."""

    async def asked():
        transport = httpx.ASGITransport(app=Starlette(routes=api(parts)))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://hub", headers=headers) as http:
            return await http.request(method, path, content=content)

    return asyncio.run(asked())


def paths(parts, method):
    found = [route.path for route in api(parts) if method in (getattr(route, "methods", None) or ())]
    names = ("job", "alert", "silence", "rank")
    return [path.replace(":path}", "}").format(**dict.fromkeys(names, "j")) for path in found]


def assert_it_goes_on(parts):
    """Every page can still be asked for, and the controller still turns."""
    for path in paths(parts, "GET"):
        known = "/j" not in path  # there may be no such job
        assert ask(parts, "GET", path).status_code in ((200,) if known else (200, 400)), path
    asyncio.run(parts.controller.turn())


def test_every_route_that_takes_a_body_survives_any_body(parts):
    posts = paths(parts, "POST")
    assert len(posts) >= 8

    @SLOWLY
    @given(st.sampled_from(posts), BODIES)
    def survives(path, body):
        answer = ask(parts, "POST", path, body)
        assert answer.status_code == 200 or 400 <= answer.status_code < 500
        if answer.status_code != 200:
            assert "\n" not in answer.json()["error"]
            assert len(answer.text) < 1000

    survives()
    assert_it_goes_on(parts)


@pytest.mark.parametrize("job", ["\x00", "\udcff", "a" * 5000, "..", "\r\nX: y", "{job}"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/{}/stacks",
        "/v1/jobs/{}/pending_hang",
        "/v1/jobs/{}/ranks/0",
        "/v1/jobs/j/ranks/{}",
        "/v1/alerts/{}/history",
    ],
)
def test_a_job_of_any_name_is_answered(parts, path, job):
    name = urllib.parse.quote(job, safe="", errors="surrogateescape")
    assert ask(parts, "GET", path.format(name)).status_code < 500


def hello(**changes):
    fields = {
        "node": "n", "address": "127.0.0.1", "job": "j", "pid": 1, "nproc_per_node": 2, "nnodes": 1,
        "max_restarts": 0, "peer_port": 1,
    }  # fmt: skip
    return Hello(**(fields | changes))


def beat(**changes):
    fields = {
        "rank": 0, "local_rank": 0, "pid": 1, "state": "running", "last_step": 1, "last_phase": "forward",
        "phase_age_ns": 0, "progress": 1, "progress_age_ns": 0,
    }  # fmt: skip
    return Heartbeat(node="n", seq=1, ts_ns=1, job="j", attempt=0, ranks=(RankStatus(**(fields | changes)),))


def listen(parts, *texts):
    claim = parts.claims.connection(None)
    asyncio.run(serve_agent(Socket(*texts, token=TOKEN), parts.inbox, TOKEN, parts.leadership, claim))


WORDS = st.sampled_from(["", "n", "\ud800", "a\nb", "x" * 100_000, "../..", "running", "\x00"])
HELLO = tuple(Hello.__dataclass_fields__)
NUMBERS = st.sampled_from([-(1 << 63), -1, 0, 1, 1 << 31, (1 << 63) - 1])


def any_of(cls, **fixed):
    """A message with fields of the right types and any values."""
    kinds = {"str": WORDS, "int": NUMBERS, "bool": st.booleans()}
    chosen = {f.name: kinds[f.type] for f in cls.__dataclass_fields__.values() if f.type in kinds}
    return st.fixed_dictionaries(chosen).map(lambda fields: {"type": cls.__name__, **fields, **fixed})


def test_an_agent_may_say_hello_in_any_way(parts):
    wrong = st.fixed_dictionaries({"type": st.just("Hello")}, optional=dict.fromkeys(HELLO, JSON))

    @SLOWLY
    @given(any_of(Hello) | wrong)
    def survives(fields):
        listen(parts, json.dumps(fields), encode(beat()))
        assert_it_goes_on(parts)

    began_s = time.monotonic()
    survives()
    assert time.monotonic() - began_s < 30


def test_a_heartbeat_may_hold_anything(parts):
    ranks = st.lists(any_of(RankStatus, groups=[]) | JSON, max_size=3)

    @SLOWLY
    @given(ranks, st.dictionaries(WORDS, st.floats(), max_size=2))
    def survives(ranks, gauges):
        fields = json.loads(encode(beat())) | {"ranks": ranks, "gauges": gauges}
        listen(parts, encode(hello()), json.dumps(fields), NESTED, "{}", "\x00")
        assert_it_goes_on(parts)

    survives()
