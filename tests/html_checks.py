"""What every piece of HTML that lox makes for a notebook keeps to, and how to read its tables."""

from html.parser import HTMLParser

TAGS = {"div", "style", "b", "span", "br", "table", "thead", "tbody", "tr", "th", "td", "svg", "path"}
TAGS |= {"text", "line", "rect", "circle", "g", "title"}
ATTRIBUTES = {"class", "style", "title", "xmlns", "width", "height", "viewbox", "role", "aria-label", "d", "fill"}
ATTRIBUTES |= {"fill-opacity", "stroke", "stroke-width", "stroke-linejoin", "stroke-linecap", "stroke-opacity"}
ATTRIBUTES |= {"x", "y", "x1", "x2", "y1", "y2", "text-anchor", "font-size", "opacity", "font-weight", "rx"}


class Page(HTMLParser):
    """The text of the cells of each table; an error for anything that could load or run something."""

    def __init__(self, html):
        super().__init__()
        self.tables = []
        self.text = ""
        self.curves = 0
        self._open = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS, tag
        for name, value in attributes:
            assert name in ATTRIBUTES, (tag, name)
            assert name == "xmlns" or not any(word in value for word in ("//", "url(", "javascript")), value
        if tag in ("br", "path", "line", "rect", "circle"):
            return
        self._open.append(tag)
        self.curves += tag == "svg"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in ("br", "path", "line", "rect", "circle"):
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open:
            assert "url" not in data
            assert "@import" not in data
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    def rows(self, table=0):
        """The first cell of each row, and the others by the name of their column."""
        head, *body = self.tables[table]
        return {row[0].strip(): dict(zip(head[1:], map(str.strip, row[1:]), strict=True)) for row in body}


def page_of(shown):
    return Page(shown._repr_html_())
