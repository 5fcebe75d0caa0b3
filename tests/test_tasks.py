"""The embedded model's tasks: what is asked can be answered from the text, and all machines draw the same documents."""

import hashlib
import json
import random
import re

import pytest

from dsmla_bench.evals.embedded import TEXT
from dsmla_bench.evals.embedded.corpus import is_held_out
from dsmla_bench.evals.embedded.curriculum import encoded, tokenizer
from dsmla_bench.evals.lm_eval_tasks import OURS, TaskRecipe, load_tasks
from dsmla_bench.evals.tasks import copy, definitions, needle, prose, recall, variable_tracking
from dsmla_bench.evals.tasks.text import (
    Part,
    documents,
    held_out_definitions,
    held_out_prose,
    keys,
    phrases,
    prompt_and_answer,
    symbols,
    values,
)

DOCUMENTS = {
    "dsmla_copy": "da78687529a69964",
    "dsmla_definitions": "608a5f3192f41b06",
    "dsmla_needle": "56b32add27095689",
    "dsmla_prose": "596da83d13b930f9",
    "dsmla_recall": "b126f1f2bbe9b43b",
    "dsmla_variable_tracking": "ec248f62bca247d4",
}
"""SHA-256 of every task's documents, its first 16 digits."""
NEEDLE = re.compile(r"The code of \w+ \w+ is \w+ \w+ \w+ \w+\.")


@pytest.fixture(scope="module")
def tasks():
    return load_tasks([str(OURS)], TaskRecipe())


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_documents_are_the_same_everywhere(tasks, name):
    drawn = [json.dumps(document, sort_keys=True) for document in tasks[name].eval_docs]
    assert hashlib.sha256("\n".join(drawn).encode()).hexdigest()[:16] == DOCUMENTS[name]


def test_every_task_is_pinned_above(tasks):
    assert set(tasks) == set(DOCUMENTS)


def test_a_document_depends_on_its_stratum_and_index_alone():
    few = documents("recall", 1, [[2, 8, 1, 9]], recall.document)
    assert documents("recall", 1, [[3, 4, 2, 3], [5, 8, 1, 9]], recall.document)[1:4:2] == few
    assert documents("recall", 2, [[2, 8, 1, 9]], recall.document) != few


def test_strata_take_turns_so_that_a_limit_keeps_all_of_them():
    drawn = documents("recall", 1, [[2, 8, 1, 9], [3, 16, 2, 5]], recall.document)
    assert [document["pairs"] for document in drawn] == [8, 16, 8, 16, 16]


def test_recall_asks_for_the_value_of_a_key_that_the_list_holds_once(tasks):
    for document in tasks["dsmla_recall"].eval_docs:
        listed, asked = document["prompt"].removeprefix("pairs:").split("\nask:")
        width = document["key_symbols"] + 1
        words = listed.split()
        pairs = {tuple(words[at : at + width - 1]): words[at + width - 1] for at in range(0, len(words), width)}
        assert len(pairs) == document["pairs"]
        assert len({word for key in pairs for word in key}) <= document["alphabet"]
        assert pairs[tuple(asked.split())] == document["answer"].strip()
        assert sorted(set(document["choices"])) == sorted(document["choices"])
        assert document["answer"] in document["choices"]


def test_phrases_are_different_and_made_of_so_many_words():
    drawn = phrases(random.Random(0), symbols(), alphabet=3, count=27, length=3)
    assert len(set(drawn)) == 27
    assert len({word for phrase in drawn for word in phrase.split()}) == 3
    with pytest.raises(ValueError, match="28 different phrases of 3 out of 3 words cannot be made"):
        phrases(random.Random(0), symbols(), alphabet=3, count=28, length=3)


def test_halves_of_two_symbol_keys_are_shared_in_training():
    drawn = [key.split() for key in recall.two_symbol_keys(random.Random(0), 100)]
    assert len({tuple(key) for key in drawn}) == 100
    assert len({first for first, _ in drawn}) < 20
    assert len({second for _, second in drawn}) < 20


