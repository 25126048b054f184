"""An engine that is only HTTP, for the life cycle of a server: `fake_engine.py --port N` and how it behaves."""

import argparse
import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--says", default="", help="written into the log at once")
parser.add_argument("--dies", type=int, help="end with this exit code instead of serving")
parser.add_argument("--unhealthy", type=int, default=0, help="how many times /health answers 503")
parser.add_argument("--text", default=" Paris.", help="what every completion says")
parser.add_argument("--status", type=int, default=200, help="of a completion")
parser.add_argument("--worker", action="store_true", help="have a child; its pid is in the log")
asked = parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    unhealthy = asked.unhealthy

    def do_GET(self) -> None:
        if self.path == "/health" and Handler.unhealthy:
            Handler.unhealthy -= 1
            self.answer(503, {})
        else:
            self.answer(200, {"data": [{"id": "org/model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] != "org/model":
            self.answer(404, {})
        else:
            self.answer(asked.status, {"choices": [{"text": asked.text}]})

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, form: str, *values: object) -> None:
        print(self.command, self.path, values[1] if len(values) > 1 else "", flush=True)


if asked.worker:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    print("worker", child.pid, flush=True)
print(asked.says, flush=True)
if asked.dies is not None:
    time.sleep(0.05)
    sys.exit(asked.dies)
ThreadingHTTPServer(("127.0.0.1", asked.port), Handler).serve_forever()
