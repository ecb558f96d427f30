#!/usr/bin/env python3
"""mirror.py FOLDER LOG: serves FOLDER over HTTP on 127.0.0.1, in the ways mirrors have of failing.

Prints its port, then serves until it is killed. LOG gets a line for each request: its path and where it asks to begin.
  /ok/NAME       the file, or the range asked for
  /plain/NAME    the file, whatever range is asked for
  /cut/NAME      half of what is left of the file, then the end of the connection
  /wrong/NAME    as /ok/, with another last byte
  /page/NAME     a page that says to log in
  /moved/NAME    a redirection to /ok/NAME
  anything else  404
"""

import http.server
import os
import re
import socketserver
import sys

FOLDER, LOG = sys.argv[1:]


class Mirror(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        requested = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        begin = int(requested.group(1)) if requested else 0
        with open(LOG, "a") as log:
            log.write(f"{self.path} {begin}\n")
        _, way, name = (self.path.split("/") + ["", ""])[:3]
        path = os.path.join(FOLDER, name)
        if way == "moved":
            self.answer(302, b"", {"Location": f"/ok/{name}"})
        elif way == "page":
            self.answer(200, b"<!DOCTYPE html>\n<title>Log in</title>\n")
        elif way in ("ok", "plain", "cut", "wrong") and os.path.isfile(path):
            self.send_file(way, path, begin if way != "plain" else 0)
        else:
            self.answer(404, b"not here\n")

    def send_file(self, way, path, begin):
        with open(path, "rb") as file:
            content = file.read()
        if way == "wrong":
            content = content[:-1] + bytes([content[-1] ^ 1])
        if begin >= len(content):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        body = content[begin:]
        headers = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        sent = body[: len(body) // 2] if way == "cut" else body
        self.answer(206 if begin else 200, sent, headers, len(body))
        if way == "cut":
            self.close_connection = True

    def answer(self, status, body, headers=None, length=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)


# Not HTTPServer, which looks up the name of its address.
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mirror)
server.daemon_threads = True
server.handle_error = lambda request, address: None  # a client that has heard enough
print(server.server_address[1], flush=True)
server.serve_forever()
