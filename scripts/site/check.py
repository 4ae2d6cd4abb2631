#!/usr/bin/env python3
"""Opens the built site in headless Chromium: follows every internal link, reads the console, uses the search.

usage: check.py SITE [--browser PROGRAM] [--pictures FOLDER]

It fails where a page has an error in its console, asks another host for anything, or cannot be reached from
the front page, and where a link leads nowhere: to no page, or to no heading of a page. --pictures writes the
front page, pages of the guide and the references, light and dark, wide and narrow. Needs nothing but the
standard library and Chromium, which is driven through a pipe."""

import argparse
import base64
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
).split()
PICTURES = (
    "index.html",
    "guide/python.html",
    "guide/attention.html",
    "reference/c.html",
    "reference/python.html",
)
LOOK = """JSON.stringify({
    title: document.title,
    ids: [...document.querySelectorAll("[id]")].map(e => e.id),
    links: [...document.querySelectorAll("a[href]")].map(e => e.href),
    broken: [...document.images].filter(e => e.complete && !e.naturalWidth).map(e => e.src)})"""
SEARCH = """new Promise(done => {
    const field = document.querySelector(".md-search__input");
    field.focus(); field.value = "attention";
    field.dispatchEvent(new Event("input", {bubbles: true}));
    field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    let left = 100;
    const look = () => {
        const found = document.querySelectorAll(".md-search-result__item").length;
        if (found || !left--) done(found); else setTimeout(look, 100);
    };
    look();
})"""


class Browser:
    """A page of Chromium, driven by the DevTools protocol: messages end with a zero byte."""

    def __init__(self, program, folder):
        to_browser, self.out = os.pipe()
        self.input, from_browser = os.pipe()
        self.buffer, self.next, self.events = b"", 0, []

        def ends():  # the browser reads 3 and writes 4
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3)
            os.dup2(b, 4)

        words = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(words, preexec_fn=ends, close_fds=False, stdout=quiet, stderr=quiet)
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def read(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.input, 1 << 16)
            if not piece:
                raise SystemExit("the browser has ended")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.next += 1
        message = {"id": self.next, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            got = self.read()
            if got.get("id") == self.next:
                if "error" in got:
                    raise SystemExit(f"{method}: {got['error']}")
                return got["result"]
            self.events.append(got)

    def open(self, url):
        """Goes there and waits until it is loaded; what happened meanwhile."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        end = time.monotonic() + 60
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            if time.monotonic() > end:
                raise SystemExit(f"{url} does not load")
            self.events.append(self.read())
        time.sleep(0.05)
        self.run("0")
        return list(self.events)

    def run(self, script):
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def close(self):
        self.process.terminate()
        self.process.wait()


def complaints(events, origin):
    """What a reader would not want: errors, and requests that leave the site."""
    for event in events:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            yield f"exception: {params['exceptionDetails'].get('text')}"
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            yield f"console: {[a.get('value', a.get('description')) for a in params['args']]}"
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            yield f"log: {params['entry']['text']} {params['entry'].get('url', '')}"
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith((origin, "data:", "blob:", "about:")):
                yield f"asks another host: {url}"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def crawl(browser, origin, site):
    """Every page that can be reached; what is wrong with each."""
    waiting, ids, links, wrong = [f"{origin}/index.html"], {}, [], []
    while waiting:
        url = waiting.pop()
        if url in ids:
            continue
        events = browser.open(url)
        seen = json.loads(browser.run(LOOK))
        ids[url] = set(seen["ids"])
        wrong += [f"{url}: {text}" for text in complaints(events, origin)]
        wrong += [f"{url}: no picture {text}" for text in seen["broken"]]
        if urlsplit(url).path.startswith("/rust/"):  # rustdoc looks after its own
            continue
        for link in seen["links"]:
            target, fragment = urldefrag(urljoin(url, link))
            if not target.startswith(origin):
                continue
            path = unquote(urlsplit(target).path).lstrip("/") or "index.html"
            if not (site / path).is_file():
                wrong.append(f"{url}: no {link}")
            elif path.endswith(".html"):
                waiting.append(f"{origin}/{path}")
                links.append((url, f"{origin}/{path}", unquote(fragment)))
    for url, target, fragment in links:
        if (
            fragment
            and target in ids
            and fragment not in ids[target]
            and not urlsplit(target).path.startswith("/rust/")
        ):
            wrong.append(f"{url}: {target} has no place #{fragment}")
    reached = {urlsplit(url).path.lstrip("/") for url in ids}
    for page in site.rglob("*.html"):
        path = page.relative_to(site).as_posix()
        if path not in reached and path != "404.html" and not path.startswith("rust/"):
            wrong.append(f"{path}: nothing links to it")
    return len(ids), len(links), wrong


def pictures(browser, origin, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        browser.open("about:blank")
        browser.call(
            "Storage.clearDataForOrigin", origin=origin, storageTypes="local_storage"
        )  # the theme's choice
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.call("Emulation.setEmulatedMedia", features=features)
        for kind, width, height in (("wide", 1440, 1000), ("narrow", 390, 844)):
            browser.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=kind == "narrow",
            )
            for page in PICTURES:
                browser.open(f"{origin}/{page}")
                time.sleep(0.3)
                got = browser.call("Page.captureScreenshot", format="png")
                name = f"{page.replace('/', '_').removesuffix('.html')}_{scheme}_{kind}.png"
                (folder / name).write_bytes(base64.b64decode(got["data"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("site", type=Path)
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    parser.add_argument("--pictures", type=Path)
    words = parser.parse_args()
    if not words.browser:
        raise SystemExit("there is no Chromium (package chromium)")
    handler = functools.partial(Quiet, directory=str(words.site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(words.browser, folder)
        try:
            began = time.monotonic()
            pages, links, wrong = crawl(browser, origin, words.site)
            browser.open(f"{origin}/index.html")
            found = browser.run(SEARCH)
            if not found:
                wrong.append("the search finds nothing")
            if words.pictures:
                pictures(browser, origin, words.pictures)
        finally:
            browser.close()
    for text in sorted(set(wrong)):
        print(text)
    seconds = time.monotonic() - began
    print(
        f"{pages} pages, {links} links between them, {found} results of a search, "
        f"{len(set(wrong))} faults in {seconds:.0f} s"
    )
    return 1 if wrong or pages < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
