"""How many operations a rank has entered, as its agent reads it."""

from pulsetrain.collectors import layout
from pulsetrain.collectors.rank.ring import RingWriter, create_ring
from pulsetrain.collectors.reading.position import PairCount
from pulsetrain.collectors.reading.ring_reader import RingReader


def both():
    fd = create_ring(64)
    return RingWriter(fd), RingReader(fd)


def test_groups_and_pairs_come_back_as_they_were_counted():
    writer, reader = both()
    cell = writer.add_group(writer.name_group("pp:1"), (0, 4))
    writer.words[cell + layout.G_ENQUEUED] = 6
    word = writer.add_pair(layout.pair_head(0, 4, sends=True))
    writer.words[word] = 9
    writer.words[writer.add_pair(layout.pair_head(0, 4, sends=False))] = 2
    position = reader.position()
    assert [(g.name, g.members, g.enqueued) for g in position.groups] == [("pp:1", (0, 4), 6)]
    assert position.pairs == (
        PairCount(group=0, peer=4, sends=True, count=9),
        PairCount(group=0, peer=4, sends=False, count=2),
    )
    assert position.complete
    assert not position.stands


def test_a_rank_with_more_pairs_than_there_is_room_for_says_so():
    writer, reader = both()
    for peer in range(layout.MAX_PAIRS):
        assert writer.add_pair(layout.pair_head(0, peer, sends=True)) > 0
    assert reader.position().complete
    assert writer.add_pair(layout.pair_head(1, 0, sends=True)) == -1
    position = reader.position()
    assert not position.complete
    assert len(position.pairs) == layout.MAX_PAIRS


def test_a_rank_that_was_told_to_run_on_does_not_stand():
    writer, reader = both()
    writer.words[layout.W_STANDS] = 5 << 32 | 2
    reader.hold(5, 1, 1)
    assert reader.stands
    reader.hold(5, 2, 1)
    assert not reader.stands
    reader.hold(6, 0, 1)
    assert not reader.stands
