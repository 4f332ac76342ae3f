"""The page of `endx serve`, driven in a real Chromium against the real server."""

import os
import re
import shutil
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from endx_jax.serving.settings import ServingSettings

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
# Milliseconds: for machines that are busy with other tests.
PATIENCE = 15_000
expect = api.expect
expect.set_options(timeout=PATIENCE)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")]

QUESTION = "where is the cat 3"
HOSTILE = "<img src=x onerror=\"document.title='run'\"><b>bold</b>"

# The luminance of a colour and the contrast of two: WCAG 2.2, "relative luminance" and "contrast ratio".
LEAST_CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = channels(colour).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const written = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!written || !element.checkVisibility() || element.matches(":disabled")) continue;
    const [dark, light] = [getComputedStyle(element).color, ground(element)].map(luminance).sort((a, b) => a - b);
    found.push([(light + 0.05) / (dark + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0])[0];
}"""

FOCUSED = """() => {
  const { activeElement: element } = document;
  const shown = element.matches("[type=radio]") ? element.nextElementSibling : element;
  const style = getComputedStyle(shown);
  return {
    name: element.ariaLabel || element.labels?.[0]?.textContent.trim() || element.textContent.trim(),
    visible: style.outlineStyle !== "none" || style.boxShadow !== "none",
  };
}"""


@pytest.fixture(scope="module")
def browser():
    """Of the module and no longer: Playwright keeps an event loop, which other tests may want for themselves."""
    with api.sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, served):
    """Opens the page; at the end of a test nothing may have failed in it, and nothing left the host."""
    problems, contexts = [], []

    def console(message):
        # Chromium writes a line of its own for each 4xx, also for those that the page expects.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    def requested(request):
        if urlsplit(request.url).hostname != "127.0.0.1":
            problems.append(f"a request left the host: {request.url}")

    def answered(response):
        if response.status >= 400 and urlsplit(response.url).path.startswith("/static"):
            problems.append(f"{response.url}: {response.status}")

    def opened(path="/", *, server=served, routes=(), **context):
        contexts.append(browser.new_context(**{"viewport": {"width": 1100, "height": 800}, **context}))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", requested)
        page.on("response", answered)
        for pattern, handler in routes:
            page.route(pattern, handler)
        page.goto(server.url + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def documents(served):
    """Adds documents over HTTP; they are gone after the test."""
    added = []

    def add(**document):
        status, answer = served.post("/documents", {"documents": [document]})
        assert status == 201
        added.extend(answer["ids"])

    yield add
    for name in added:
        served.ask("DELETE", f"/documents/{quote(name, safe='')}")


def ask(page, question: str) -> None:
    page.get_by_label("Your question").fill(question)
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")


def answers(page) -> dict[str, float]:
    """The scores that are shown, by the name that the button to delete says, in order."""
    names = [button.get_attribute("aria-label").removeprefix("Delete ") for button in page.locator(".delete").all()]
    assert page.locator(".rank").all_text_contents() == [str(1 + i) for i in range(len(names))]
    return dict(zip(names, map(float, page.locator("#answers data").all_text_contents()), strict=True))


def assert_shown(page, served, query: str, mode: str, k: int = 10) -> None:
    """What is shown is what the server finds, in its order."""
    _, found = served.post("/search", {"query": query, "mode": mode, "k": k})
    scores = {answer["id"]: answer["score"] for answer in found["results"]}
    shown = answers(page)
    assert list(shown) == list(scores)
    assert shown == pytest.approx(scores, abs=0.51 * {"dense": 1e-3, "bm25": 1e-2, "hybrid": 1e-4}[mode])


def test_a_question_is_answered_in_order(open_page, served):
    page = open_page()
    info = served.get("/info")[1]
    expect(page.locator("#model")).to_have_text(info["model"])
    expect(page.locator("#documents")).to_have_text(f"{info['documents']:,} documents")
    expect(page.locator("#intro")).to_be_visible()
    ask(page, QUESTION)
    assert info["mode"] == "hybrid"
    assert_shown(page, served, QUESTION, "hybrid")
    shown = answers(page)
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert re.fullmatch(rf"{len(shown)} answers in [\d.]+ m?s", page.get_by_role("status").text_content())
    expect(page.locator("#meaning")).to_have_text(f"Score: {info['scores']['hybrid']}")
    expect(page.locator("#intro")).to_be_hidden()
    assert page.title() == f"{QUESTION} · endx"


def test_each_way_of_ranking_asks_again_and_can_be_gone_back_to(open_page, served):
    page = open_page()
    ask(page, QUESTION)
    default = answers(page)
    for mode, name in (("bm25", "BM25"), ("dense", "Dense")):
        page.get_by_text(name, exact=True).first.click()
        expect(page.locator("#meaning")).to_have_text(f"Score: {served.get('/info')[1]['scores'][mode]}")
        assert_shown(page, served, QUESTION, mode)
        assert answers(page) != default
        assert parse_qs(urlsplit(page.url).query) == {"q": [QUESTION], "mode": [mode], "k": ["10"]}
    page.go_back()
    expect(page.get_by_label("BM25")).to_be_checked()
    page.go_back()
    expect(page.get_by_label("Hybrid")).to_be_checked()
    expect(page.locator("#answers data").first).to_have_text(f"{max(default.values()):.4f}")
    page.go_back()
    expect(page.locator("#intro")).to_be_visible()
    expect(page.get_by_label("Your question")).to_have_value("")


def test_answers_are_restricted_by_their_metadata(open_page, documents):
    for year in (2019, 2021):
        documents(text=f"the cat of {year}", metadata={"year": year, "lang": "en"})
    page = open_page("/?q=the+cat&mode=bm25&where=lang%3Den%2C+year%3E%3D2020")
    expect(page.locator("#answers > li")).to_have_count(1)
    expect(page.locator("#answers > li")).to_contain_text("the cat of 2021")
    page.get_by_label("Only").fill("lang=en")
    page.get_by_label("Only").press("Enter")
    expect(page.locator("#answers > li")).to_have_count(2)
    page.get_by_label("Only").fill("english")
    page.get_by_label("Only").press("Enter")
    expect(page.locator("#failure")).to_contain_text("“english” is no filter: write a field, one of = < > <= >=")


def test_an_address_opens_its_question(open_page, served):
    page = open_page(f"/?q={quote(QUESTION)}&mode=bm25&k=5")
    expect(page.locator("#answers > li")).to_have_count(5)
    assert_shown(page, served, QUESTION, "bm25", 5)
    page.get_by_role("combobox", name="Answers").select_option("10")
    expect(page.locator("#answers > li").nth(5)).to_be_visible()
    assert_shown(page, served, QUESTION, "bm25")


def test_a_document_is_added_found_deleted_and_brought_back(open_page, served):
    page = open_page(f"/?q={quote('zebra crossing')}&mode=bm25")
    expect(page.locator("#none")).to_be_visible()
    before = served.get("/info")[1]["documents"]
    page.get_by_role("button", name="Add a document").click()
    page.get_by_label("Text").fill("crossing the road.\nAgain.")
    page.get_by_label("Title").fill("Zebra")
    page.get_by_label("Known questions").fill("who is striped\n\nwhat crosses")
    page.get_by_label("Metadata").fill("lang=en, zip=00501")
    page.get_by_role("textbox", name="Id").fill("page-1/zebra?")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Zebra is added. 1 answer in ")
    expect(page.locator("#documents")).to_have_text(f"{before + 1:,} documents")
    expect(page.get_by_role("heading", name="Zebra")).to_be_visible()
    assert page.locator(".text").inner_text() == "crossing the road.\nAgain."
    assert page.locator(".known li").all_text_contents() == ["who is striped", "what crosses"]
    assert page.locator(".facts li").all_text_contents() == ["page-1/zebra?", "lang: en", "zip: 00501"]
    page.get_by_label("Only").fill("zip=00501, zip=2")
    ask(page, "who is striped")
    assert list(answers(page)) == ["Zebra"]
    page.get_by_label("Only").fill("")
    for mode in ("Dense", "Hybrid"):  # asked in its own words it is first, whoever ranks
        page.get_by_text(mode, exact=True).first.click()
        ask(page, "Zebra crossing the road. Again.")
        assert next(iter(answers(page))) == "Zebra"
    page.get_by_role("button", name="Delete Zebra").click()
    undo = page.get_by_role("button", name="Undo the deletion of Zebra")
    expect(undo).to_be_focused()
    expect(page.locator("#documents")).to_have_text(f"{before:,} documents")
    undo.click()
    expect(page.get_by_role("button", name="Delete Zebra")).to_be_focused()
    ask(page, "Zebra crossing the road. Again.")
    assert next(iter(answers(page))) == "Zebra"
    page.get_by_role("button", name="Delete Zebra").click()
    expect(undo).to_be_visible()
    ask(page, "Zebra crossing the road. Again.")
    assert "Zebra" not in answers(page)
    assert served.ask("DELETE", "/documents/page-1%2Fzebra%3F")[0] == 404


def test_a_passage_is_deleted_and_brought_back_with_its_document(open_page, served, documents):
    text = "\n\n".join(f"Whale {n} {'swims ' * 100}" for n in range(4))
    documents(id="page-split", text=text, metadata={"title": "Whales", "lang": "en"}, split=True)
    page, before = open_page("/?q=whale&mode=bm25"), served.get("/documents/page-split")
    assert list(answers(page)) == ["Whales"]
    assert set(page.locator(".facts li").all_text_contents()) > {"page-split", "lang: en"}
    expect(page.locator(".facts")).to_contain_text("passage: ")
    page.get_by_role("button", name="Delete Whales").click()
    undo = page.get_by_role("button", name="Undo the deletion of Whales")
    expect(undo).to_be_focused()
    assert served.get("/documents/page-split")[0] == 404
    undo.click()
    expect(page.get_by_role("button", name="Delete Whales")).to_be_focused()
    assert served.get("/documents/page-split") == before


def test_documents_are_shown_as_text_and_never_run(open_page, documents):
    metadata = {"title": HOSTILE, "source": HOSTILE, "url": "javascript:document.title='run'", HOSTILE: HOSTILE}
    documents(id=f"page-{HOSTILE}", text=f"{HOSTILE} giraffe", metadata=metadata)
    documents(id="page-2", text="A giraffe.", metadata={"title": "Tall", "url": "https://example.org/giraffe"})
    documents(id="page-3", text="giraffe!", metadata={"url": "data:text/html,<script>1</script>", "height": 5.5})
    page = open_page("/?q=giraffe&mode=bm25")
    expect(page.locator("#answers > li")).to_have_count(3)
    hostile = page.locator("#answers > li").filter(has_text="onerror")
    assert hostile.locator("h3").inner_text() == HOSTILE
    assert hostile.locator(".text").inner_text() == "giraffe"
    assert hostile.locator(".facts li").all_text_contents() == [f"page-{HOSTILE}", HOSTILE, f"{HOSTILE}: {HOSTILE}"]
    assert page.locator("main :is(img, b b, script)").count() == 0
    links = page.locator("#answers a").all()
    assert [link.get_attribute("href") for link in links] == ["https://example.org/giraffe"] * 2
    assert {link.get_attribute("rel") for link in links} == {"noopener noreferrer"}
    assert [link.text_content() for link in links] == ["Tall", "example.org"]
    expect(page.locator(".facts").filter(has_text="height: 5.5")).to_be_visible()
    assert page.title() == "giraffe · endx"


def test_headings_are_no_markdown_and_a_document_that_is_gone_leaves_the_list(open_page, served, documents):
    documents(id="page.md#1", text="Otter ## Food\nfish", metadata={"title": "Otter", "source": "page.md#1"})
    page = open_page("/?q=otter&mode=bm25")
    assert page.locator(".text").inner_text() == "Food\nfish"
    assert page.locator(".facts li").all_text_contents() == ["page.md#1"]
    served.ask("DELETE", "/documents/page.md%231")
    page.get_by_role("button", name="Delete Otter").click()
    expect(page.locator("article")).to_be_hidden()
    expect(page.locator("#failure")).to_be_hidden()


def test_a_long_text_shows_its_beginning_until_all_is_wanted(open_page, documents):
    documents(id="page-long", text="hippopotamus " * 200)
    page = open_page("/?q=hippopotamus&mode=bm25")
    text, more = page.locator(".text"), page.get_by_role("button", name="Show more of page-long")
    assert more.get_attribute("aria-expanded") == "false"
    folded = text.bounding_box()["height"]
    more.click()
    less = page.get_by_role("button", name="Show less of page-long")
    assert less.get_attribute("aria-expanded") == "true"
    assert text.bounding_box()["height"] > 3 * folded
    less.click()
    assert text.bounding_box()["height"] == folded


def test_a_refusal_is_shown_in_the_servers_words(open_page, served):
    page = open_page()
    too_long = "x" * (served.get("/info")[1]["limits"]["max_text_bytes"] + 1)
    _, refused = served.post("/search", {"query": too_long})
    page.get_by_label("Your question").fill(too_long)
    page.get_by_role("button", name="Ask").click()
    assert refused["error"]["message"].startswith("query: 1000001 bytes exceed the limit of 1000000")
    expect(page.locator("#failure p")).to_have_text(
        "The question is too long: 1,000,001 bytes exceed the limit of 1,000,000: split the text."
    )
    expect(page.locator("#answers")).to_be_hidden()
    page.get_by_role("button", name="Add a document").click()
    page.get_by_label("Text").fill("x")
    page.get_by_label("Metadata").fill("a=1, a=2")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#add .refusal")).to_have_text("“a” is given twice: a field has one value.")
    assert page.get_by_label("Text").input_value() == "x"
    page.keyboard.press("Escape")
    ask(page, QUESTION)
    expect(page.locator("#failure")).to_be_hidden()


def test_a_server_that_is_gone_can_be_tried_again(open_page):
    page = open_page()
    page.route("**/search", lambda route: route.abort())
    ask(page, QUESTION)
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#answers > li").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_slow_answer_does_not_replace_a_later_one(open_page, served):
    page = open_page()
    held = []
    page.route("**/search", lambda route: route.continue_() if held else held.append(route))
    page.get_by_label("Your question").fill("slow")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("Searching…")
    expect(page.locator("#results")).to_have_attribute("aria-busy", "true")
    ask(page, QUESTION)
    found = answers(page)
    held[0].fulfill(json={"results": [], "mode": "dense", "took_ms": 1.0, "documents": 1})
    page.wait_for_load_state("networkidle")
    assert answers(page) == found
    assert_shown(page, served, QUESTION, "hybrid")


def test_a_token_is_asked_for_and_kept(open_page, serve):
    page = open_page(f"/?q={quote(QUESTION)}", server=serve(ServingSettings(token="right")))
    dialog = page.get_by_role("dialog", name="A token, please")
    dialog.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("The server refused this token.")
    dialog.get_by_label("Token").fill("right")
    dialog.get_by_role("button", name="Continue").click()
    expect(page.locator("#answers > li").first).to_be_visible()
    page.reload()
    expect(page.locator("#answers > li").first).to_be_visible()
    page.evaluate("sessionStorage.clear()")
    page.reload()
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("only to those who have its token")


def test_an_empty_index_asks_for_documents(open_page, served):
    info = served.get("/info")[1] | {"documents": 0, "modes": ["dense"]}
    page = open_page(routes=[("**/info", lambda route: route.fulfill(json=info))])
    expect(page.get_by_text("There are no documents yet.")).to_be_visible()
    expect(page.get_by_label("BM25")).to_be_disabled()
    page.get_by_role("button", name="Add the first").click()
    expect(page.get_by_label("Text")).to_be_focused()


def test_everything_can_be_done_with_the_keyboard(open_page):
    page = open_page()
    press = page.keyboard.press

    def tab_to(name: str, key: str = "Tab") -> None:
        for _ in range(8):
            press(key)
            focused = page.evaluate(FOCUSED)
            assert focused["visible"], focused
            if focused["name"].startswith(name):
                return
        raise AssertionError(f"{key} does not lead to {name!r}")

    expect(page.get_by_label("Your question")).to_be_focused()
    page.keyboard.type(QUESTION)
    press("Enter")
    page.locator("#answers > li").first.wait_for()
    tab_to("Ask")
    tab_to("Hybrid")
    press("ArrowLeft")
    expect(page.get_by_label("BM25")).to_be_checked()
    expect(page.locator("#meaning")).to_have_text("Score: BM25")
    tab_to("Answers")
    first = next(iter(answers(page)))
    tab_to(f"Delete {first}")
    press("Enter")
    expect(page.get_by_role("button", name=f"Undo the deletion of {first}", exact=True)).to_be_focused()
    press("Enter")
    expect(page.get_by_role("button", name=f"Delete {first}", exact=True)).to_be_focused()
    press("/")
    expect(page.get_by_label("Your question")).to_be_focused()
    assert page.evaluate("getSelection().toString()") == QUESTION
    press("/")  # there it is a character like others
    expect(page.get_by_label("Your question")).to_have_value("/")
    tab_to("Add a document", "Shift+Tab")
    press("Enter")
    expect(page.get_by_label("Text")).to_be_focused()
    tab_to("Title")
    tab_to("Id")
    press("Escape")
    expect(page.get_by_role("button", name="Add a document")).to_be_focused()


def test_a_narrow_window_is_not_scrolled_sideways(open_page, documents):
    documents(id="page-" + "x" * 200, text="okapi " + "o" * 500, metadata={"title": "O" * 100, "key": "v" * 200})
    page = open_page("/?q=okapi&mode=bm25")
    expect(page.locator("#answers > li")).to_have_count(1)
    for width in (360, 320):  # a phone; 1280 pixels at a zoom of 400 %
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.get_by_role("button", name="Add a document").click()
    assert page.get_by_role("dialog").bounding_box()["width"] < width
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_text_stands_out_from_its_ground(open_page, documents):
    documents(id="page-4", text="A lynx.", metadata={"title": "Lynx", "url": "https://example.org/lynx"})
    page = open_page("/?q=lynx&mode=bm25")
    expect(page.locator("#answers > li")).to_have_count(1)
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        contrast, where = page.evaluate(LEAST_CONTRAST)
        assert contrast >= 4.5, where
        page.get_by_role("button", name="Add a document").click()
        contrast, where = page.evaluate(LEAST_CONTRAST)
        assert contrast >= 4.5, where
        page.keyboard.press("Escape")
    assert len(grounds) == 2


def test_the_page_says_what_is_what(open_page):
    page = open_page(f"/?q={quote(QUESTION)}")
    page.locator("#answers > li").first.wait_for()
    unnamed = "[...document.querySelectorAll('input, select, textarea')].filter((e) => !e.labels.length).length"
    assert page.evaluate(unnamed) == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    assert page.locator("html").get_attribute("lang") == "en"
    for role in ("banner", "main", "search"):
        expect(page.get_by_role(role)).to_have_count(1)
    expect(page.get_by_role("heading", level=1)).to_have_text("endx")
    expect(page.get_by_role("group", name="Ranked by").get_by_role("radio")).to_have_count(3)
    expect(page.get_by_role("region", name="Answers").locator("ol[role=list]")).to_have_count(1)
    names = [button.get_attribute("aria-label") for button in page.locator(".delete").all()]
    assert len(names) == len(set(names)) > 1
