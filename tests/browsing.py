"""A headless Chromium that the machine has, for tests that open pages. No page may reach beyond this machine."""

import contextlib
import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOCAL = ("file:", "data:", "blob:", "about:")


class Visit:
    """An open page: playwright's ``page``, its ``problems`` on the console and all ``requests`` that it made."""

    def __init__(self, page):
        self.page, self.problems, self.requests = page, [], []
        page.on("console", lambda message: self.problems.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    @property
    def outgoing(self):
        """The requests that would leave the machine."""
        return [url for url in self.requests if not url.startswith(LOCAL)]

    def overflowing(self):
        """Elements that stick out of the page to the right."""
        return self.page.evaluate(
            "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => `${e.tagName} ${e.id} ${e.textContent.slice(0, 40)}`)"
        )


@contextlib.contextmanager
def browser():
    """Playwright's handle of the machine's Chromium. Skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here (on Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextlib.contextmanager
def visit(browser, url, width=1400, height=1000):
    """``url`` opened in a page of its own."""
    page = browser.new_page(viewport={"width": width, "height": height})
    seen = Visit(page)
    page.goto(str(url))
    yield seen
    page.close()
