from small_squad import write_squad


def test_a_stranger_sees_counts_and_places_and_nothing_else(tmp_path, endx):
    source, data = write_squad(tmp_path / "squad"), tmp_path / "data"
    printed = endx("prepare", "reqa/squad", f"--source={source}", f"--data-dir={data}")
    assert printed.err == ""
    where, _, head, train, validation, *notes, _, advice = printed.out.splitlines()
    assert where == f"reqa/squad is in {data}/reqa/squad/1.2.0"
    assert head.split() == ["split", "questions", "answers", "candidates", "rows", "pairs"]
    assert train.split() == ["train", "4", "3", "6", "6", "5"]
    assert validation.split() == ["validation", "2", "2", "3", "2", "2"]
    assert notes[0].startswith("train: not from the published files; sha256 of the text ")
    excluded = "1 answer starting between sentences, and 1 question without other answers"
    assert notes[1] == f"validation: excluded {excluded}"
    assert f"TFDS_DATA_DIR={data}" in advice
    assert "--config.data.path=reqa/squad" in advice


def test_the_pairs_of_a_run_are_tokenized(tiny_bert, tmp_path, endx):
    for name, asked in (("train", "where is"), ("test", "who is")):
        rows = "".join(f"{asked} cat {n},cat {n}\n" for n in range(4))
        (tmp_path / f"{name}.csv").write_text(f"question,answer\n{rows}")
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    given = {"model.pretrained": tiny_bert, "data.path": train, "data.test_path": test}
    given |= {"data.question_length": 16, "data.answer_length": 16}
    arguments = ["prepare", "--config=minilm", *(f"--config.{name}={value}" for name, value in given.items())]
    assert "data.tokens is not set: name the folder" in endx(*arguments, status=2).err
    said = endx(*arguments, f"--config.data.tokens={tmp_path / 'tokens'}").out
    assert said.endswith("tokens holds 4 pairs of 4 questions, 4 answers\n")
