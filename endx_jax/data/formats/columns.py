"""Columns of tables: the names by which they are found, and cells that hold lists as text or messages of a chat."""

import ast
import contextlib
import io
import itertools
import json
import re
import tokenize
import warnings
from collections.abc import Iterable

from endx_jax import json_files
from endx_jax.errors import EndxError

QUESTION, ANSWER, TEXT, TITLE, ID = "question", "answer", "text", "title", "id"
# Columns of a file of questions to search for: their text and their ids.
SEARCHED, QUESTION_ID = "text of a question", "id of a question"
# Columns that hold whole chats, in the formats of OpenAI and ShareGPT, and the roles of their messages.
CHATS = ("messages", "conversations")
_REPLYING = ("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot")
ROLES = {"user": "user", "human": "user"} | dict.fromkeys(_REPLYING, "assistant")
# Names of columns, ours and those of other tools, in groups that are tried in order if none is given. Columns of
# questions and answers may hold lists of texts, as in files of chatbot intents.
NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    QUESTION: (
        (QUESTION,),
        ("query", "anchor", "user_input"),
        ("questions", "patterns"),
        (
            "q", "prompt", "instruction", "front", "frage", "pregunta", "pergunta", "domanda", "vraag", "pytanie",
            "otázka", "întrebare", "intrebare", "soru", "вопрос", "питання", "câu hỏi", "pertanyaan", "سؤال", "السؤال",
            "שאלה", "प्रश्न", "คำถาม", "问题", "問題", "質問", "질문",
        ),
        ("input", CHATS[0]),
    ),
    TEXT: ((TEXT,), ("contents", "content", "page_content", "body"), (ANSWER,)),
    TITLE: ((TITLE,),),
    # A passage's own id comes before that of its document.
    ID: tuple(
        (name,)
        for name in (
            "_id", "id", "pid", "passage_id", "psg_id", "chunk_id", "docno", "docid", "doc_id", "document_id",
            "corpus-id", "corpus_id", "uuid",
        )
    ),
    QUESTION_ID: tuple((name,) for name in ("_id", "id", "qid", "query_id", "query-id", "question_id")),
    SEARCHED: tuple((name,) for name in (QUESTION, "query", "anchor", "user_input", TEXT)),
    ANSWER: (
        # Beside one of the others, as in results of ragas, `answer` is a model's: a row with two of them is refused.
        (
            ANSWER, "ground_truth", "ground_truths", "reference_answer", "expected_output", "expected_answer",
            "resposta_esperada", "respuesta_esperada",
        ),
        ("positive", "passage", "document", "positive_messages"),
        ("reference",),
        ("response",),  # after those above, since in evaluation sets it may be a wrong answer
        ("answers", "responses"),
        (
            "a", "completion", "output", "back", "antwort", "respuesta", "resposta", "risposta", "réponse", "reponse",
            "antwoord", "odpowiedź", "odpověď", "răspuns", "raspuns", "cevap", "yanıt", "ответ", "відповідь",
            "câu trả lời", "trả lời", "jawaban", "پاسخ", "جواب", "الجواب", "תשובה", "उत्तर", "คำตอบ", "答案", "回答",
            "答え", "답변", "답",
        ),
    ),
}  # fmt: skip
# Columns of hard negatives, as in sentence-transformers: `negative`, `negative_1`, ...; and those of other tools.
NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_\d+)?|negative_messages|rejected_response", re.IGNORECASE)
# Columns that say if the answer is right, and their values for right and wrong ones.
LABELS = ("label", "score", "similarity")
# Further names of such columns, which are used if their values are numbers, truth values, or yes and no.
_JUDGED = ("correct", "duplicate", "match", "relevance", "relevant", "similar")
FLAGS = (*_JUDGED, *(f"is_{name}" for name in _JUDGED), "is_answer", "is_positive", "labels", "scores", "target")
JUDGING = frozenset((*LABELS, *FLAGS))
LABEL = re.compile(r"(?P<right>1(\.0*)?|true|yes)|0(\.0*)?|false|no", re.IGNORECASE)
# Answers that are no texts: numbers, letters of choices, ids, addresses, names of files, and objects written as text.
# As many answers as `FEWEST` with nothing else are refused, unless they are all numbers.
NO_TEXT = re.compile(
    r"(?P<number>\W*\d[\d\W]*([A-Za-z]{1,2}\W*)?)"
    r"|(?P<letter>\W*([A-H]{2,8}|[A-Za-z])(\W+[A-Za-z])*\W*)"
    r"|(?P<id>(?=[!-~]*([\d/]|\.[a-z]{2,4}$))[!-~]{5,})"
    r"|(?P<object>[\[(]?\{['\"].*\}[\])]?|(\w+\.)?array\(.*\))",
    re.DOTALL,
)
FEWEST = 10
LONGEST_NAME = 40  # a longer name of a column is a text: the file has no header
# List of strings as Python or NumPy prints it; it may lack commas or hold missing values.
_LIST = re.compile(r"""\[\s*('[^']*'|"[^"]*")([\s,]+('[^']*'|"[^"]*"|nan|None|\.\.\.))*,?\s*\]""")
LONGEST_LIST = 100_000  # maximum characters of a list in a text, since parsing needs up to a hundred times its memory


def called(name: str, columns: Iterable[str]) -> list[str]:
    """Returns the columns with this name or, if there are none, those that differ in case or `_` at their ends."""
    columns = list(columns)
    return [other for other in columns if other == name] or [
        other for other in columns if other.casefold().strip("_ ") == name.casefold().strip("_ ")
    ]


