"""Encodes documents with a pretrained model and searches them exactly.

python examples/encode_and_search.py
"""

import endx_jax
from endx_jax.ranking.search import top_k

DOCUMENTS = [
    "numpy.reshape: Gives a new shape to an array without changing its data.",
    "os.path.join: Joins one or more path segments.",
    "smtplib.SMTP.sendmail: Sends an e-mail.",
]
QUESTIONS = ["How do I send an email?", "How do I give an array a new shape?"]

model = endx_jax.load("all-MiniLM-L6-v2")
found = top_k(model.encode_query(QUESTIONS), model.encode_document(DOCUMENTS), k=1)
for question, rows, scores in zip(QUESTIONS, found.rows, found.scores, strict=True):
    print(f"{question}\n  {scores[0]:.3f}  {DOCUMENTS[rows[0]]}")
