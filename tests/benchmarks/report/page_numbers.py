"""
Checks that every number on a page is a cell of a CSV file.

The page is read as a browser would read it, without one.
"""

import re
from functools import cache
from html.parser import HTMLParser

from tests.benchmarks.command_line import rows_of

NUMBER = re.compile(r"[-+\u2212]?\d[\d,]*(?:\.\d+)?")
"""A number as a page shows it."""
VOID = {"meta", "link", "img", "br", "source", "path", "use", "image", "input"}
"""Elements that have no end."""
NAMES = {"code", "style", "script", "title"}
"""Elements in which digits are no numbers. Nor are they in links to files."""


@cache
class Page(HTMLParser):
    """
    A page.

    It has ``numbers`` with their cells, ``loose`` words with digits, ``links``, and addresses of
    what is ``loaded``.
    """

    def __init__(self, html):
        super().__init__()
        self.numbers = []
        self.loose = []
        self.links = []
        self.loaded = []
        self.open = []
        self.feed(html)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attributes):
        """Note what a tag loads or links to, and open its element."""
        found = dict(attributes)
        if tag == "a":
            self.links.append(found["href"])
        elif tag in ("link", "use", "image"):
            self.loaded.append(found["href"])
        self.loaded += [
            found[name]
            for name in ("src", "srcset", "data", "poster")
            if name in found and tag != "data"
        ]
        if tag not in VOID:
            self.open.append((tag, found))

    def handle_startendtag(self, tag, attributes):
        """Handle a tag that ends its element."""
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        """Close the element that was opened last."""
        if tag not in VOID:
            assert self.open.pop()[0] == tag, tag

    def handle_data(self, text):
        """Note a text with digits: as a number of a cell, or as loose words."""
        if not re.search(r"\d", text):
            return
        tags = [tag for tag, _ in self.open]
        tag, attributes = self.open[-1]
        identifiers = " ".join(found.get("id") or "" for _, found in self.open)
        if "svg" in tags and re.search(r"[xy]tick_", identifiers):
            # These are numbers of an axis. There are no others in figures.
            return
        if tag == "data":
            self.numbers.append((text, attributes["value"], attributes["data-cell"]))
        elif (
            tag in NAMES
            or attributes.get("class") == "name"
            or (tag == "a" and not attributes["href"].startswith("#"))
        ):
            return
        else:
            self.loose.append(text)


def text_of(page):
    """Return what a reader sees, with one blank between words and none before a full stop."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.read_text())).replace(" .", ".")


def agrees(shown, exact):
    """Return whether a shown number is the exact one, rounded to the digits that are shown."""
    match = NUMBER.fullmatch(shown.removesuffix("%"))
    if match is None:
        return False
    digits = match[0].replace(",", "").replace("\u2212", "-")
    decimals = len(digits.partition(".")[2])
    scale = 100 if shown.endswith("%") else 1
    return abs(float(digits) - scale * float(exact)) <= 0.5 * 10**-decimals * (1 + 1e-9)


def trouble(path):
    """Return what is wrong with the numbers of a page, in words; an empty list, if nothing is."""
    data = path.with_name(f"{path.stem}-data")
    page = Page(path.read_text(encoding="utf-8"))
    wrong = [f"says not where it comes from: {text!r}" for text in page.loose]
    for shown, value, cell in page.numbers:
        file, row, column = re.fullmatch(r"([\w.-]+)#(\d+)/(.+)", cell).groups()
        exact = rows_of(data / file)[int(row) - 1][column]
        if exact != value or not agrees(shown, exact):
            wrong.append(f"shows {shown!r}, has {value!r}, and is {exact!r} in {cell}")
    return wrong