def find(side: str, row: Iterable[str], name: str | None = None) -> list[str]:
    """Returns the columns with a name, or with the first group of `NAMES[side]` that has any; none with an object.

    For a row with hard negatives the first two groups of answers are one, since `positive` may hold its right passages.
    """
    plain = [column for column in row if not (isinstance(row, dict) and isinstance(row[column], dict))]
    groups = NAMES[side] if name is None else ((name,),)
    if side == ANSWER and name is None and any(map(NEGATIVE.fullmatch, plain)):
        groups = (groups[0] + groups[1], *groups[2:])
    found = ([column for other in group for column in called(other, plain)] for group in groups)
    return next(filter(None, found), [])


def choose(side: str, row: Iterable[str], where: str, name: str | None = None) -> str:
    """Returns the column of a row or header for a side of `NAMES`, with `name` if it is given; see `find`.

    Raises:
      EndxError: there is none, there are several, or it holds an object.
    """
    columns = [*row]
    matches = find(side, row, name)
    if len(matches) == 1:
        return matches[0]
    # Documents of a run are read by its `data.answer_column`.
    option = flags(side) if side in (QUESTION, ANSWER) else f"{side}_column"
    option += ", or text_column of a corpus" * (side == ANSWER)
    if len(set(matches)) > 1:
        raise EndxError(f"{where}: the {side} could be {' or '.join(map(repr, matches))}; name it with {option}")
    texts = {TEXT: "text_column (data.answer_column of a run), and the questions of pairs with question_column"}
    naming = f"name yours with {texts.get(side, option if side in (ID, TITLE) else flags(QUESTION, ANSWER))}"
    if not matches and (objects := find(side, columns, name)):
        raise EndxError(f"{where}: column {objects[0]!r} holds an object: write its text in a column, or {naming}")
    if any(called(chat, columns) for chat in CHATS):
        naming += "; chats need a text with the role user before one with the role assistant"
    if not matches and any(not 0 < len(column) <= LONGEST_NAME for column in columns):
        naming += "; if this line is a row, add a line of names above it, such as question and answer"
    count, names = "more than one" if matches else "no", json_files.format_names(columns)
    wanted = matches[0] if matches else NAMES[side][0][0] if name is None else name
    raise EndxError(f"{where}: {count} column {wanted[:100]!r} among {names}; {naming}")


def flags(*sides: str) -> str:
    """Returns the flags that name the columns of these sides, and the settings of training that do so."""
    forms = "--{}-column", "--config.data.{}_column"
    return "{} (in training {})".format(*(" and ".join(map(form.format, sides)) for form in forms))


def readable(cell: object) -> object:
    """Returns the list that a text describes, or the text of a chat with one message; other cells unchanged."""
    if isinstance(cell, str):
        listed = strings(cell) if cell.lstrip()[:1] == "[" else None
        return cell if listed is None else listed
    said = _said(cell)
    return [*map(_said, cell)] if said is cell and isinstance(cell, list) else said


def strings(text: str) -> list[str] | None:
    """Parses a list of strings in JSON or Python's notation, without executing any of it; None for other texts.

    Also None for strings without commas between them: NumPy prints lists so, and Python would join the strings.
    """
    text = text.strip()
    if len(text) > LONGEST_LIST:
        return None
    for parse in (json.loads, _literal):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            parsed = parse(text)
            if isinstance(parsed, list) and all(isinstance(item, str) for item in parsed):
                return parsed
    return None


def check_list(cell: object, where: str) -> None:
    """Raises EndxError for a text that is a list of strings which `strings` can't parse."""
    if isinstance(cell, str) and _LIST.fullmatch(cell.strip()):
        reason = f"has over {LONGEST_LIST:,} characters" if len(cell) > LONGEST_LIST else "is no JSON"
        raise EndxError(f'{where} holds a list as text that {reason}: write a list such as ["one", "two"]')


def _literal(text: str) -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unknown escape sequences
        parsed = ast.literal_eval(text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    if len(parsed) != sum(token.type == tokenize.STRING for token in tokens):
        raise ValueError("strings without a comma between them")
    return parsed


def messages(chat: object) -> list[tuple[str, str]]:
    """Returns (role, text) of the messages of user and assistant in a chat; none if a message is not text."""
    said = []
    for item in chat if isinstance(chat, list) else [chat]:
        fields = item if isinstance(item, dict) else {}
        role, text = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
        if isinstance(text, list) and all(
            isinstance(part, dict) and isinstance(part.get("text"), str) for part in text
        ):
            text = "\n".join(part["text"] for part in text)
        if not isinstance(role, str) or not isinstance(text, str | None):
            return []
        if text and (known := ROLES.get(role.casefold())):  # calls of tools have no text
            said.append((known, text))
    return said


def _said(chat: object) -> object:
    said = messages(chat)
    return said[0][1] if len(said) == 1 else chat


def turns(row: dict, question: str, answer: str) -> list[dict]:
    """Returns the row with question and answer in place of its chat, for each reply to a message of the user."""
    name = next((name for chat in CHATS for name in called(chat, row)), "")
    rest, said = {key: value for key, value in row.items() if key != name}, messages(row.get(name))
    return [
        {**rest, question: asked, answer: reply}
        for (first, asked), (second, reply) in itertools.pairwise(said)
        if (first, second) == ("user", "assistant")
    ]
