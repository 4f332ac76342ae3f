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

    def opened(path="/", *, server=served):
        contexts.append(browser.new_context(viewport={"width": 1100, "height": 800}))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", requested)
        page.on("response", answered)
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


def test_a_question_is_answered_by_each_way_of_ranking_and_the_browser_goes_back(open_page, served):
    page, info = open_page(), served.get("/info")[1]
    expect(page.locator("#model")).to_have_text(info["model"])
    expect(page.locator("#documents")).to_have_text(f"{info['documents']:,} documents")
    expect(page.locator("#intro")).to_be_visible()
    expect(page.get_by_label("Your question")).to_be_focused()
    ask(page, QUESTION)
    assert info["mode"] == "hybrid"
    assert_shown(page, served, QUESTION, "hybrid")
    default = answers(page)
    assert list(default.values()) == sorted(default.values(), reverse=True)
    assert re.fullmatch(rf"{len(default)} answers in [\d.]+ m?s", page.get_by_role("status").text_content())
    expect(page.locator("#intro")).to_be_hidden()
    assert page.title() == f"{QUESTION} · endx"
    for mode, name in (("bm25", "BM25"), ("dense", "Dense")):
        page.get_by_text(name, exact=True).first.click()
        expect(page.locator("#meaning")).to_have_text(f"Score: {info['scores'][mode]}")
        assert_shown(page, served, QUESTION, mode)
        assert answers(page) != default
        assert parse_qs(urlsplit(page.url).query) == {"q": [QUESTION], "mode": [mode], "k": ["10"]}
    page.go_back()
    expect(page.get_by_label("BM25")).to_be_checked()
    page.goto(f"{served.url}/?q={quote(QUESTION)}&mode=bm25&k=5")
    expect(page.locator("#answers > li")).to_have_count(5)


def test_answers_are_restricted_by_their_metadata_and_a_wrong_filter_is_named(open_page, documents):
    for year in (2019, 2021):
        documents(text=f"the cat of {year}", metadata={"year": year, "lang": "en", "draft": year > 2020})
    page = open_page("/?q=the+cat&mode=bm25&where=lang%3Den%2C+year%3E%3D2020")
    expect(page.locator("#answers > li")).to_have_count(1)
    expect(page.locator("#answers > li")).to_contain_text("the cat of 2021")
    for words, count in (("lang=en", 2), ("draft=false", 1), ("english", 0)):
        page.get_by_label("Only").fill(words)
        page.get_by_label("Only").press("Enter")
        expect(page.locator("#answers > li:visible")).to_have_count(count)
    expect(page.locator("#failure")).to_contain_text("“english” is no filter")


def test_a_document_is_added_found_deleted_and_brought_back(open_page, served):
    page, before = open_page(f"/?q={quote('zebra crossing')}&mode=bm25"), served.get("/info")[1]["documents"]
    expect(page.locator("#none")).to_be_visible()
    page.get_by_role("button", name="Add a document").click()
    fields = {"Text": "crossing the road.\nAgain.", "Title": "Zebra", "Metadata": "a=1, a=2"}
    for label, value in (fields | {"Known questions": "who is striped\n\nwhat crosses"}).items():
        page.get_by_label(label).fill(value)
    page.get_by_role("textbox", name="Id").fill("page-1/zebra?")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#add .refusal")).to_have_text("“a” is given twice: a field has one value.")
    page.get_by_label("Metadata").fill("lang=en, zip=00501")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("Zebra is added. 1 answer in ")
    expect(page.locator("#documents")).to_have_text(f"{before + 1:,} documents")
    assert page.locator(".text").inner_text() == fields["Text"]
    assert page.locator(".known li").all_text_contents() == ["who is striped", "what crosses"]
    assert page.locator(".facts li").all_text_contents() == ["page-1/zebra?", "lang: en", "zip: 00501"]
    delete = page.get_by_role("button", name="Delete Zebra")
    delete.click()
    expect(page.locator("#documents")).to_have_text(f"{before:,} documents")
    page.get_by_role("button", name="Undo the deletion of Zebra").click()
    expect(delete).to_be_focused()
    served.ask("DELETE", "/documents/page-1%2Fzebra%3F")
    delete.click()  # of a document that is gone already
    expect(page.locator("#failure")).to_be_hidden()


def test_documents_are_shown_as_text_and_never_run(open_page, documents):
    metadata = {"title": HOSTILE, "source": HOSTILE, "url": "javascript:document.title='run'", HOSTILE: HOSTILE}
    documents(id=f"page-{HOSTILE}", text=f"{HOSTILE} giraffe", metadata=metadata)
    linked = {"title": "Otter", "url": "https://example.org/giraffe"}
    documents(id="page-2", text="Otter ## A giraffe.", metadata=linked)
    page = open_page("/?q=giraffe&mode=bm25")
    expect(page.locator("#answers > li")).to_have_count(2)
    hostile, other = (page.locator("#answers > li").filter(has_text=text) for text in ("onerror", "Otter"))
    assert [hostile.locator("h3").inner_text(), hostile.locator(".text").inner_text()] == [HOSTILE, "giraffe"]
    assert hostile.locator(".facts li").all_text_contents() == [f"page-{HOSTILE}", HOSTILE, f"{HOSTILE}: {HOSTILE}"]
    assert page.locator("main :is(img, b b, script)").count() == 0
    links = [(link.get_attribute("href"), link.get_attribute("rel")) for link in page.locator("#answers a").all()]
    assert links == [("https://example.org/giraffe", "noopener noreferrer")] * 2
    assert other.locator(".text").inner_text() == "A giraffe."  # headings are no markdown
    assert page.title() == "giraffe · endx"


def test_a_refusal_and_a_server_that_is_gone_are_told_until_the_next_answer(open_page, served):
    page = open_page()
    page.get_by_label("Your question").fill("x" * (served.get("/info")[1]["limits"]["max_text_bytes"] + 1))
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#failure p")).to_have_text(
        "The question is too long: 1,000,001 bytes exceed the limit of 1,000,000: send it in parts."
    )
    expect(page.locator("#answers")).to_be_hidden()
    page.route("**/search", lambda route: route.abort())
    ask(page, QUESTION)
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#answers > li").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_token_is_asked_for_and_kept(open_page, serve):
    page = open_page(f"/?q={quote(QUESTION)}", server=serve(ServingSettings(token="right")))
    dialog = page.get_by_role("dialog", name="A token, please")
    dialog.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("The server refused this token.")
    dialog.get_by_label("Token").fill("right")
    dialog.get_by_role("button", name="Continue").click()
    for _ in range(2):
        expect(page.locator("#answers > li").first).to_be_visible()
        page.reload()
    page.evaluate("sessionStorage.clear()")
    page.reload()
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("only to those who have its token")
