"""An S3 server on loopback, and a proxy before it that counts requests and answers some of them badly."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_SERVER = """
import signal, sys
signal.alarm(int(sys.argv[2]))
from moto.server import main
from werkzeug.serving import WSGIRequestHandler
WSGIRequestHandler.protocol_version = "HTTP/1.1"
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def s3_server(limit_s: int = 300) -> Iterator[int]:
    """A server in a process of its own, which the system ends after a time; its port. It has an empty bucket."""
    port = _free_port()
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _SERVER, str(port), str(limit_s)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request(
                    "PUT",
                    "/bucket",
                    b"",
                    {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20200101/us-east-1/s3/aws4_request"},
                )
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                connection.close()
                break
            except OSError:
                assert server.poll() is None, "the server has ended"
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.05)
        yield port
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


class Proxy:
    """Passes requests on. `rule(method, key)` says what happens: "", "slow", "half", "lost", "reset" or a status.

    "lost": the server does what it is asked, and the answer is lost. `drops`: headers that are not passed on.
    """

    def __init__(self, port: int) -> None:
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        self.drops: set[str] = set()
        self.rule: Callable[[str, str], str] = lambda method, key: ""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, port))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url, self.server_url = (f"http://127.0.0.1:{n}" for n in (self._server.server_address[1], port))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(proxy: Proxy, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            split = urlsplit(self.path)
            query = parse_qs(split.query, keep_blank_values=True)
            key = query.get("prefix", [""])[0] if "list-type" in query else split.path.partition("/bucket/")[2]
            what = "LIST" if "list-type" in query else "DELETES" if "delete" in query else self.command
            proxy.counts[what] += 1
            proxy.log.append(f"{what} {key}")
            fault = proxy.rule(what, key)
            if fault == "reset":
                self._reset()
                return
            if fault.isdigit():
                self._answer(int(fault), {}, b"<Error><Code>InternalError</Code></Error>")
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name in proxy.drops:
                    continue
                connection.putheader(name, value)
            connection.endheaders(body)
            found = connection.getresponse()
            data = found.read()
            headers = {k: v for k, v in found.getheaders() if k.lower() not in ("connection", "transfer-encoding")}
            connection.close()
            if fault == "lost":
                self._reset()
            elif fault == "half":
                self._answer(found.status, headers, data, len(data) // 2)
            else:
                if fault == "slow":
                    time.sleep(0.3)
                self._answer(found.status, headers, data)

        def _reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()

        def _answer(self, status: int, headers: dict[str, str], data: bytes, part: int | None = None) -> None:
            self.send_response_only(status)
            length = headers.pop("Content-Length", None) if self.command == "HEAD" else None
            for name, value in headers.items():
                if name.lower() != "content-length":
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.wfile.write(data[:part])
            if part is not None:
                self.close_connection = True

    for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{method}", Handler._pass_on)
    return Handler


@contextmanager
def s3(limit_s: int = 300) -> Iterator[Proxy]:
    """A server behind a proxy; `os.environ` names it, so that s3fs finds it."""
    from s3fs import S3FileSystem

    with s3_server(limit_s) as port:
        proxy, before = Proxy(port), dict(os.environ)
        os.environ.update(ENVIRONMENT | {"AWS_ENDPOINT_URL": proxy.url})
        try:
            yield proxy
        finally:
            proxy.close()
            S3FileSystem.clear_instance_cache()  # those of this server
            os.environ.clear()
            os.environ.update(before)
