"""The tokenizer: trained alike each time, cut and filled up to one length."""

from switch_ema.zoo.data.tokens import encode, read_tokenizer, train_tokenizer

TEXTS = ["The cat sat on the mat.", "A dog, a cat and a rat!", "Élan of the rats"] * 3


def test_training_is_deterministic():
    one, *others = (train_tokenizer(TEXTS, 70).get_vocab() for _ in range(4))
    assert all(other == one for other in others)
    assert one["[PAD]"] == 0
    assert len(one) <= 70


def test_rows():
    tokenizer = train_tokenizer(TEXTS, 100)
    rows = encode(tokenizer, ["the cat", "The CAT sat on the mat."], 6)
    start, end = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    cat = [tokenizer.token_to_id(word) for word in ("the", "cat")]
    assert rows[0].tolist() == [start, *cat, end, 0, 0]
    assert rows[1].tolist()[:3] == [start, *cat]
    assert rows[1, -1] == end
    # A letter that was never seen, and an accent.
    unknown = tokenizer.token_to_id("[UNK]")
    assert encode(tokenizer, ["\N{SNOWMAN}"], 4).tolist() == [[start, unknown, end, 0]]
    elan = encode(tokenizer, ["elan", "Élan"], 12)
    assert elan[0].equal(elan[1])


def test_reads_what_was_saved(tmp_path):
    tokenizer = train_tokenizer(TEXTS, 60)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(str(tmp_path)).get_vocab() == tokenizer.get_vocab()
