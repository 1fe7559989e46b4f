"""A stand-in for the Hugging Face hub on the loopback: one repository, what the
client library asks for and no more. Weights go the way of large files (LFS),
everything else with the commit."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from evaluator.checkpoints.files import digest_of_file
from tests.support.checkpoint_files import write, write_manifest

TOKEN = "hf_" + "a1B2" * 8


def write_pruned(directory: Path) -> Path:
    """A tiny checkpoint with a manifest that says it was pruned."""
    write(directory)
    files = {file.name: digest_of_file(file) for file in directory.iterdir()}
    write_manifest(directory, pattern="2:4", files=files)
    return directory


@dataclass
class Hub:
    """What was asked and what is there."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # of the one commit
    created: list[dict[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    refuses: bool = False
    breaks: bool = False  # large files are taken, and the commit is not
    # large files by their sha256; of no commit yet
    stored: dict[str, bytes] = field(default_factory=dict)

    @property
    def sha(self) -> str:
        return hashlib.sha1(b"".join(sorted(self.files.values()))).hexdigest()


@contextmanager
def hub_on_loopback() -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub})
    )
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_POST(self) -> None:
        body = self._body()
        path = urlsplit(self.path).path
        if self.hub.refuses or self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json(
                {"error": f"Invalid credentials {self.headers.get('Authorization')}"},
                401,
            )
        elif path == "/api/repos/create":
            self.hub.created.append(json.loads(body))
            self._json({"url": f"{self.hub.address}/org/name", "name": "org/name"})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = {
                name: "lfs" if name.endswith(".safetensors") else "regular"
                for name in names
            }
            files = [
                {"path": name, "uploadMode": mode, "shouldIgnore": False}
                for name, mode in modes.items()
            ]
            self._json({"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            to = {
                each["oid"]: {
                    "upload": {"href": f"{self.hub.address}/lfs/{each['oid']}"}
                }
                for each in wanted
            }
            self._json(
                {
                    "transfer": "basic",
                    "objects": [each | {"actions": to[each["oid"]]} for each in wanted],
                }
            )
        elif path.endswith("/commit/main") and self.hub.breaks:
            self._json(
                {
                    "error": (
                        f"no space left; you said {self.headers.get('Authorization')}"
                    )
                },
                413,
            )
        elif path.endswith("/commit/main"):
            for line in body.splitlines():
                self._commit(**json.loads(line))
            url = f"{self.hub.address}/org/name/commit/{self.hub.sha}"
            self._json(
                {
                    "success": True,
                    "commitUrl": url,
                    "commitOid": self.hub.sha,
                    "hookOutput": "",
                }
            )
        else:
            self._json({"error": f"not here: {path}"}, 404)

    def do_PUT(self) -> None:
        oid = urlsplit(self.path).path.removeprefix("/lfs/")
        self.hub.stored[oid] = self._body()
        self._json({})

    def _commit(self, key: str, value: dict[str, Any]) -> None:
        if key == "header":
            self.hub.messages.append(value["summary"])
        elif key == "file":
            self.hub.files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            self.hub.files[value["path"]] = self.hub.stored[value["oid"]]
        elif key == "deletedFile":
            del self.hub.files[value["path"]]

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.endswith("/auth-check/write"):
            allowed = (
                not self.hub.refuses
                and self.headers.get("Authorization") == f"Bearer {TOKEN}"
            )
            self._json(
                {} if allowed else {"error": "no right to write"},
                200 if allowed else 403,
            )
        elif path.startswith("/api/models/org/name/tree/"):
            entries = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(content),
                    "oid": hashlib.sha1(content).hexdigest(),
                }
                for name, content in self.hub.files.items()
            ]
            self._json(entries)
        elif not path.startswith("/api/models/org/name"):
            self._file(path.partition(f"/resolve/{self.hub.sha}/")[2])
        elif (path.partition("/revision/")[2] or "main") in (
            "main",
            "v1",
            self.hub.sha,
        ):
            names = [{"rfilename": name} for name in self.hub.files]
            self._json(
                {
                    "id": "org/name",
                    "modelId": "org/name",
                    "sha": self.hub.sha,
                    "siblings": names,
                    "tags": [],
                }
            )
        else:
            self._json(
                {"error": "Revision Not Found"},
                404,
                {"X-Error-Code": "RevisionNotFound"},
            )

    do_HEAD = do_GET

    def _file(self, name: str) -> None:
        if (content := self.hub.files.get(name)) is None:
            self._json(
                {"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"}
            )
        else:
            etag = hashlib.sha1(content).hexdigest()
            self._answer(
                200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": self.hub.sha}
            )

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") != "chunked":
            return body
        while size := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def _json(
        self, document: object, status: int = 200, more: dict[str, str] | None = None
    ) -> None:
        self._answer(
            status,
            json.dumps(document).encode(),
            {"Content-Type": "application/json", **(more or {})},
        )

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Not to the terminal."""
