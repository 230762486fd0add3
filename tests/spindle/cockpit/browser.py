"""A real Chromium for tests, without a window, and why there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support import wait_until

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
LAPTOP, PHONE = (1440, 900), (390, 844)


def unavailable() -> str:
    """Why no browser can be had; empty if one can."""
    if os.environ.get("SPINDLE_WEB") != "1":
        return "a browser is tried by `make test-web`"
    if not any(map(shutil.which, CHROMIUMS)) or not shutil.which("chromedriver"):
        return "neither chromium nor chromedriver is installed"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    return ""


@contextmanager
def browser(size: tuple[int, int] = LAPTOP, dark: bool = True) -> Iterator[Any]:
    """A browser with an empty profile of its own. Whatever its console says at the end that is an error fails."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, CHROMIUMS) if path)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with TemporaryDirectory(prefix="spindle-browser-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            phone = size[0] < 600
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": size[0], "height": size[1], "deviceScaleFactor": 2 if phone else 1, "mobile": phone})
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
            yield driver
        finally:
            driver.quit()


def errors(driver: Any) -> list[str]:
    """What the console has said since it was asked last, but that a connection broke."""
    return [str(one["message"]) for one in driver.get_log("browser")
            if one["level"] in ("SEVERE", "WARNING") and "WebSocket connection" not in one["message"]]


def save(driver: Any, name: str, when: str = "true") -> None:
    """A picture for docs/, if SPINDLE_SCREENSHOTS names the directory; once the JavaScript expression is true."""
    directory = os.environ.get("SPINDLE_SCREENSHOTS")
    if directory:
        wait_until(lambda: driver.execute_script(f"return {when}"), 60, when, 0.2)
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(path / name))
