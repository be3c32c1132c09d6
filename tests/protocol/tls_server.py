"""A server that speaks TLS on a thread of this process and answers each request."""

import contextlib
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pulsetrain.hub.private_ca import PrivateCa


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args):
        pass


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients of these tests end handshakes on purpose


def issued(folder, *hosts, name="head", days=10.0, ago_days=0.0):
    """A certificate in a new CA, or in the one of the folder, made so many days ago."""
    ca, now = PrivateCa(folder), datetime.now(UTC) - timedelta(days=ago_days)
    if not (folder / "ca.pem").exists():
        ca.create(now=now, days=1000)
    return ca.issue(name, hosts or ["head"], now=now, days=days)


@contextlib.contextmanager
def tls_server(certificate):
    """The address of a server that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.certificate.with_suffix(".key"))
    server = Quiet(("127.0.0.1", 0), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
