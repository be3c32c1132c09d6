"""A page that is drawn and not sent yet, and a part of it that is drawn again."""

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

from pulsetrain.dashboard.unsent_pages import keeping_pages

PAGE = ForwardMsg.ScriptFinishedStatus.FINISHED_SUCCESSFULLY
PART = ForwardMsg.ScriptFinishedStatus.FINISHED_FRAGMENT_RUN_SUCCESSFULLY


class Queue(ForwardMsgQueue):
    clear = keeping_pages(ForwardMsgQueue.clear)

    def draw(self, *path, part=""):
        message = ForwardMsg()
        message.metadata.delta_path[:] = path
        message.delta.add_block.SetInParent()
        message.delta.fragment_id = part
        self.enqueue(message)

    def end(self, how):
        self.enqueue(ForwardMsg(script_finished=how))

    def said(self):
        return [
            (tuple(m.metadata.delta_path), m.delta.fragment_id) if m.HasField("delta") else m.script_finished
            for m in self.flush()
        ]


@pytest.fixture
def queue():
    made = Queue()
    made.draw(0, 0)
    made.draw(0, 1, part="strip")
    made.draw(0, 2)
    made.end(PAGE)
    return made


DRAWN = [((0, 0), ""), ((0, 1), "strip"), ((0, 2), ""), PAGE]


def test_a_page_that_was_not_sent_keeps_the_place_of_a_part_that_is_drawn_again(queue):
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["strip"])
    queue.draw(0, 1, part="strip")
    assert queue.said() == [*DRAWN, ((0, 1), "strip")]


def test_of_several_drawings_of_a_part_the_last_is_sent(queue):
    queue.draw(0, 1, part="strip")
    queue.end(PART)
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["strip"])
    queue.draw(0, 1, part="strip")
    *page, _, last = queue.said()
    assert (page, last) == (DRAWN, ((0, 1), "strip"))


def test_a_whole_page_that_is_drawn_again_takes_the_place_of_one_that_was_not_sent(queue):
    queue.clear(retain_lifecycle_msgs=True)
    assert queue.said() == [ForwardMsg.ScriptFinishedStatus.FINISHED_EARLY_FOR_RERUN]


def test_a_queue_that_was_sent_is_empty(queue):
    queue.flush()
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["strip"])
    assert queue.is_empty()
