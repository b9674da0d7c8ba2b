"""An HTTP server in this process to which others post: a collector of spans, the receiver of alerts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OK, REFUSED = 200, 400


class Receiver(ABC):
    """Listens at `url` from the first moment until it is stopped."""

    def __init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(receiver.take(self.path, self.headers, body))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @abstractmethod
    def take(self, path: str, headers: Message, body: bytes) -> int:
        """Something was posted; the status it is answered with."""

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
