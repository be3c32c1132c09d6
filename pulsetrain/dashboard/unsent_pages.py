"""Pages that were drawn and not sent yet when a part of them refreshes itself.

Streamlit keeps what a page draws in a queue until its server has time to send it. When a part is drawn anew
meanwhile, it drops the part's earlier drawing from that queue: the new one follows. But the end of the page's
own run stays, and stands before the new drawing. At that end the browser removes all that was not drawn, the
place of the part included, and cannot take what follows: "Bad delta path", and a white page. So nothing is
dropped that stands before the end of a page's run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

Queue = Any
Clear = Callable[..., None]


def through_last_page_end(messages: Sequence[Any]) -> int:
    """How many messages there are up to the end of the last run of a whole page, that end included."""
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    ends = [
        index
        for index, message in enumerate(messages, 1)
        if message.WhichOneof("type") == "script_finished"
        and message.script_finished == ForwardMsg.ScriptFinishedStatus.FINISHED_SUCCESSFULLY
    ]
    return ends[-1] if ends else 0


def keeping_pages(clear: Clear) -> Clear:
    """`clear`, the method of Streamlit's queue that drops what a new run draws again, without whole pages."""

    @wraps(clear)
    def cleared(
        queue: Queue, retain_lifecycle_msgs: bool = False, fragment_ids_this_run: list[str] | None = None
    ) -> None:
        kept = []
        if retain_lifecycle_msgs and fragment_ids_this_run is not None:
            count = through_last_page_end(queue._queue)
            kept, queue._queue = queue._queue[:count], queue._queue[count:]
        clear(queue, retain_lifecycle_msgs, fragment_ids_this_run)
        queue._queue[:0] = kept  # new messages are not put into the place of earlier ones after it

    return cleared


def keep_unsent_pages() -> None:
    """Have Streamlit send whole pages in this process."""
    from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

    setattr(ForwardMsgQueue, "clear", keeping_pages(ForwardMsgQueue.clear))  # noqa: B010 - mypy has no word for it
