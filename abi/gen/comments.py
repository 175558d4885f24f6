"""Which comment belongs to which declaration of the header.

The header is scanned once, in order.  A comment that starts in column 0 holds
for the declarations and #defines below it, up to the next comment or blank
line.  A comment that says "Common to all of them" gives its Thread: and
Blocks: tags to the functions after it, until one has tags of its own.
"""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"^(?P<banner>/\* -{20,} ?(?P<section>\w[^\n]*?)?"
    r"(?: \*/|\n(?P<rest>.*?)\*/))"
    r"|^(?P<comment>/\*.*?\*/)"
    r"|^(?P<blank>[ \t]*)$"
    r"|^#define (?P<define>ALQ_\w+)(?P<value>[^\n(]*\(?[^\n]*)"
    r"|^(?P<line>[^\n]+)",
    re.S | re.M)


@dataclass
class Doc:
    text: str = ""
    thread: str = ""
    blocks: str = ""
    section: str = ""


@dataclass
class Define:
    name: str
    value: str
    doc: str
    section: str


def clean(comment):
    """Comment text without its markers, one paragraph per line."""
    body = re.sub(r"^/\*+|\*+/$", "", comment.strip())
    first, *more = body.split("\n")
    lines = [first.strip()]
    lines += [re.sub(r"^\s*\* ?", "", line).rstrip() for line in more]
    return "\n".join(lines).strip()


def tags(text):
    """(thread, blocks) of a comment; '' where it has none."""
    flat = " ".join(text.split())
    thread = re.search(r"Thread: (.*?)\.(?: |$)", flat)
    blocks = re.search(r"Blocks: (.*?)\.(?: |$)", flat)
    return (thread.group(1) if thread else "",
            blocks.group(1) if blocks else "")


class Scanner:
    """Docs by the byte offset of the declaration they precede."""

    def __init__(self, text):
        self.docs = {}
        self.defines = []
        self._section = ""
        self._comment = None
        self._common = ("", "")
        self._scan(text)

    def doc_at(self, offset):
        return self.docs.get(offset)

    def _scan(self, text):
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                position += 1
                continue
            self._take(match, text)
            position = max(match.end(), position + 1)

    def _take(self, match, text):
        if match["banner"]:
            self._section = (match["section"] or self._section).strip()
            self._comment = clean(match["rest"]) if match["rest"] else None
            self._common = ("", "")
        elif match["comment"]:
            self._comment = clean(match["comment"])
        elif match["define"]:
            self._define(match)
        elif match["line"]:
            self._line(match.start("line"))
        elif match["blank"] is not None:
            # The match of an empty line right after a line's own newline.
            if match.start() == 0 or text[match.start() - 1] == "\n":
                self._blank()

    def _blank(self):
        if self._comment and "Common to all of them" in self._comment:
            self._common = tags(self._comment)
        self._comment = None

    def _define(self, match):
        raw = match["value"].strip()
        trailing = re.search(r"/\*(.*?)\*/\s*$", raw)
        doc = trailing.group(1).strip() if trailing else (self._comment or "")
        value = re.sub(r"/\*.*?\*/", "", raw).strip()
        self.defines.append(Define(match["define"], value, doc, self._section))

    def _line(self, offset):
        text = self._comment or ""
        thread, blocks = tags(text)
        if text and not thread and not blocks:
            thread, blocks = self._common
        elif thread:
            self._common = ("", "")
        self.docs[offset] = Doc(text, thread, blocks, self._section)
