"""What a reader of Markdown makes of a text: the tags, the words, the links, and how many cells a row has."""

from __future__ import annotations

from html.parser import HTMLParser

from markdown_it import MarkdownIt


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[int] = []
        self.words = ""
        self.links: list[str | None] = []
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append(0)
        elif tag in {"td", "th"}:
            self.rows[-1] += 1
        elif tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_data(self, data: str) -> None:
        self.words += data
