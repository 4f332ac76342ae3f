"""MRQA's lines in small."""

HEADER = {"header": {"dataset": "HotpotQA", "split": "train"}}


def asked(name: str, text: str, context: str, *answers: tuple[str, ...], **more) -> dict:
    """A question with detected answers, each a text and the words of the context that span it, first to last."""
    detected = []
    for answer, *places in answers:
        spans = [[context.index(place), context.index(place) + len(answer) - 1] for place in places or [answer]]
        detected.append({"text": answer, "char_spans": spans, "token_spans": [[0, 0] for _ in spans]})
    return {"qid": name, "question": text, "question_tokens": [], "detected_answers": detected, "answers": [], **more}


def line(context: str, *questions: dict) -> dict:
    return {"context": context, "context_tokens": [], "qas": list(questions)}
