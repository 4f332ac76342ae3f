"""Stub of a server with OpenAI's chat API, on the loopback."""

import json
import re
import threading
import time
from collections import Counter

from loopback import Handler, LoopbackServer


def reply(content, *, finish="stop", tokens=(100, 30)) -> dict:
    """The body of a response."""
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish}
    return {"choices": [choice], "usage": usage}


def questions(number: str, count: int = 3) -> str:
    """What a model says that does as it is told."""
    return json.dumps([f"what is {kind} of number {number}?" for kind in ("the name", "the size", "the age")[:count]])


class ChatServer(LoopbackServer):
    """Server that answers prompts about `passage N` by `act(number, times)`: a number, and how often it was asked.

    An action is a body, a status with headers, bytes, or `break` or `slow`, which end the connection early or late.
    `asked` and `paid` count requests and whole replies by passage, and `seen` has path, headers and body of each
    request; `now` is the number of requests at this moment, and `most` the highest so far.
    """

    def __init__(self, act=lambda number, times: reply(questions(number)), delay: float = 0.0):
        self.asked, self.paid, self.seen = Counter(), Counter(), []
        self.most = self.now = 0
        lock, server = threading.Lock(), self

        class Chat(Handler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                number = re.findall(r"passage (\d+)", body["messages"][0]["content"])[-1]
                with lock:
                    server.asked[number] += 1
                    server.seen.append((self.path, self.headers, body))
                    server.now += 1
                    server.most = max(server.most, server.now)
                    times = server.asked[number]
                time.sleep(delay)
                with lock:
                    server.now -= 1
                action = act(number, times)
                if isinstance(action, tuple):
                    status, headers, content = action
                    self.reply(content, status, **headers)
                elif isinstance(action, bytes):
                    self.reply(action)
                elif action == "break":
                    self.reply(b"", Content_Length="1000")
                elif action == "slow":
                    self.send_response(200)
                    self.end_headers()
                    for _ in range(100):
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        time.sleep(0.05)
                else:
                    server.paid[number] += 1
                    self.reply(json.dumps(action).encode())

        super().__init__(Chat)
