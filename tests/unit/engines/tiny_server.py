"""The server of docs/adding-an-engine.md: HTTP alone, 5 ms a pass, drafts kept 3 and 1 in turn."""

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for flag in ("--model", "--name", "--host"):
    parser.add_argument(flag)
parser.add_argument("--port", type=int)
parser.add_argument("--draft-tokens", type=int, default=0)
told = parser.parse_args()
counts = {"tiny_passes_total": 0, "tiny_running": 0, **({"tiny_drafts_total": 0} if told.draft_tokens else {})}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        pages = {
            "/health": "{}",
            "/version": '{"version": "0.1"}',
            "/v1/models": json.dumps({"data": [{"id": told.name, "owned_by": "tiny"}]}),
            "/metrics": "".join(f"{name} {value}\n" for name, value in counts.items()),
        }
        self.send(pages[self.path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/completions":
            self.send('{"choices": [{"text": " Paris."}]}')
            return
        counts["tiny_running"] += 1
        self.send_response(200)
        self.end_headers()
        sizes, kept = [1], []
        while sum(sizes) < body["max_tokens"]:
            kept.append((3, 1)[len(kept) % 2] if told.draft_tokens else 0)
            sizes.append(min(kept[-1] + 1, body["max_tokens"] - sum(sizes)))
        for number, size in enumerate(sizes, start=1):
            time.sleep(0.005)
            counts["tiny_passes_total"] += 1
            end = "length" if number == len(sizes) else None
            self.event({"tokens": size, "choices": [{"delta": {"content": "a" * size}, "finish_reason": end}]})
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": sum(sizes)}}
        if told.draft_tokens:
            counts["tiny_drafts_total"] += len(kept)
            usage["drafts"] = {"steps": len(kept), "drafted": told.draft_tokens * len(kept), "kept": sum(kept)}
        self.event(usage)
        self.wfile.write(b"data: [DONE]\n\n")
        counts["tiny_running"] -= 1

    def event(self, value: object) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


ThreadingHTTPServer((told.host, told.port), Handler).serve_forever()
