"""JSON messages with their length in front, over a stream socket."""

import json
import socket
from typing import Any


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Sends one message. Blocks until the system has it."""
    data = json.dumps(message).encode()
    sock.sendall(len(data).to_bytes(4, "little") + data)


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """Receives one message, None at the end of the stream. Blocks, burning nothing."""
    if (head := _exactly(sock, 4)) is None:
        return None
    body = _exactly(sock, int.from_bytes(head, "little"))
    return None if body is None else dict(json.loads(body))


def _exactly(sock: socket.socket, n: int) -> bytes | None:
    data = bytearray()
    while len(data) < n:
        try:
            part = sock.recv(n - len(data))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)
