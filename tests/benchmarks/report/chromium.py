"""A headless Chromium, told what to do through chromedriver's HTTP interface (W3C WebDriver and Chrome's own commands)."""

import base64
import json
import re
import shutil
import subprocess
import urllib.request

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

needs_chromium = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium, or no chromedriver")

ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
]


class Browser:
    """To be used in a ``with`` statement; ``folder`` is for what Chromium keeps."""

    def __init__(self, folder):
        self.driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = next(match[1] for line in self.driver.stdout if (match := re.search(r"successfully on port (\d+)", line)))
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"binary": CHROMIUM, "args": [*ARGUMENTS, f"--user-data-dir={folder}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self.address += "/" + self.ask("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.ask("", method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()

    def ask(self, path, body=None, method="POST"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        with self.opener.open(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def chrome(self, command, **parameters):
        """A command of the DevTools protocol."""
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show(self, path, width, scheme="light", height=900):
        """Open a file in a window so wide, in "light" or "dark"."""
        self.chrome("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.chrome("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("/url", {"url": path.absolute().as_uri()})

    def run(self, script):
        """What a script returns."""
        return self.ask("/execute/sync", {"script": script, "args": []})

    def log(self, kind):
        """What was logged since this was last asked for: of "browser", the console, or of "performance"."""
        return [entry["message"] for entry in self.ask("/se/log", {"type": kind})]

    def requests(self):
        """Addresses that were asked for since the performance log was last read."""
        events = [json.loads(message)["message"] for message in self.log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def photograph(self, path, whole=True):
        """Write a PNG."""
        size = self.chrome("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        picture = self.chrome("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": clip} if whole else {}))
        path.write_bytes(base64.b64decode(picture["data"]))
