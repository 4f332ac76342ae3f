"""Natural Questions in small: pages written here, laid out as the published ones, full and simplified."""

import re

# A token is a tag or a word or a single sign; the tag of an attribute is not a token of its own.
TOKEN = re.compile(r"<[^>]*>|\w+|[^\w\s]")
# Tags that the published token lists leave out.
INLINE = re.compile(r"</?(?:A|B|SUP)\b")


def page(html: str) -> list[dict]:
    """The tokens of a page with the bytes that they stand at."""
    found = []
    for match in TOKEN.finditer(html):
        text, (start, end) = match.group(), (len(html[:place].encode()) for place in match.span())
        if not INLINE.match(text):
            found.append({"token": text, "html_token": text[0] == "<", "start_byte": start, "end_byte": end})
    return found


def span(tokens: list[dict], text: str, after: int = 0) -> dict:
    """The tokens of `text`, which are words, tags and signs apart, at or after token `after`."""
    wanted = text.split(" ")
    words = [token["token"] for token in tokens]
    start = next(n for n in range(after, len(words)) if words[n : n + len(wanted)] == wanted)
    return {"start_token": start, "end_token": start + len(wanted)}


NO_ANSWER = {"start_token": -1, "end_token": -1}


def annotation(long: dict, *short: dict, yes_no: str = "NONE") -> dict:
    return {"annotation_id": 1, "long_answer": long, "short_answers": list(short), "yes_no_answer": yes_no}


def full(name: int, question: str, html: str, *annotations: dict, title: str = "Bees") -> dict:
    return {
        "example_id": name,
        "question_text": question,
        "document_title": title,
        "document_url": f"https://en.wikipedia.org//w/index.php?title={title}&amp;oldid=7",
        "document_html": html,
        "document_tokens": page(html),
        "long_answer_candidates": [],
        "annotations": list(annotations),
    }


def simplified(row: dict) -> dict:
    """The same page as the simplified files have it."""
    dropped = ("document_title", "document_html", "document_tokens")
    text = " ".join(token["token"] for token in row["document_tokens"])
    return {key: value for key, value in row.items() if key not in dropped} | {"document_text": text}
