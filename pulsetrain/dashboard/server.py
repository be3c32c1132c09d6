"""The dashboard as a web application: Streamlit's, whose pages know at which address the server is.

A browser that opens `/timeline` cannot know whether the dashboard lies below that path. Streamlit's page asks
for `/timeline/_stcore/health` first, gets a 404, and every page opened by its address begins with errors in
the console. So the document says where the server is. A proxy may serve the dashboard below its own path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from pulsetrain.dashboard.ahead import begin_document
from pulsetrain.dashboard.host_names import VARIABLE, Asgi, KnownHosts, Message, Receive, Send
from pulsetrain.dashboard.preload import with_scripts

_PAGE = re.compile(r"/[a-z]*")


class PageAddresses:
    """Adds the address of the server, and what the page will draw with, to the document of each page."""

    def __init__(self, app: Asgi, ahead: Callable[[str, str], None] = lambda path, query: None) -> None:
        """`ahead` is told the path and the query of each document, before the application is."""
        self._app, self._ahead = app, ahead

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request. See the ASGI specification."""
        if scope["type"] != "http" or not _PAGE.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        self._ahead(scope["path"], scope["query_string"].decode())
        headers = [(k, v) for k, v in scope["headers"] if k != b"accept-encoding"]  # what comes is text
        await self._app({**scope, "headers": headers}, receive, _Document(scope["path"], send))


class _Document:
    """Sends an answer on, with the address in its head if it is HTML."""

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_html(message):
            self._start = message
            return
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return
        body = with_scripts(with_address(self._body, self._path), self._path) if self._body else b""
        headers = [(k, v) for k, v in self._start["headers"] if k.lower() != b"content-length" or not body]
        length = [(b"content-length", str(len(body)).encode())] if body else []
        await self._send({**self._start, "headers": [*headers, *length]})
        await self._send({**message, "body": body})


def _is_html(start: Message) -> bool:
    return any(k.lower() == b"content-type" and v.startswith(b"text/html") for k, v in start["headers"])


def with_address(document: bytes, path: str) -> bytes:
    """The document of the page at `path` with a script that says where its server is."""
    if path == "/":
        return document
    base = f'location.origin + location.pathname.slice(0, -{len(path)}) + "/"'
    script = f"<script>window.__streamlit = {{BACKEND_BASE_URL: {base}}};</script>"
    return document.replace(b"<head>", b"<head>" + script.encode(), 1)


app = st.App(
    Path(__file__).with_name("app.py"),
    middleware=[
        Middleware(KnownHosts, names=os.environ.get(VARIABLE, "")),
        Middleware(PageAddresses, ahead=begin_document),
    ],
)
