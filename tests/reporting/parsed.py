"""What tests need to know about a page: its tags, links, texts and numbers."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
SVG_EMPTY = {"path", "use", "rect"}


class Page(HTMLParser):
    """A parsed page; fails on tags that do not balance."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.by_tag: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute stands twice in {tag} {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.open:
            self.by_tag.setdefault(self.open[-1], []).append(data)

    @property
    def text(self) -> str:
        """The visible text, white space folded."""
        hidden = {*self.by_tag.get("style", ()), *self.by_tag.get("script", ())}
        return " ".join(" ".join(text for text in self.texts if text not in hidden).split())

    @property
    def names(self) -> set[str]:
        """The tags in use."""
        return {tag for tag, _ in self.tags}

    @property
    def numbers(self) -> list[float]:
        """The exact values behind the printed numbers."""
        return [float(attrs["value"] or "nan") for tag, attrs in self.tags if tag == "data"]
