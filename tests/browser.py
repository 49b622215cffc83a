"""A headless Chromium for tests of pages, driven over a pipe by the DevTools protocol; no library is needed for it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 30.0
"""Seconds to wait for an answer of the browser."""
CODES = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    """One page at a time.

    Attributes:
        requests: Addresses that the page asked for, its own file included.
        complaints: Errors and warnings of its console, and exceptions of its scripts.
    """

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, from_here = os.pipe()
        to_here, from_browser = os.pipe()

        def with_pipes() -> None:  # the browser reads from 3 and writes to 4
            os.dup2(os.dup(to_browser), 13)
            os.dup2(os.dup(from_browser), 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=with_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._input, self._output = os.fdopen(from_here, "wb", buffering=0), to_here
        self._buffer = b""
        self._count = 0
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page = next(each for each in self._call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(
        self, path: Path, *, width: int = 1200, height: int = 900, is_dark: bool = False, scale: float = 1
    ) -> None:
        """Open a file, and wait until it is loaded and two frames are drawn."""
        self.requests.clear()
        self.complaints.clear()
        self.resize(width, height, scale)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")
        self.frames()

    def resize(self, width: int, height: int = 900, scale: float = 1) -> None:
        is_phone = width < 600
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.01)

    def frames(self) -> None:
        """Let observers and two frames run."""
        self.run(
            "new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 50))"
        )

    def press(self, *keys: str) -> None:
        """Press keys one after the other; a single character is typed."""
        for key in keys:
            code = {"windowsVirtualKeyCode": CODES[key]} if key in CODES else {}
            text = {"text": "\r"} if key == "Enter" else {} if key in CODES else {"text": key}
            self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **code, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """`kind` is "Moved", "Pressed" or "Released"; of the left button."""
        buttons = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "Moved" else {}
        self._call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **buttons)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._session = ""
        self._send("Browser.close", {})
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, method: str, parameters: dict[str, Any]) -> int:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._input.write(json.dumps(message).encode() + b"\0")
        return self._count

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = self._send(method, parameters)
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                answer: dict[str, Any] = message["result"]
                return answer
            self._note(message)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._output, 1 << 20)
            assert data, "the browser ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        content = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(content["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(content["args"]))
        elif event.get("method") == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.complaints.append(content["entry"]["text"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; the test is skipped if there is none on this machine."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium")
    opened = Browser(program, folder / "profile")
    try:
        yield opened
    finally:
        opened.close()