def test_variable_tracking_follows_links_to_the_end(tasks):
    for document in tasks["dsmla_variable_tracking"].eval_docs:
        listed, asked = document["prompt"].removeprefix("links:").split("\nfrom ")
        entries = [link.split() for link in listed.strip(" ;").split(";")]
        links = dict(entry[-2:] for entry in entries)
        assert sum(len(entry) == 3 for entry in entries) == document["strays"]
        at, followed = asked.removesuffix(":"), []
        while at in links:
            at = links[at]
            followed.append(at)
        assert followed == document["answer"].split()
        assert len(followed) == document["hops"]


def test_copy_asks_for_the_list(tasks):
    for document in tasks["dsmla_copy"].eval_docs:
        assert document["prompt"] == f"copy:{document['answer']}\nagain:"
        assert len(document["answer"].split()) == document["length"]


def test_the_needle_lies_at_its_depth_of_text_that_has_no_other_answer(tasks):
    for document in tasks["dsmla_needle"].eval_docs:
        haystack, question = document["prompt"].rsplit("\n", 1)
        sentence = question + document["answer"]
        assert haystack.count(question) == haystack.count(sentence) == 1
        before, after = (len(NEEDLE.sub("", part).split()) for part in haystack.split(sentence))
        assert before / (before + after) == pytest.approx(document["depth"], abs=0.01)
        assert haystack.count("The code of") == document["needles"]


def test_definitions_ask_for_a_word_of_the_glossary(tasks):
    for document in tasks["dsmla_definitions"].eval_docs:
        *lines, question = document["prompt"].splitlines()
        entries = {word: definition.split() for definition, word in (line.rsplit(":", 1) for line in lines)}
        assert len(entries) == document["entries"]
        asked, whole = question.removesuffix(":").split(), entries[document["answer"]]
        assert len(asked) == max(1, round(len(whole) * (100 - document["left_out"]) / 100))
        rest = iter(whole)
        assert all(word in rest for word in asked)
        assert document["answer"] in document["choices"]
        assert len(set(document["choices"])) == definitions.CHOICES


def test_prose_texts_do_not_overlap(tasks):
    texts = [document["text"] for document in tasks["dsmla_prose"].eval_docs]
    lines = [line for text in texts for line in text.splitlines()]
    assert len(set(lines)) == len(lines)
    assert set(lines) <= set(held_out_prose())


def test_symbols_are_single_tokens_and_keys_are_no_values():
    for word in symbols():
        assert len(tokenizer().encode(f" {word}").ids) == 1
    assert not set(keys()) & set(values())


def test_definitions_in_the_package_were_held_out_of_training():
    assert held_out_definitions()
    assert all(is_held_out(definition) for _, definition in held_out_definitions())
    assert all(word in symbols() for word, _ in held_out_definitions())


def test_texts_shipped_are_small():
    assert sum(file.stat().st_size for file in TEXT.iterdir()) < 300_000


@pytest.mark.parametrize(
    "parts",
    [
        recall.layout([(" river stone", " lamp"), (" stone river", " cloud")], [(" stone river", " cloud")]),
        variable_tracking.draw(random.Random(0), 4, 3, 2),
        copy.draw(random.Random(0), 9, 5),
        needle.draw(random.Random(0), held_out_prose(), 300, 2, 2),
        definitions.draw(random.Random(0), held_out_definitions(), 5, 3),
        prose.draw(random.Random(0), held_out_prose(), 100),
    ],
    ids=["recall", "variable_tracking", "copy", "needle", "definitions", "prose"],
)
def test_training_scores_exactly_the_answers(parts):
    ((tokens, answers),) = encoded([parts])
    assert tokenizer().decode(tokens[answers]) == "".join(part.text for part in parts if part.answer)
    context = "".join(part.text for part in parts[:-1])
    whole = tokenizer().encode(context + parts[-1].text).ids
    assert whole[: len(tokenizer().encode(context).ids)] == tokenizer().encode(context).ids


def test_a_document_has_its_answer_at_the_end():
    with pytest.raises(ValueError, match="one answer, at its end"):
        prompt_and_answer([Part("a", answer=True), Part("b")])
