"""A page in a real browser without a window."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

FLAGS = ["headless=new", "no-sandbox", "disable-gpu"]
FLAGS += ["disable-background-networking", "disable-component-update", "disable-sync"]
HELPERS = (Path(__file__).parent / "demo_helpers.js").read_text(encoding="utf-8")


@contextmanager
def chromium():
    """Yield the driver of a browser. Without a browser or selenium, the test is skipped."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium or google-chrome, and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
        browser.execute_cdp_cmd("Performance.enable", {})
        yield browser


def opened(browser, path):
    """Open the page of a demo, drawn and paused. Return a function that runs JavaScript in it."""
    browser.get(path.as_uri())
    browser.execute_async_script(f"{HELPERS} whenDrawn(arguments[0])")
    return lambda script, *arguments: browser.execute_script(HELPERS + script, *arguments)


def emulate(browser, scheme="light", **screen):
    """Show pages in a colour scheme, and on a screen if its size is given."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    command = (
        "Emulation.setDeviceMetricsOverride" if screen else "Emulation.clearDeviceMetricsOverride"
    )
    browser.execute_cdp_cmd(command, screen)


def processor_seconds(browser):
    """Return the seconds that the page has computed: other programs do not count, as by a clock."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "ProcessTime")


def requests(browser):
    """Return the addresses that were asked for since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in asked if not url.startswith("data:")]
