"""A headless Chromium, driven by its chromedriver over HTTP with W3C's WebDriver protocol. It knows nothing about our
pages.

Pointer, wheel and keys are sent as input events, like a user's. The console's messages and the network requests since
the page was opened are kept for ``complaints`` and ``requests``."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

DRIVER = shutil.which("chromedriver")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
)

KEYS = {
    "Backspace": "\ue003",
    "Tab": "\ue004",
    "Enter": "\ue007",
    "Shift": "\ue008",
    "Control": "\ue009",
    "Alt": "\ue00a",
    "Escape": "\ue00c",
    "PageUp": "\ue00e",
    "PageDown": "\ue00f",
    "End": "\ue010",
    "Home": "\ue011",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}


def opened(folder: pathlib.Path) -> Iterator[Browser]:
    """A browser for a fixture; where there is none, its tests are skipped."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("there is no Chromium with its driver here (Debian: chromium chromium-driver)")
    one = Browser(folder)
    yield one
    one.close()


class BrowserError(Exception):
    """An error that the driver reported."""


class Box(NamedTuple):
    """Where an element is on the screen."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


class Browser:
    """One window. ``close`` ends what was started."""

    def __init__(self, folder: pathlib.Path) -> None:
        assert DRIVER and CHROMIUM
        # A sanitizer that is preloaded into this process must not be preloaded into the browser.
        env = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "ASAN_OPTIONS")}
        env["HOME"] = str(folder)
        self._log = open(folder / "chromedriver.log", "wb")
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=self._log, stdin=subprocess.DEVNULL, env=env
        )
        try:
            self._http = http.client.HTTPConnection("127.0.0.1", self._port(), timeout=1_000)
            self._session = self._begin(folder)
        except BaseException:
            self.close()
            raise

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(rb"successfully on port (\d+)", line):
                return int(found[1])
        raise BrowserError("chromedriver did not start")

    def _begin(self, folder: pathlib.Path) -> str:
        options = {
            "binary": CHROMIUM,
            "args": [*_SWITCHES, f"--user-data-dir={folder / 'profile'}"],
            "perfLoggingPrefs": {"enableNetwork": True, "enablePage": False},
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "unhandledPromptBehavior": "ignore",
            "timeouts": {"script": 600_000, "pageLoad": 600_000},
        }
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        return f"/session/{answer['sessionId']}"

    def close(self) -> None:
        try:
            if hasattr(self, "_session"):
                self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait(300)
            self._log.close()
            if self._driver.stdout is not None:
                self._driver.stdout.close()

    # ---- asking the driver ----

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        self._http.request(method, path, data, {"Content-Type": "application/json"})
        with self._http.getresponse() as response:
            value = json.loads(response.read())["value"]
        if isinstance(value, dict) and "error" in value:
            raise BrowserError(f"{value['error']}: {value['message'].splitlines()[0]}")
        return value

    def _ask(self, word: str, **body: Any) -> Any:
        return self._call("POST", f"{self._session}/{word}", body)

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("goog/cdp/execute", cmd=command, params=parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body; what it returns. ``arguments`` are its ``arguments``."""
        return self._ask("execute/sync", script=script, args=list(arguments))

    def wait(self, promise: str, *arguments: Any) -> Any:
        """What an expression that may be a promise becomes."""
        done = "const done = arguments[arguments.length - 1]; "
        script = f"{done}Promise.resolve({promise}).then(done, (error) => done(String(error)))"
        return self._ask("execute/async", script=script, args=list(arguments))

    def settle(self) -> None:
        """Until what was asked for is drawn."""
        self.wait("new Promise((next) => requestAnimationFrame(() => setTimeout(next)))")

    # ---- pages ----

    def open(self, address: str, until: str = "true") -> None:
        """Open a page anew and wait until ``until`` holds, for at most five minutes."""
        if self.address().partition("#")[0] == address.partition("#")[0]:
            self.go("about:blank")  # another fragment alone would not load it
        self.forget()
        self.go(address)
        self.until(until)

    def go(self, address: str) -> None:
        self._ask("url", url=address)

    def reload(self, until: str = "true") -> None:
        self._ask("refresh")
        self.until(until)

    def until(self, condition: str) -> None:
        script = (
            "(async () => { const end = performance.now() + 300000;"
            f" while (!({condition})) {{ if (performance.now() > end) return 'too late';"
            " await new Promise((next) => setTimeout(next, 5)); } return 'so'; })()"
        )
        said = self.wait(script)
        assert said == "so", f"{condition}: {said}; the console: {self.complaints()}"

    def address(self) -> str:
        return str(self._call("GET", f"{self._session}/url"))

    def title(self) -> str:
        return str(self._call("GET", f"{self._session}/title"))

    def dialog(self) -> str | None:
        """The text of an alert, if one is shown."""
        try:
            return str(self._call("GET", f"{self._session}/alert/text"))
        except BrowserError:
            return None

    # ---- what went on beside it ----

    def _logged(self, kind: str) -> list[Any]:
        return list(self._ask("se/log", type=kind))

    def forget(self) -> None:
        """What was said and asked for so far."""
        self._logged("browser")
        self._logged("performance")

    def complaints(self) -> list[str]:
        """What the console said since the last time: errors, warnings, and all else."""
        return [f"{entry['level']}: {entry['message']}" for entry in self._logged("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last time."""
        found = []
        for entry in self._logged("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                found.append(message["params"]["url"])
        return found

    # ---- what it is shown on ----

    def screen(self, width: int, height: int, scale: float = 1) -> None:
        """In CSS pixels, of which each is so many of the screen's."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale}
        self.devtools("Emulation.setDeviceMetricsOverride", **size, mobile=False)

    def media(self, medium: str = "", **features: str) -> None:
        """``print``, or features such as prefers-color-scheme, with _ for -."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", media=medium, features=named)

    def picture(self, path: pathlib.Path, whole: bool = False) -> None:
        """What is on the screen, or all of the page, as a PNG."""
        clip = {}
        if whole:
            size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self.devtools("Page.captureScreenshot", **clip)["data"]))

    def paper(self) -> bytes:
        """The page as it is printed, as a PDF."""
        return base64.b64decode(self.devtools("Page.printToPDF", printBackground=False)["data"])

    # ---- elements ----

    def box(self, selector: str) -> Box:
        """Where the first such element is, once it was scrolled to."""
        self.run("document.querySelector(arguments[0]).scrollIntoView({ block: 'nearest' })", selector)
        return self.place(selector)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector))

    def data(self, selector: str) -> list[dict[str, str]]:
        """The data- attributes of all such elements."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => ({ ...e.dataset }))"
        return list(self.run(script, selector))

    def attribute(self, selector: str, name: str) -> str | None:
        found = self.run("return document.querySelector(arguments[0]).getAttribute(arguments[1])", selector, name)
        return None if found is None else str(found)

    def place(self, selector: str) -> Box:
        """Where the first such element is; nothing is scrolled."""
        script = "const { x, y, width, height } = document.querySelector(arguments[0]).getBoundingClientRect();"
        return Box(*self.run(script + "return [x, y, width, height]", selector))

    def visible(self, selector: str) -> bool:
        return bool(self.run("return document.querySelector(arguments[0]).checkVisibility()", selector))

    def give_focus(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).focus()", selector)

    def focus(self) -> str:
        """Which element has it: its id, else its tag and class."""
        return str(self.run("const e = document.activeElement; return e.id || `${e.localName}.${e.className}`"))

    # ---- hands ----

    def _act(self, *devices: Mapping[str, Any]) -> None:
        self._ask("actions", actions=list(devices))
        self.settle()

    def _mouse(self, *actions: Mapping[str, Any]) -> None:
        self._act({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": list(actions)})

    def move(self, x: float, y: float) -> None:
        self._mouse(_to(x, y))

    def click(self, x: float, y: float, times: int = 1, button: int = 0) -> None:
        self._mouse(_to(x, y), *[{**_DOWN, "button": button}, {**_UP, "button": button}] * times)

    def click_on(self, selector: str) -> None:
        self.click(*self.box(selector).middle)

    def drag(self, *places: tuple[float, float]) -> None:
        """From the first place through the others."""
        self._mouse(_to(*places[0]), _DOWN, *(_to(*place, 40) for place in places[1:]), _UP)

    def wheel(self, x: float, y: float, down: int, right: int = 0) -> None:
        turned = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": right, "deltaY": down, "origin": "viewport"}
        self._act({"type": "wheel", "id": "wheel", "actions": [turned]})

    def touch(self, *fingers: Sequence[tuple[float, float]]) -> None:
        """Each finger goes down at its first place, through the others, and up, all at once."""
        self._act(
            *(
                {
                    "type": "pointer",
                    "id": f"finger{i}",
                    "parameters": {"pointerType": "touch"},
                    "actions": [_to(*places[0]), _DOWN, *(_to(*place, 40) for place in places[1:]), _UP],
                }
                for i, places in enumerate(fingers)
            )
        )

    @contextlib.contextmanager
    def holding(self, key: str) -> Iterator[None]:
        """While this key is held down."""
        for kind in ("keyDown", "keyUp"):
            self._act({"type": "key", "id": "keys", "actions": [{"type": kind, "value": KEYS[key]}]})
            if kind == "keyDown":
                yield

    def press(self, *keys: str) -> None:
        """Keys one after the other: characters, the names of KEYS, or "Shift+Tab"."""
        actions = []
        for key in keys:
            names = ["+"] if key == "+" else key.split("+")
            values = [KEYS.get(name, name) for name in names]
            actions += [{"type": "keyDown", "value": value} for value in values]
            actions += [{"type": "keyUp", "value": value} for value in reversed(values)]
        self._act({"type": "key", "id": "keys", "actions": actions})


_DOWN = {"type": "pointerDown", "button": 0}
_UP = {"type": "pointerUp", "button": 0}


def _to(x: float, y: float, milliseconds: int = 0) -> dict[str, Any]:
    return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": milliseconds, "origin": "viewport"}
