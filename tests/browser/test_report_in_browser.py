"""A report in a real browser: it fits a phone, asks the network for nothing, is readable in the dark and on paper."""

import base64
import gzip
import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from toolkit.analysis.report import report
from toolkit.analysis.run import Run

pytestmark = pytest.mark.browser
LAB = Path(__file__).parents[1] / "data" / "runs" / "lab-copy-code"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SOON = 120  # seconds; the machine may be busy
LONG = "a-name-without-an-end-" + "x" * 200


class Browser:
    """One headless tab, spoken to in the DevTools protocol. `events` came while an answer was awaited."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv(timeout=SOON))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def evaluate(self, expression: str) -> Any:
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def look(self, width: int, scheme: str = "light") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=2, mobile=True)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path) -> None:
        for domain in ("Page", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(json.loads(self.socket.recv(timeout=SOON)))

    def said(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail("no browser on this machine: apt-get install chromium")
    folder = tmp_path_factory.mktemp("browser")
    log = folder / "log"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with (
        log.open("w") as err,
        subprocess.Popen(
            [path, *flags, f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=err,
        ) as process,
    ):
        try:
            yield from _tab(process, log)
        finally:
            process.terminate()


def _tab(process: subprocess.Popen[bytes], log: Path) -> Iterator[Browser]:
    deadline = time.monotonic() + SOON
    while not (found := re.search(r"DevTools listening on ws://([\w.:]+)/", log.read_text())):
        assert process.poll() is None, f"the browser ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, "the browser does not answer"
        time.sleep(0.2)
    tabs = httpx.get(f"http://{found[1]}/json/list", trust_env=False, timeout=SOON).json()
    address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
    with connect(address, max_size=None, open_timeout=SOON) as socket:
        yield Browser(socket)


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """The report of the committed run."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    report([Run(LAB)], path)
    browser.open(path)
    return browser


def test_nothing_is_asked_of_the_network(page: Browser) -> None:
    asked = [event["request"]["url"] for event in page.said("Network.requestWillBeSent")]
    assert len([url for url in asked if url.startswith("file://")]) == 1
    assert [url for url in asked if not url.startswith(("file://", "data:"))] == []


def test_the_browser_has_nothing_to_complain_of(page: Browser) -> None:
    assert page.said("Log.entryAdded") == []


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_never_scrolls_sideways(page: Browser, width: int) -> None:
    page.look(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_figure_is_shown_once_and_fits(page: Browser) -> None:
    page.look(360)
    widths = page.evaluate("[...document.querySelectorAll('figure svg')].map(f => f.getBoundingClientRect().width)")
    assert [0 < width <= 360 for width in widths] == [False, True] * (len(widths) // 2)


def test_the_text_of_a_figure_is_legible_on_a_phone(page: Browser) -> None:
    page.look(360)
    heights = page.evaluate(
        "[...document.querySelectorAll('.narrow svg text')].filter(t => t.textContent.trim())"
        ".map(t => Math.max(t.getBoundingClientRect().height, t.getBoundingClientRect().width))"
    )
    assert heights
    assert min(heights) >= 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("what", ["h1, p, li, td, dd, code", "th, dt, caption, figcaption, footer", "figure svg text"])
def test_text_stands_out_by_day_and_by_night(page: Browser, what: str, scheme: str) -> None:
    """Contrast of at least 4.5, WCAG 2.2, 1.4.3."""
    page.look(1280, scheme)
    which = "fill" if "svg" in what else "color"
    inks = page.evaluate(
        f"[...new Set([...document.querySelectorAll('{what}')].map(one => getComputedStyle(one).{which}))]"
    )
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert inks
    assert [ink for ink in inks if contrast(ink, paper) < 4.5] == []


def test_the_night_is_dark(page: Browser) -> None:
    page.look(1280, "dark")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.05


def test_it_prints(page: Browser) -> None:
    page.look(1280, "dark")
    pdf = base64.b64decode(page.ask("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000


def test_a_name_without_an_end_widens_nothing(browser: Browser, tmp_path: Path) -> None:
    for source in LAB.iterdir():
        packed = source.suffix == ".gz"
        text = (gzip.decompress(source.read_bytes()) if packed else source.read_bytes()).decode()
        (tmp_path / source.name.removesuffix(".gz")).write_text(text.replace("lab-ngram", LONG).replace("repeat", LONG))
    report([Run(tmp_path)], tmp_path / "report.html")
    browser.events.clear()
    browser.open(tmp_path / "report.html")
    browser.look(360)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, WCAG 2.2."""
    red, green, blue = (int(value) / 255 for value in re.findall(r"\d+", colour)[:3])
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
