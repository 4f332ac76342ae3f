// The page of `endx serve`: asks, shows ranked answers, adds documents and deletes them.
//
// Documents come from anyone. What is theirs enters the page as text (textContent, append), and as the address of a link
// only after a look at its scheme; it is never read as HTML.

const TOKEN = "endx-token";
const KNOWN = 3; // known questions that are shown of an answer
const DECIMALS = { dense: 3, bm25: 2, hybrid: 4 };

const find = (selector, within = document) => within.querySelector(selector);
const form = find("#ask");
const results = find("#results");

// ---- The server ------------------------------------------------------------------------------------------------------

/** Why a request failed, in words for the reader; `status` is that of the server's answer, if there was one. */
class Failure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// What the server's names of fields are called on this page.
const FIELDS = { query: "the question", where: "the filter", questions: "a known question", k: "the number of answers" };
const PARTS = { text: "the text", id: "the id", metadata: "the metadata", questions: "a known question" };

/** An error of the server as a sentence: `documents[0].text: is empty` becomes “The text is empty.” */
function sentence({ message, param }) {
  const name = FIELDS[param] ?? PARTS[param?.match(/^documents(?:\[\d+\])?(?:\.(\w+)|$)/)?.[1] ?? "text"];
  let said = message;
  if (param && name && message.startsWith(`${param}: `)) {
    const reason = message.slice(param.length + 2);
    const verb = /^(is|must|should) /.test(reason) ? " " : /^\d/.test(reason) ? " is too long: " : ": ";
    said = reason.startsWith("the ") ? reason : name + verb + reason;
  }
  said = said.replace(/\b\d{4,}(?= bytes| texts)|(?<=limit of )\d{4,}/g, (digits) => Number(digits).toLocaleString("en"));
  return said[0].toUpperCase() + said.slice(1) + (/[.!?]$/.test(said) ? "" : ".");
}

/**
 * Sends a request and returns the JSON that answers it; asks for the token where the server wants one.
 *
 * Throws a Failure, in the server's words where it sent some, or the browser's AbortError after `signal`.
 */
async function call(method, path, body, signal) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = {};
    if (body) headers["Content-Type"] = "application/json";
    if (token) headers.Authorization = `Bearer ${token}`;
    const request = { method, headers, signal, body: body && JSON.stringify(body) };
    const response = await fetch(new URL(path, document.baseURI), request).catch((error) => {
      throw error.name === "AbortError" ? error : new Failure("The server cannot be reached. Is endx serve running?");
    });
    if (response.status === 401) {
      await newToken(token);
      continue;
    }
    const answer = await response.json().catch(() => null);
    signal?.throwIfAborted();
    if (response.ok && answer) return answer;
    const { error } = answer ?? {};
    throw new Failure(error ? sentence(error) : `The server answered with status ${response.status}.`, response.status);
  }
}

let tokenAsked = null; // one dialog, whoever waits for it

