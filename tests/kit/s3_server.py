"""An S3 server (moto) on loopback that notes requests and answers some of them badly."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Server:
    """Has a bucket. `rule(method, key)` says what happens: "", "slow", "half", "lost", "reset" or a status.

    "lost": the server does what it is asked, and the answer is lost. `drops`: headers that it does not see.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.test import Client

        self.log: list[str] = []
        self.drops: set[str] = set()
        self.rule: Callable[[str, str], str] = lambda method, key: ""
        self.s3 = Client(DomainDispatcherApplication(create_backend_app), use_cookies=False)
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20200101/us-east-1/s3/aws4_request"}
        for method, path in (("POST", "/moto-api/reset"), ("PUT", "/bucket")):
            assert self.s3.open(path, method=method, headers=signed).status_code == 200
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"s3": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    s3: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # every method of HTTP
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        split = urlsplit(self.path)
        query = parse_qs(split.query, keep_blank_values=True)
        key = query.get("prefix", [""])[0] if "list-type" in query else split.path.partition("/bucket/")[2]
        what = "LIST" if "list-type" in query else "DELETES" if "delete" in query else self.command
        self.s3.log.append(f"{what} {key}")
        fault = self.s3.rule(what, key)
        if fault.isdigit():
            self._answer(int(fault), {}, b"<Error><Code>InternalError</Code></Error>")
        elif fault == "reset":
            self._reset()
        else:
            headers = [(name, value) for name, value in self.headers.items() if name not in self.s3.drops]
            found = self.s3.s3.open(self.path, method=self.command, headers=headers, data=body)
            if fault == "lost":
                self._reset()
                return
            time.sleep(0.3 if fault == "slow" else 0)
            data = found.get_data()
            self._answer(found.status_code, dict(found.headers), data, len(data) // 2 if fault == "half" else None)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()

    def _answer(self, status: int, headers: dict[str, str], data: bytes, part: int | None = None) -> None:
        self.send_response_only(status)
        length = headers.pop("Content-Length", None) if self.command == "HEAD" else None
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data[:part])
        if part is not None:
            self.close_connection = True


@contextmanager
def s3() -> Iterator[Server]:
    """A server that `os.environ` names, so that s3fs finds it."""
    pytest.importorskip("s3fs")
    from s3fs import S3FileSystem

    server, before = Server(), dict(os.environ)
    os.environ.update(ENVIRONMENT | {"AWS_ENDPOINT_URL": server.url})
    try:
        yield server
    finally:
        server.close()
        S3FileSystem.clear_instance_cache()  # those of this server
        os.environ.clear()
        os.environ.update(before)
