"""Encodes a corpus into an index, searches it by text, and changes it.

python examples/search_an_index.py
"""

import json
import pathlib
import tempfile

import endx_jax
from endx_jax.data.sets.documents import Document
from endx_jax.index.corpus_encoding import encode_corpus

DOCUMENTS = [
    {"_id": "reshape", "text": "numpy.reshape: Gives a new shape to an array without changing its data.", "year": 2006},
    {"_id": "join", "text": "os.path.join: Joins one or more path segments.", "year": 1994},
    {"_id": "mail", "text": "smtplib.SMTP.sendmail: Sends an e-mail.", "year": 1998},
]

with tempfile.TemporaryDirectory() as folder:
    corpus = pathlib.Path(folder) / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, DOCUMENTS)))
    path = encode_corpus("all-MiniLM-L6-v2", corpus, pathlib.Path(folder) / "index.sqlite")
    index = endx_jax.open_index(path)  # the index names its model
    for found in index.search("How do I send an email?", k=2, where={"year": {"lt": 2000}}):
        print(f"{found.rank}  {found.document.id}  {found.document.text}")
    index.add([Document("imap", "imaplib.IMAP4.fetch: Fetches e-mails of a mailbox.")])
    index.delete(["mail"])
    print(index.search("How do I read my email?", k=1)[0].document.id, index.get("mail"))
