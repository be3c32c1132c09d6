"""The least that a page of Streamlit with one chart of Plotly takes: what pages of the dashboard stand beside.

`streamlit run` reads this file as a script.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx

from browsing.live_site import until
from browsing.visits import Visit

VISIT = Visit(name="plain", path="", ready="text=One chart && .js-plotly-plot .main-svg")


@contextlib.contextmanager
def plain_site() -> Iterator[str]:
    """Serve the page. Yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--server.address", "127.0.0.1", "--server.port", str(port))
    quiet = ("--server.headless", "true", "--browser.gatherUsageStats", "false")
    command = [sys.executable, "-m", "streamlit", "run", __file__, *where, *quiet]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(f"http://127.0.0.1:{port}/_stcore/health"), 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5).is_success
    return False


def _show() -> None:
    import plotly.graph_objects as go
    import streamlit as st

    st.set_page_config(layout="wide")
    st.write("One chart")
    st.plotly_chart(go.Figure(go.Bar(x=list(range(8)), y=[3, 1, 4, 1, 5, 9, 2, 6])))


if __name__ == "__main__":
    _show()
