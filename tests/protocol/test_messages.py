"""What one side of the control connection encodes, the other decodes."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import json
import time
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsetrain.core.errors import CorruptData
from pulsetrain.protocol.messages import (
    Command,
    GroupStatus,
    Heartbeat,
    Leaving,
    RankStatus,
    Report,
    Start,
    World,
    WorldNode,
    decode,
    encode,
)


def world_node(node_rank: int, nproc: int = 4) -> WorldNode:
    return WorldNode(node=f"n{node_rank}", node_rank=node_rank, address="h", peer_port=1, nproc=nproc)


def test_the_nodes_of_a_world_share_its_ranks_without_gaps():
    world = [world_node(node_rank) for node_rank in range(3)]
    assert [rank for node in world for rank in node.ranks] == list(range(12))


def test_nested_messages_come_back_equal():
    start = Start(
        id=3,
        job="gpt",
        attempt=1,
        node_rank=1,
        world=(world_node(0), world_node(1)),
        store_address="h",
        store_port=9,
        sources={"4": "memory"},
    )
    assert decode(encode(start)) == start


def beat(*groups):
    rank = RankStatus(
        rank=0, local_rank=0, pid=1, state="running", last_step=3, last_phase="", phase_age_ns=0, progress=9,
        progress_age_ns=0, groups=groups,
    )  # fmt: skip
    return Heartbeat(node="n", seq=1, ts_ns=5, job="j", attempt=0, ranks=(rank,))


def group(members):
    return GroupStatus(group="dp:0", members=tuple(members), enqueued=4, completed=3)


@given(st.integers(0, 9), st.integers(1, 8), st.integers(0, 300))
def test_the_members_of_a_group_come_back_however_many_they_are(first, stride, count):
    message = beat(group(range(first, first + stride * count, stride)), group([1, 2, 4, *range(9, 40)]))
    assert decode(encode(message)) == message


def test_a_large_group_costs_no_more_than_a_small_one_and_an_old_agents_list_is_read():
    large = encode(beat(group(range(0, 98_304, 8))))
    assert len(large) < 700
    listed = json.loads(large)
    listed["ranks"][0]["groups"][0] |= {"members": list(range(0, 98_304, 8)), "span": None}
    assert decode(json.dumps(listed)) == decode(large)


@pytest.mark.parametrize(
    "span", [[0, 1, 1 << 40], [0, 0, 5], [0, 1, -1], [0, 1], "abc", [0, 1, "x"], [[], 1, 2]]
)
def test_members_that_are_none_are_refused(span):
    message = json.loads(encode(beat(group([0]))))
    message["ranks"][0]["groups"][0]["span"] = span
    with pytest.raises(CorruptData):
        decode(json.dumps(message))


def ranks_of(groups, count=8):
    return Heartbeat(
        node="n", seq=1, ts_ns=5, job="j", attempt=0,
        ranks=tuple(
            RankStatus(
                rank=rank, local_rank=rank, pid=rank, state="running", last_step=3, last_phase="forward",
                phase_age_ns=rank, progress=9, progress_age_ns=rank, groups=groups,
            )
            for rank in range(count)
        ),
    )  # fmt: skip


def test_the_ranks_of_a_node_travel_as_columns_and_a_list_of_objects_is_read_too():
    message = ranks_of((group(range(8)), group(range(0, 98_304, 8))))
    text = encode(message)
    assert len(text) < 700
    assert decode(text) == message
    listed = json.loads(json.dumps(message, default=vars))
    assert decode(json.dumps({"type": "Heartbeat", **listed})) == message


def test_ranks_of_one_large_group_share_its_members():
    message = decode(encode(ranks_of((group(range(0, 98_304, 8)),))))
    first, second = (rank.groups[0].members for rank in message.ranks[:2])
    assert first is second
    assert hash(first) == hash(tuple(first))


def start(nodes):
    world = tuple(world_node(node_rank) for node_rank in range(nodes))
    return Start(id=3, job="gpt", attempt=1, node_rank=1, world=world, store_address="h", store_port=9)


@pytest.mark.parametrize("nodes", [0, 1, 2, 3000])
def test_a_world_of_any_size_comes_back(nodes):
    assert decode(encode(start(nodes))) == start(nodes)


def test_a_launch_of_thousands_of_nodes_is_small_and_its_world_is_written_once(monkeypatch):
    message = start(3000)
    world = World(message.world)
    first = encode(dataclasses.replace(message, world=world))
    assert len(first) < 32_000
    monkeypatch.setattr(World, "__iter__", None)  # nobody goes through the nodes again
    second = encode(dataclasses.replace(message, world=world, node_rank=2))
    assert second.partition(',"world":')[2] == first.partition(',"world":')[2]


@pytest.mark.parametrize("packed", ["", "x", "AAAA", 5, None])
def test_a_compressed_world_that_is_none_is_refused(packed):
    fields = json.loads(encode(start(2)))
    with pytest.raises(CorruptData):
        decode(json.dumps({**fields, "world": {"zlib": packed}}))


def test_an_agent_says_why_it_leaves():
    leaving = Leaving(node="n0", reason="ended by SIGINT", signal="SIGINT")
    assert decode(encode(leaving)) == leaving


def test_a_field_that_only_a_newer_peer_knows_is_ignored():
    text = encode(Heartbeat(node="a", seq=1, ts_ns=2, job="j", attempt=0))
    assert decode(text.replace('"seq":1', '"seq":1,"colour":"red"')) == decode(text)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"type": "Nonsense"}', '{"type": "Leaving", "reason": 1}'])
def test_what_is_no_message_is_refused(text):
    with pytest.raises(CorruptData, match="not a control message"):
        decode(text)


MESSAGES = [*typing.get_args(Report), *typing.get_args(Command)]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def values(cls):
    """Instances of a message type, with free JSON where a field takes it."""
    if cls.__name__ == "Reply":
        return st.builds(cls, id=WHOLE, data=st.dictionaries(st.text(max_size=5), JSON, max_size=3))
    return st.builds(cls, **{name: field_values(hint) for name, hint in typing.get_type_hints(cls).items()})


WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)


def field_values(hint):
    inner = typing.get_args(hint)
    if typing.get_origin(hint) in (tuple, collections.abc.Sequence):
        return st.lists(field_values(inner[0]), max_size=4).map(tuple)
    if typing.get_origin(hint) is collections.abc.Mapping:
        return st.dictionaries(st.text(max_size=5), field_values(inner[1]), max_size=3)
    if dataclasses.is_dataclass(hint):
        return values(hint)
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    return WHOLE if hint is int else st.from_type(hint)


WRONG = [None, "x", 1.5, True, [], [None], {}, {"a": None}, 1 << 80, "\ud800", [[]], {"same": None}]


@pytest.mark.parametrize("cls", MESSAGES)
@given(data=st.data())
def test_a_field_of_another_type_never_arrives(cls, data):
    """Whatever is read has the types that the class says, so nobody else needs to look."""
    message = data.draw(values(cls))
    fields = json.loads(encode(message))
    name = data.draw(st.sampled_from(sorted(set(fields) - {"type"})))
    fields[name] = data.draw(st.sampled_from(WRONG))
    with contextlib.suppress(CorruptData):
        again = decode(json.dumps(fields))
        encode(again).encode()
        hint = typing.get_type_hints(cls)[name]
        value = getattr(again, name)
        assert not isinstance(hint, type) or type(value) is hint or (hint, type(value)) == (float, int)
        assert typing.get_origin(hint) is not tuple or isinstance(value, tuple)


@pytest.mark.parametrize("wrong", [None, "3", 1.5, True, 1 << 63])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_rank_with_a_step_that_is_no_number_is_refused(ranks, wrong):
    beats = ranks_of((group(range(8)),), count=ranks)
    fields = json.loads(encode(beats))
    if ranks == 1:
        fields["ranks"][0]["last_step"] = wrong
    else:
        fields["ranks"]["columns"]["last_step"] = {"same": wrong}
    with pytest.raises(CorruptData, match=r"RankStatus\.last_step = "):
        decode(json.dumps(fields))


def test_a_gauge_that_is_no_number_costs_nothing_but_itself():
    sent = Heartbeat(
        node="n", seq=1, ts_ns=5, job="j", attempt=0,
        gauges={"a": float("nan"), "b": float("inf"), "c": 1.5},
    )  # fmt: skip
    assert decode(encode(sent)).gauges == {"c": 1.5}


def test_many_rows_of_one_large_group_cost_no_more_than_a_few():
    fields = json.loads(encode(ranks_of((group(range(0, 98_304, 8)),), count=8)))
    flat = fields["ranks"]["columns"]["groups"]
    fields["ranks"]["rows"] = flat["items"]["rows"] = 1 << 16
    flat["items"]["columns"]["members"] = {"same": {"span": [0, 1, 1 << 20]}}
    for name, column in fields["ranks"]["columns"].items():
        if name != "groups":
            fields["ranks"]["columns"][name] = {
                "same": column.get("same", 1) if isinstance(column, dict) else 1
            }
    began_s = time.process_time()
    message = decode(json.dumps(fields))
    assert time.process_time() - began_s < 5
    assert len(message.ranks[-1].groups[0].members) == 1 << 20


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_not():
    with pytest.raises(CorruptData, match="surrogates"):
        decode(encode(Leaving(node="n0", reason="\ud800")))
    assert decode(encode(Leaving(node="n0", reason="\U0001f600"))).reason == "\U0001f600"


@given(st.one_of([values(cls) for cls in MESSAGES]))
def test_what_is_encoded_is_one_line_and_decodes_to_the_same_message(message):
    text = encode(message)
    assert "\n" not in text
    again = decode(text)
    assert type(again) is type(message)
    assert encode(again) == text


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_with_any_fields_is_read_or_refused(cls, data):
    names = [*cls.__dataclass_fields__, "type", "other"]
    fields = data.draw(st.dictionaries(st.sampled_from(names), JSON))
    with contextlib.suppress(CorruptData):
        decode(json.dumps({"type": cls.__name__, **fields}))


@given(st.text() | st.binary())
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(CorruptData):
        decode(text)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"type": "Leave", "id": ' + "[" * 100_000])
def test_json_that_nests_without_end_is_refused(text):
    with pytest.raises(CorruptData, match="not a control message") as caught:
        decode(text)
    assert len(str(caught.value)) < 300
