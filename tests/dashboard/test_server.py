"""The document of a page says where the server is."""

from __future__ import annotations

import asyncio

from pulsetrain.dashboard.server import PageAddresses


def asked(path, answer, kind="text/html; charset=utf-8", headers=(), ahead=lambda path, query: None):
    """What a browser gets for a path, and the headers that the application saw."""
    sent, seen = [], []

    async def application(scope, receive, send):
        seen.extend(scope["headers"])
        start = {"type": "http.response.start", "status": 200}
        await send({**start, "headers": [(b"content-type", kind.encode()), (b"content-length", b"1")]})
        for at in range(0, len(answer), 9):
            rest = at + 9 < len(answer)
            await send({"type": "http.response.body", "body": answer[at : at + 9], "more_body": rest})

    async def send(message):
        sent.append(message)

    async def receive():
        return {}

    scope = {"type": "http", "path": path, "query_string": b"job=gpt", "headers": list(headers)}
    asyncio.run(PageAddresses(application, ahead)(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return body, dict(sent[0]["headers"]), seen


DOCUMENT = b"<html><head><title>x</title></head></html>"


def test_a_page_opened_by_its_address_is_told_the_root():
    body, headers, seen = asked("/timeline", DOCUMENT, headers=[(b"accept-encoding", b"gzip")])
    assert b'BACKEND_BASE_URL: location.origin + location.pathname.slice(0, -9) + "/"' in body
    assert int(headers[b"content-length"]) == len(body)
    assert seen == []


def test_everything_else_goes_through_unchanged():
    for path, kind in (
        ("/static/js/index.js", "text/javascript"),
        ("/logs", "text/plain"),
    ):
        assert asked(path, DOCUMENT, kind)[0] == DOCUMENT


def test_the_root_is_told_no_address_but_what_it_will_draw_with():
    body, _, _ = asked("/", DOCUMENT)
    assert b"BACKEND_BASE_URL" not in body
    assert b"EChartsChart" in body


def test_what_a_page_needs_is_asked_when_its_document_is():
    told = []
    asked("/timeline", DOCUMENT, ahead=lambda *address: told.append(address))
    asked("/static/js/index.js", DOCUMENT, ahead=lambda *address: told.append(address))
    assert told == [("/timeline", "job=gpt")]
