import unicodedata

import pytest

from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.words import WordTokenizer

# Language, a text, and its words.
WORDS = [
    ("english", "The cats' 10,000 naïve-looking don't a C", ["the", "cat", "10", "000", "naïv", "look", "don"]),
    ("english", "C++, C# and F# in .NET: 3.14 or 2.0, v1.2.3", "c++ c# and f# in .net 3.14 or 2.0 v1.2.3".split()),
    ("english", "issue#12 a+b example.net", ["issu", "12", "exampl", "net"]),
    ("english", "型番はＡＢＣ１２３ です", ["型番", "番は", "abc123", "です"]),
    ("english", "con\ufb01g pass\u00adword", ["config", "password"]),
    ("english", "Java™ Cafe\u0301", ["java", "café"]),
    ("german", "Häuser STRASSE Straße 3,14", ["haus", "strass", "strass", "3,14"]),
    ("chinese", "重置密码", ["重置", "置密", "密码"]),
    ("japanese", "猫 パスワード", ["猫", "パス", "スワ", "ワー", "ード"]),
    ("korean", "비밀번호를", ["비밀", "밀번", "번호", "호를"]),
    ("thai", "ที่นี่", ["ที่นี่"]),
    ("hindi", "पासवर्ड", ["पासवर्ड"]),
    ("hebrew", "שָׁלוֹם", ["שלום"]),
    ("arabic", "كـــتاب كِتَاب أحمد احمد ٣٫١٤", ["كتاب", "كتاب", "احمد", "احمد", "3.14"]),
    ("turkish", "IŞIK ışıklar İSTANBUL Istanbul PIN", ["işik", "işik", "istanbul", "istanbul", "pin"]),
    ("turkish", "API api", ["ap", "api", "api"]),  # the stem of "apı" differs
    ("english", "IŞIK Işık ışık İzmir TATLI tatlı", ["işik", "işik", "işik", "izmir", "tat", "tat"]),
    ("none", "KAPI kapı", ["kapi", "kapi"]),
    ("french", "L'eau d’été", ["eau", "été"]),
    ("vietnamese", "Mật khẩu", ["mật", "khẩu"]),
    ("russian", "пароли settings", ["парол", "set"]),
    ("none", "cats", ["cats"]),
]


@pytest.mark.parametrize(("language", "text", "words"), WORDS)
def test_texts_are_split_by_language(language, text, words):
    assert WordTokenizer(language)([text]) == [words]
    assert WordTokenizer(language)([unicodedata.normalize("NFD", text)]) == [words]


def test_parts_of_words_find_documents_and_do_not_change_their_length():
    index = BM25.of_texts(["it costs $2.50 in Notepad++", "some 50 days of Python 3.14"], "english")
    scores = index.scores(["50", "notepad", "3.14", "14"]) > 0
    assert scores.tolist() == [[True, True], [True, False], [False, True], [False, True]]
    texts = ["version 3.14 and 2.0 of C++", "the academy 奎章閣學士院 of 24.10", "cats"]
    assert [document.length for document in WordTokenizer().documents(texts)] == [4, 6, 1]
    assert [document.length for document in WordTokenizer("german").documents(["Version 2.0"])] == [2]
    assert WordTokenizer("greek")(["ΚΩΔΙΚΟΣ"]) == WordTokenizer("greek")(["κωδικος"])
