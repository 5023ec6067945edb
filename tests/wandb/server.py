"""A server that wandb can log to, in the test's own process: as much of the protocol as an online run uses.

It keeps the rows that arrive, knows which runs there are, and can fall silent as a network does.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """wandb's process may go while a connection is open."""


class WandbServer:
    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}  # of each run, by its id
        self.configs: dict[str, dict[str, Any]] = {}
        self.operations: list[str] = []
        self.silent_about: set[str] = set()  # operations that get an empty answer
        self.reachable = True
        self._http = _Quiet(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def respond(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if not server.reachable:
                    self.close_connection = True  # no answer at all
                    return
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = json.dumps(server._answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = respond

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def _answer(self, path: str, body: bytes) -> dict[str, Any]:
        if path.endswith("/graphql"):
            asked = json.loads(body)
            operation = asked.get("operationName") or re.findall(r"(?:query|mutation)\s+(\w+)", asked["query"])[0]
            self.operations.append(operation)
            answers: dict[str, Callable[[dict[str, Any]], Any]] = {
                "RunResumeStatus": self._resume_status,
                "UpsertBucket": self._upsert,
                "CreateRunFiles": self._create_files,
                "Run": self._run,
                "RunHistoryKeys": self._run,
                "RunParquetHistory": self._live_steps,
                "HistoryPage": self._history,
                "Viewer": self._viewer,
                "GetDefaultEntity": self._viewer,
            }
            if operation in self.silent_about or operation not in answers:
                return {"data": {}}
            return {"data": answers[operation](asked.get("variables") or {})}
        if path.endswith("/file_stream"):
            self._take_rows(path.split("/")[-2], json.loads(body))
        return {}

    def _take_rows(self, run_id: str, body: dict[str, Any]) -> None:
        history = body.get("files", {}).get("wandb-history.jsonl")
        if history is not None:
            rows = self.rows.setdefault(run_id, [])
            rows[history["offset"] :] = [json.loads(line) for line in history["content"]]

    def _upsert(self, run: dict[str, Any]) -> dict[str, Any]:
        inserted = run["name"] not in self.configs
        config = json.loads(run["config"] or "{}")
        self.configs.setdefault(run["name"], {}).update({name: item["value"] for name, item in config.items()})
        self.rows.setdefault(run["name"], [])
        project = {"id": "p", "name": run["project"], "entity": {"id": "e", "name": "tester"}}
        bucket = {"id": "b", "name": run["name"], "displayName": run["displayName"], "config": "{}", "project": project}
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _resume_status(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["name"] not in self.configs:
            return {"model": None}
        rows = self.rows[asked["name"]]
        bucket = {
            "id": "b",
            "name": asked["name"],
            "summaryMetrics": json.dumps({"_step": len(rows) - 1}),
            "displayName": asked["name"],
            "logLineCount": 0,
            "historyLineCount": len(rows),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
            "eventsTail": "[]",
            "config": "{}",
            "tags": [],
            "wandbConfig": '{"t": 1}',
        }
        return {
            "model": {"id": "p", "name": asked["project"], "entity": {"id": "e", "name": "tester"}, "bucket": bucket}
        }

    def _run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """As the public API asks for it."""
        rows = self.rows[asked["name"]]
        keys = {name: {"typeCounts": [{"type": "number"}], "monotonic": False} for row in rows for name in row}
        run = dict.fromkeys(["sweepName", "group", "jobType", "commit", "description", "notes", "heartbeatAt"])
        run |= {"id": "b", "projectId": 1, "name": asked["name"], "displayName": asked["name"], "state": "finished"}
        run |= {"config": "{}", "summaryMetrics": "{}", "systemMetrics": "{}", "tags": [], "readOnly": False}
        run |= {
            "createdAt": "2026-01-01T00:00:00",
            "historyLineCount": len(rows),
            "user": {"name": "t", "username": "t"},
        }
        run |= {"historyKeys": {"sets": [], "keys": keys, "lastStep": len(rows) - 1}}
        return {"project": {"run": run}}

    def _live_steps(self, asked: dict[str, Any]) -> dict[str, Any]:
        steps = [{"_step": row["_step"]} for row in self.rows[asked["runName"]]]
        return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": steps}}}}

    def _history(self, asked: dict[str, Any]) -> dict[str, Any]:
        rows = [row for row in self.rows[asked["run"]] if asked["minStep"] <= row["_step"] < asked["maxStep"]]
        return {"project": {"run": {"history": [json.dumps(row) for row in rows]}}}

    def _viewer(self, asked: dict[str, Any]) -> dict[str, Any]:
        viewer = {"id": "v", "entity": "tester", "username": "tester", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}

    def _create_files(self, asked: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in asked["files"]]
        return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