/** Waits for a token other than the one that was refused, which may be none. */
async function newToken(refused) {
  if (sessionStorage.getItem(TOKEN) !== refused) return;
  const dialog = find("#token");
  tokenAsked ??= new Promise((resolve) => {
    find(".refusal", dialog).textContent = refused ? "The server refused this token." : "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
  const given = await tokenAsked;
  tokenAsked = null;
  if (!given) throw new Failure("This server answers only to those who have its token.");
  sessionStorage.setItem(TOKEN, find("input", dialog).value);
}

// ---- What the reader is told -----------------------------------------------------------------------------------------

const say = (text) => (find("#status").textContent = text);
const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const duration = (ms) => (ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Shows what failed; the button of it calls `again`. */
function fail(failure, again) {
  if (!(failure instanceof Failure)) throw failure;
  const alert = find("#failure");
  find("p", alert).textContent = failure.message;
  find("button", alert).onclick = () => {
    form.elements.q.focus(); // the button is about to go
    again();
  };
  alert.hidden = false;
  alert.scrollIntoView({ block: "nearest" });
}

/** Shows one of the hints, `intro`, `none` or `empty`, or none of them. */
function hint(id) {
  for (const each of results.querySelectorAll(".hint")) each.hidden = each.id !== id;
}

const server = {}; // what GET /info says

function showServer(news) {
  Object.assign(server, news);
  find("#model").textContent = server.model;
  find("#documents").textContent = counted(server.documents, "document");
}

async function lookUpServer() {
  showServer(await call("GET", "info"));
  for (const radio of form.elements.mode) radio.disabled = !server.modes.includes(radio.value);
  for (const option of form.elements.k) option.disabled = Number(option.value) > server.limits.max_k;
  form.elements.mode.value ||= server.mode;
}

// ---- Asking ----------------------------------------------------------------------------------------------------------

let asking = new AbortController();

const BOUNDS = { "<": "lt", "<=": "lte", ">": "gt", ">=": "gte" };

/** The filter of metadata that a line such as `lang=en, year>=2020` describes. */
function filterOf(line) {
  const where = Object.create(null);
  for (const part of line.split(",").filter((each) => each.trim())) {
    const [, name, sign, text] = part.match(/^\s*([^<>=]+?)\s*(<=|>=|[<>=])\s*(.*?)\s*$/) ?? [];
    if (!name) throw new Failure(`“${part.trim()}” is no filter: write a field, one of = < > <= >=, and a value.`);
    const bounds = Object.hasOwn(where, name) ? where[name] : sign === "=" ? [] : {};
    if (Array.isArray(bounds) !== (sign === "=") || bounds[BOUNDS[sign]] !== undefined) {
      throw new Failure(`“${name}” is given twice: a field has several values (=), or one bound of each kind.`);
    }
    // `true` may be stored as a truth value or as text; a list means one of these.
    if (sign === "=") where[name] = [...bounds, valueOf(text), ...(/^(true|false)$/.test(text) ? [text === "true"] : [])];
    else where[name] = { ...bounds, [BOUNDS[sign]]: text === "" || isNaN(text) ? text : Number(text) };
  }
  for (const name in where) if (where[name].length === 1) [where[name]] = where[name];
  return where;
}

/** A value as it is typed; a number, which also finds text that is this number, if it is written as numbers are. */
function valueOf(text) {
  return String(Number(text)) === text && isFinite(text) ? Number(text) : text;
}

/** The metadata that a line such as `lang=en, year=2020` describes. */
function metadataOf(line) {
  const metadata = Object.create(null);
  for (const part of line.split(",").filter((each) => each.trim())) {
    const [, name, text] = part.match(/^\s*([^<>="]+?)\s*=\s*(.+?)\s*$/) ?? [];
    if (!name) throw new Failure(`“${part.trim()}” is no metadata: write a field, = and a value.`);
    if (Object.hasOwn(metadata, name)) throw new Failure(`“${name}” is given twice: a field has one value.`);
    metadata[name] = valueOf(text);
  }
  return metadata;
}

/** Asks what the form holds. An answer that is still awaited is given up. */
async function ask() {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  const [query, k, filter] = ["q", "k", "where"].map((name) => form.elements[name].value.trim());
  document.title = query ? `${query} · endx` : "endx";
  find("#failure").hidden = true;
  results.ariaBusy = Boolean(query);
  const patience = setTimeout(() => query && say("Searching…"), 500);
  try {
    if (!server.model) await lookUpServer();
    const mode = form.elements.mode.value; // the server's, once it is known
    const asked = { query, mode, k: Math.min(k, server.limits.max_k), where: filterOf(filter) };
    const found = query ? await call("POST", "search", asked, signal) : null;
    signal.throwIfAborted();
    if (found) showServer({ documents: found.documents });
    showAnswers(found);
  } catch (error) {
    if (signal.aborted) return;
    showAnswers(null);
    hint(null);
    fail(error, ask);
  } finally {
    clearTimeout(patience);
    if (!signal.aborted) results.ariaBusy = false;
  }
}

/** Asks, and gives the question an address: one can keep it, and the way back goes over it. */
function askAndRemember() {
  const address = new URL(location);
  address.search = form.elements.q.value.trim() ? new URLSearchParams(new FormData(form)) : "";
  if (address.href !== location.href) history.pushState(null, "", address);
  return ask();
}

/** Asks what the address holds. */
function askFromAddress() {
  const address = new URLSearchParams(location.search);
  form.reset();
  form.elements.q.value = address.get("q") ?? "";
  form.elements.mode.value = address.get("mode") ?? server.mode;
  form.elements.where.value = address.get("where") ?? "";
  for (const option of form.elements.k) if (option.value === address.get("k")) option.selected = true;
  return ask();
}

// ---- Answers ---------------------------------------------------------------------------------------------------------

/** Shows the answers of a search; without one, what can be done here. */
function showAnswers(found) {
  const answers = found ? found.results : [];
  // A cosine is shown on its own scale, from 0 to 1; other scores mean something only beside each other.
  const full = Math.max(found?.mode === "dense" ? 1 : 0, ...answers.map((answer) => answer.score));
  find("#answers").replaceChildren(...answers.map((answer) => listItem(answer, found.mode, full)));
  const searched = found && `${counted(answers.length, "answer")} in ${duration(found.took_ms)}`;
  const cut = answers.length && found.note ? `. ${sentence({ message: found.note })}` : "";
  say(searched ? searched + cut : "");
  find("#meaning").textContent = answers.length ? `Score: ${server.scores[found.mode]}` : "";
  const none = find("#none p");
  none.dataset.usual ??= none.textContent;
  none.textContent = found?.note ? `Nothing found: ${found.note}.` : none.dataset.usual;
  hint(answers.length ? null : !server.documents ? "empty" : found ? "none" : "intro");
  offerMore();
}

function listItem(answer, mode, full) {
  const item = find("#answer").content.firstElementChild.cloneNode(true);
  const { title: given, source, url, ...others } = answer.metadata;
  const title = String(given || nameWithin(answer));
  const name = title || answer.id;
  find(".rank", item).textContent = answer.rank;
  find("data", item).textContent = answer.score.toFixed(DECIMALS[mode]);
  find(".bar", item).style.setProperty("--share", Math.max(answer.score, 0) / (full || 1));
  const heading = find("h3", item);
  heading.append(link(url, title));
  heading.hidden = !title;
  const known = answer.questions ?? [];
  const rest = known.length - KNOWN;
  const listed = [...known.slice(0, KNOWN), ...(rest > 0 ? [`and ${counted(rest, "more question")}`] : [])];
  find(".known", item).append(...listed.map((each) => Object.assign(element("li", "asked", each), { dir: "auto" })));
  find(".text", item).append(...textOf(answer, title), answer.truncated ? "…" : "");
  const { id, passage } = answer;
  if (passage) others.passage = passage;
  find(".facts", item).append(...facts({ id: title !== id && id, source: source !== id && source, url, others }));
  const [more, drop, undo] = [".more", ".delete", ".undo"].map((button) => find(button, item));
  more.addEventListener("click", () => unfold(item, more.ariaExpanded !== "true", name));
  drop.ariaLabel = `Delete ${name}`;
  drop.addEventListener("click", () => setDeleted(item, answer, true));
  undo.ariaLabel = `Undo the deletion of ${name}`;
  undo.addEventListener("click", () => setDeleted(item, answer, false));
  find(".deleted span", item).textContent = `${name} is deleted.`;
  unfold(item, false, name);
  return item;
}

/** The id, where the text begins with it as that of a docstring does: `os.path.join: Joins ...`. */
function nameWithin({ id, text }) {
  return text.startsWith(`${id}: `) ? id : "";
}

/** The text without the title that it begins with; lines that are headings in Markdown are shown as such. */
function textOf({ id, text, metadata }, title) {
  const after = title && text.startsWith(title) ? text.slice(title.length).match(/^:?\s+(.*)$/s)?.[1] : undefined;
  const body = after ?? (text === title ? "" : text);
  // In other texts, one # begins comments as well.
  const mark = /\.(md|markdown|rst|html?)(#\d+)?$/i.test(metadata.source ?? id) ? /^#{1,6} +(?=\S)/ : /^#{2,6} +(?=\S)/;
  let code = false;
  return body.split(/(?<=\n)/).map((line) => {
    if (line.startsWith("```")) code = !code;
    return code || !mark.test(line) ? line : element("strong", "", line.replace(mark, ""));
  });
}

/** What else is known of a document, as list items. */
function facts({ id, source, url, others }) {
  const from = source || webAddress(url)?.host || url;
  return [
    ...(id ? [element("li", "id", id)] : []),
    ...(from ? [element("li", "source", link(url, String(from)))] : []),
    ...Object.entries(others).map(([key, value]) => element("li", "other", `${key}: ${value}`)),
  ];
}

function element(tag, className, content) {
  const made = Object.assign(document.createElement(tag), { className });
  made.append(content);
  return made;
}

/** `text`, as a link where `url` is one that a document may lead to. */
function link(url, text) {
  const address = webAddress(url);
  if (!address) return text;
  return Object.assign(document.createElement("a"), { href: address.href, rel: "noopener noreferrer", textContent: text });
}

/** The URL, or null for anything but http and https: a `javascript:` address would run. */
function webAddress(url) {
  const address = URL.canParse(url) ? new URL(url) : null;
  return ["http:", "https:"].includes(address?.protocol) ? address : null;
}

/** Shows the whole of a long text, or its beginning. */
function unfold(item, open, name) {
  const more = find(".more", item);
  find(".text", item).classList.toggle("folded", !open);
  more.ariaExpanded = open;
  more.textContent = open ? "Show less" : "Show more";
  more.ariaLabel = `${more.textContent} of ${name}`;
}

/** Shows the button for more where there is more: that depends on the width of the window. */
function offerMore() {
  for (const text of results.querySelectorAll(".folded")) {
    find(".more", text.closest("li")).hidden = text.scrollHeight <= text.clientHeight;
  }
}

// ---- Documents -------------------------------------------------------------------------------------------------------

/** Deletes the document of an item, or adds it again as it was. */
async function setDeleted(item, document, deleted) {
  const { id, passage } = document;
  const [article, note] = item.children;
  const [drop, undo] = [find(".delete", item), find(".undo", item)];
  find("#failure").hidden = true;
  drop.disabled = undo.disabled = true;
  try {
    if (deleted) {
      const path = `documents/${encodeURIComponent(id)}`;
      // The page may have only a passage of the document, or the beginning of its text.
      const remove = async () => {
        Object.assign(document, await call("GET", path));
        await call("DELETE", path);
      };
      await remove().catch((error) => {
        if (error.status !== 404) throw error; // someone else has deleted it
      });
    } else {
      const { text, metadata, questions } = document;
      await call("POST", "documents", { documents: [{ id, text, metadata, questions, split: Boolean(passage) }] });
    }
    await lookUpServer();
    article.hidden = deleted;
    note.hidden = !deleted;
  } catch (error) {
    fail(error, () => setDeleted(item, document, deleted));
  } finally {
    drop.disabled = undo.disabled = false;
  }
  (note.hidden ? drop : undo).focus({ preventScroll: true });
}

/** Adds the document of the dialog, and asks again: it may be the answer. */
async function add(event) {
  event.preventDefault();
  const dialog = find("#add");
  const [refusal, button] = [find(".refusal", dialog), find("[type=submit]", dialog)];
  const fields = ["text", "title", "id", "questions", "metadata"];
  const [text, title, id, asked, line] = fields.map((name) => event.target.elements[name].value.trim());
  refusal.textContent = "";
  button.disabled = true;
  try {
    const metadata = { ...(title && { title }), ...metadataOf(line) };
    const questions = asked.split("\n").map((each) => each.trim()).filter(Boolean);
    // As in every corpus, the title is encoded too, before the text, which is split into passages where it is long.
    const added = { ...(id && { id }), text, metadata, questions, split: true };
    const { ids, note } = await call("POST", "documents", { documents: [added] });
    await lookUpServer();
    event.target.reset();
    dialog.close();
    await ask();
    const cut = note ? `. ${sentence({ message: note })}` : "";
    say(`${title || id || ids[0]} is added. ${find("#status").textContent}${cut}`);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    refusal.textContent = error.message;
  } finally {
    button.disabled = false;
  }
}

// ---- What the reader does --------------------------------------------------------------------------------------------

form.addEventListener("submit", (event) => {
  event.preventDefault();
  askAndRemember();
});
form.addEventListener("change", (event) => {
  if (event.target !== form.elements.q && form.elements.q.value.trim()) askAndRemember();
});
find("#add form").addEventListener("submit", add);
for (const button of document.querySelectorAll(".open-add")) button.addEventListener("click", () => find("#add").showModal());
for (const button of document.querySelectorAll(".cancel")) button.addEventListener("click", () => button.closest("dialog").close());
addEventListener("popstate", askFromAddress);
addEventListener("resize", offerMore);
addEventListener("keydown", (event) => {
  const writing = event.target.closest("input:not([type=radio]), textarea, select, dialog");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || writing) return;
  event.preventDefault();
  form.elements.q.select();
});

if (!location.search) form.elements.q.focus();
askFromAddress();
