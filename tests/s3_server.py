"""An S3-compatible server on this machine (moto's), whose network can be made to fail. Needs no account."""

import contextlib
import logging
import os
import socket
import threading

import boto3
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
ALONE = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
"""Nothing of the machine's own."""


class S3Server:
    """The server; ``environment`` is what its clients need, ``failing`` breaks the connections of those that write."""

    def __init__(self):
        self._fault, self._times = None, 0
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        address = f"http://127.0.0.1:{self._server.port}"
        self.environment = {**KEYS, **ALONE, "AWS_ENDPOINT_URL": address, "AWS_MAX_ATTEMPTS": "1"}
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _serve(self, environ, start_response):
        if environ["REQUEST_METHOD"] != "PUT" or not self._times:
            return self._app(environ, start_response)
        self._times -= 1
        if self._fault == "cut":
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]) // 2)
        else:
            b"".join(self._app(environ, lambda *_: None))
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionError("as the test asked for")

    @contextlib.contextmanager
    def failing(self, fault, times=1000):
        """The first objects that are written meet a fault.

        "cut"        the connection breaks when half of the object has arrived
        "no answer"  the object is stored, and the connection breaks before the client hears of it
        """
        self._fault, self._times = fault, times
        try:
            yield
        finally:
            self._times = 0

    def bucket(self, name):
        """A new bucket's URL."""
        boto3.client("s3").create_bucket(Bucket=name)
        return f"s3://{name}"

    def stop(self):
        self._server.shutdown()


@contextlib.contextmanager
def s3_server():
    """A server while the context lasts, with the environment of this process and of those that it starts set to it."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = S3Server()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server
    server.stop()
