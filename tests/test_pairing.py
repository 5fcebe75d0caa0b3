"""What may be compared, and the verdicts on it: pairing by document, recipes key by key, cases from public reports."""

import dataclasses
import math

import numpy as np
import pytest

from dsmla_bench.evals.judging import UNPAIRED, Margins, judge
from dsmla_bench.evals.pairing import REFUSED, differing, pair
from dsmla_bench.evals.scores import Aggregate, DocumentScore, JudgedRow, Recipe, TaskScores

RECIPE = Recipe(
    lm_eval_version="0.4.13",
    task_version="3.0",
    num_fewshot=5,
    limit="all",
    chat_template_sha="none",
    model="a model",
    max_length=4096,
)


def documents_of(values, task="gsm8k", filter="strict-match", metric="exact_match", **fields):
    return tuple(
        DocumentScore(task, filter, metric, number, value, doc_hash=f"d{number}", **fields)
        for number, value in enumerate(values)
    )


def scores_of(format, values, task="gsm8k", recipe=RECIPE, aggregate=None, **fields):
    """A task of one metric, right or wrong unless ``aggregate`` says otherwise."""
    known = [value for value in values if value is not None]
    made = aggregate or Aggregate(
        "strict-match", "exact_match", sum(known) / len(known), None, len(known), "mean", True, True
    )
    return TaskScores(format, task, recipe, (made,), documents_of(values, task, made.filter, made.metric, **fields))


def aggregate_only(format, right, documents, task="humaneval"):
    found = Aggregate("none", "pass@1", right / documents, None, documents, "mean", True, True)
    return TaskScores(format, task, RECIPE, (found,))


def the_row(baseline, other, **options):
    (row,) = judge([baseline], [other], **options)
    return row


def bf16_and_nvfp4():
    """200 documents: both right 150, only bf16 14, only nvfp4 3, both wrong 33."""
    before, after = [1.0] * 164 + [0.0] * 36, [1.0] * 150 + [0.0] * 14 + [1.0] * 3 + [0.0] * 33
    return scores_of("bf16", before), scores_of("nvfp4_ds_mla", after)


def test_paired_scores_decide_where_unpaired_ones_could_not():
    """Case C5."""
    before, after = bf16_and_nvfp4()
    row = the_row(before, after)
    assert (row.baseline_score, row.score, row.delta) == pytest.approx((0.820, 0.765, -0.055))
    assert (row.lost, row.gained, row.paired, row.documents) == (14, 3, True, 200)
    assert row.p == pytest.approx(2 * 834 / 2**17)
    assert row.p == pytest.approx(0.012726, abs=1e-6)
    assert row.delta_hi < 0
    assert row.verdict == "worse"
    assert row.resolution == pytest.approx(2.80 * math.sqrt(17) / 200, rel=1e-3)
    unpaired = the_row(before, dataclasses.replace(after, documents=()))
    assert unpaired.p == pytest.approx(0.175, abs=1e-3)
    assert (unpaired.paired, unpaired.verdict) == (False, "not significant")
    assert UNPAIRED in unpaired.notes


@pytest.mark.parametrize(
    ("task", "before", "after", "documents", "z", "p"),
    [("humaneval", 139, 148, 164, 1.503, 0.133), ("mbpp", 92, 94, 100, 0.552, 0.581)],
)
def test_four_bits_do_not_beat_eight_by_aggregates(task, before, after, documents, z, p):
    """Case C7."""
    row = the_row(aggregate_only("fp8", before, documents, task), aggregate_only("nvfp4", after, documents, task))
    assert (row.verdict, row.paired) == ("not significant", False)
    assert row.p == pytest.approx(p, abs=5e-4)
    assert row.delta / ((row.delta_hi - row.delta) / 1.959964) == pytest.approx(z, abs=1e-3)


@pytest.mark.parametrize(
    ("key", "other"), [("chat_template_sha", "5a1d"), ("lm_eval_version", "0.4.2"), ("num_fewshot", 0)]
)
def test_scores_of_unlike_recipes_are_not_compared(key, other):
    """Case C8."""
    before, after = bf16_and_nvfp4()
    changed = dataclasses.replace(after, recipe=dataclasses.replace(after.recipe, **{key: other}))
    row = the_row(before, changed)
    assert row.verdict == "not comparable"
    assert row.notes[0] == f"{key} differs: {getattr(RECIPE, key)} and {other}"
    assert (row.delta, row.p, row.paired) == (None, None, False)
    assert (row.baseline_score, row.score) == pytest.approx((0.820, 0.765))


def test_every_key_of_a_recipe_is_refused_or_noted():
    """A key that nobody looks at would let unlike scores be compared."""
    for key in Recipe.__dataclass_fields__:
        before, after = Recipe(**{key: 1}), Recipe(**{key: 2})
        row = the_row(scores_of("a", [1.0, 0.0], recipe=before), scores_of("b", [1.0, 0.0], recipe=after))
        assert any(f"{key} differs" in note for note in row.notes)
        assert (row.verdict == "not comparable") == (key in REFUSED)
        assert differing(before, Recipe()) == []


def test_filters_stay_apart():
    """Case C8: rows of their own, neither averaged nor the first one only."""
    sides = []
    for format, strict, flexible in (("bf16", [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]), ("fp8", [0.0] * 3, [1.0] * 3)):
        by_filter = {"strict-match": strict, "flexible-extract": flexible}
        sides.append(
            TaskScores(
                format,
                "gsm8k",
                RECIPE,
                tuple(
                    Aggregate(filter, "exact_match", sum(values) / 3, None, 3, "mean", True, True)
                    for filter, values in by_filter.items()
                ),
                sum((documents_of(values, filter=filter) for filter, values in by_filter.items()), ()),
            )
        )
    rows = judge([sides[0]], [sides[1]])
    assert [(row.filter, row.baseline_score, row.score) for row in rows] == [
        ("strict-match", pytest.approx(1 / 3), 0.0),
        ("flexible-extract", pytest.approx(2 / 3), 1.0),
    ]


def test_documents_are_paired_by_number_whatever_their_order():
    before = documents_of([1.0, 0.0, 1.0, 0.0])
    ((_, pairs),) = pair(
        before, tuple(reversed(documents_of([0.0, 0.0, 1.0, None]))) + documents_of([1.0] * 6)[4:]
    ).items()
    assert (
        [document.doc_id for document in pairs.baseline] == [document.doc_id for document in pairs.other] == [0, 1, 2]
    )
    assert [document.value for document in pairs.other] == [0.0, 0.0, 1.0]
    assert pairs.left_out == 3  # number 3 has no value, 4 and 5 are of one side only


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"doc_hash": "another"}, "another document (doc_hash differs)"),
        ({"prompt_hash": "another"}, "another prompt (prompt_hash differs)"),
        ({"target_hash": "another"}, "another target (target_hash differs)"),
        ({"weight": 2.0}, "another weight"),
        ({"cluster": "b"}, "another cluster"),
    ],
)
def test_documents_that_are_not_the_same_are_not_paired(change, said):
    before = scores_of("a", [1.0, 0.0, 1.0], prompt_hash="p", target_hash="t")
    documents = list(before.documents)
    documents[1] = dataclasses.replace(documents[1], **change)
    row = the_row(before, dataclasses.replace(before, format="b", documents=tuple(documents)))
    assert row.verdict == "not comparable"
    assert "document 1" in row.notes[0]
    assert said in row.notes[0]


def test_a_document_that_occurs_twice_is_refused():
    before = scores_of("a", [1.0, 0.0])
    doubled = dataclasses.replace(before, format="b", documents=before.documents + before.documents[:1])
    assert "occur twice" in the_row(before, doubled).notes[0]


def test_what_one_side_lacks_is_said_and_costs_no_other_row():
    before = [scores_of("a", [1.0, 0.0]), scores_of("a", [1.0, 1.0], task="mmlu")]
    rows = judge(before, [scores_of("b", [1.0, 0.0])])
    assert [(row.task, row.verdict == "not comparable") for row in rows] == [("gsm8k", False), ("mmlu", True)]
    assert rows[1].notes == ("only a has this task and metric",)
    assert (rows[1].baseline_score, rows[1].score) == (1.0, None)


def test_the_same_scores_are_equivalent_once_there_are_enough_documents():
    few, many = (the_row(scores_of("a", [1.0] * count), scores_of("b", [1.0] * count)) for count in (100, 400))
    assert (few.verdict, many.verdict) == ("inconclusive", "equivalent")
    assert few.needed > 100
    assert many.needed is None


def bits(format, shift, documents=80, **options):
    """Bits per byte of documents of 100 to 500 bytes, more by ``shift`` on average."""
    generator = np.random.default_rng(0)
    weights = generator.integers(100, 500, documents)
    rates = 2 + 0.3 * generator.normal(size=documents) + shift * (1 + generator.normal(size=documents) / 4)
    aggregate = Aggregate("none", "bits_per_byte", 2.0, None, documents, "mean", False, False)
    scored = tuple(
        DocumentScore("prose", "none", "bits_per_byte", number, float(rate * weight), float(weight), **options)
        for number, (rate, weight) in enumerate(zip(rates, weights, strict=True))
    )
    return TaskScores(format, "prose", RECIPE, (aggregate,), scored)


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "equivalent"), (0.005, "equivalent"), (0.05, "worse"), (-0.05, "non-inferior")]
)
def test_more_bits_per_byte_are_a_loss(shift, verdict):
    """A margin of half a percent of about 2 bits: 0.01."""
    row = the_row(bits("bf16", 0.0), bits("fp8", shift))
    assert row.verdict == verdict
    assert row.delta == pytest.approx(shift, rel=0.2, abs=1e-9)
    assert row.margin == pytest.approx(0.005 * row.baseline_score)
    assert (row.lost, row.gained) == (None, None)


def test_questions_of_one_context_are_not_independent():
    """200 questions in 10 contexts that fall together: what looks worse by questions is not by contexts."""
    before = [1.0] * 200
    after = [0.0] * 20 + [1.0] * 180
    alone = the_row(scores_of("a", before), scores_of("b", after))
    clusters = [str(number // 20) for number in range(200)]
    sides = []
    for format, values in (("a", before), ("b", after)):
        scores = scores_of(format, values)
        documents = [
            dataclasses.replace(document, cluster=name)
            for document, name in zip(scores.documents, clusters, strict=True)
        ]
        sides.append(dataclasses.replace(scores, documents=tuple(documents)))
    clustered = the_row(*sides)
    assert (alone.verdict, clustered.verdict) == ("worse", "inconclusive")
    assert (alone.clusters, clustered.clusters, clustered.documents) == (200, 10, 200)
    assert clustered.p == 1.0
    assert clustered.lost == 20


def test_answers_that_change_are_counted_right_or_wrong():
    before, after = (scores_of(format, [0.0, 0.0, 1.0]) for format in ("a", "b"))
    sides = [
        dataclasses.replace(
            scores,
            documents=tuple(
                dataclasses.replace(document, answer=answer)
                for document, answer in zip(scores.documents, answers, strict=True)
            ),
        )
        for scores, answers in ((before, "xyz"), (after, "xwz"))
    ]
    assert the_row(*sides).answers_changed == 1
    assert the_row(before, after).answers_changed is None


def test_holm_counts_all_rows_of_a_format():
    """A loss with p = 0.0127 is one among ten tasks: not significant, and said so."""
    before, after = bf16_and_nvfp4()
    others = [f"task {number}" for number in range(9)]
    rows = judge(
        [before, *(scores_of("bf16", [1.0, 0.0] * 50, task=task) for task in others)],
        [after, *(scores_of("nvfp4_ds_mla", [1.0, 0.0] * 50, task=task) for task in others)],
    )
    assert rows[0].p_holm == pytest.approx(10 * rows[0].p)
    assert rows[0].verdict == "inconclusive"
    assert "not significant among all rows" in rows[0].notes[0]


def test_a_metric_without_a_direction_gets_no_verdict():
    aggregate = Aggregate("none", "score", 0.5, None, 50, "mean", None, True)
    before, after = (scores_of(name, [1.0, 0.0] * 25, aggregate=aggregate) for name in ("a", "b"))
    row = the_row(before, after)
    assert row.verdict == "inconclusive"
    assert "nobody says" in row.notes[0]


def test_perplexities_compare_as_logarithms():
    aggregate = Aggregate("none", "word_perplexity", 8.0, None, 40, "exp_mean", False, False)
    before, after = (scores_of(name, [value] * 40, aggregate=aggregate) for name, value in (("a", 2.0), ("b", 2.1)))
    row = the_row(before, after)
    assert (row.baseline_score, row.score) == pytest.approx((math.exp(2.0), math.exp(2.1)))
    assert row.delta == pytest.approx(0.1)
    assert row.margin == pytest.approx(math.log(1.005))
    assert row.verdict == "worse"


def test_without_documents_and_standard_errors_there_is_a_delta_and_no_conclusion():
    aggregate = Aggregate("none", "bits_per_byte", 2.0, None, 40, "mean", False, False)
    before, after = (
        TaskScores(name, "prose", RECIPE, (dataclasses.replace(aggregate, score=score),))
        for name, score in (("a", 2.0), ("b", 2.5))
    )
    row = the_row(before, after)
    assert (row.delta, row.p, row.delta_lo, row.verdict) == (0.5, None, None, "inconclusive")


def test_scores_that_leave_no_variance_to_judge_by_are_no_proof():
    """10 of 10 twice: a standard error of 0 would make any difference significant, and none equivalent."""
    row = the_row(aggregate_only("a", 10, 10), aggregate_only("b", 10, 10))
    assert (row.delta, row.p, row.delta_lo, row.verdict) == (0.0, None, None, "inconclusive")


def test_margins_and_sides_are_checked():
    before = scores_of("a", [1.0])
    with pytest.raises(ValueError, match="between 0 and 100"):
        Margins(points=0)
    with pytest.raises(ValueError, match="a task twice"):
        judge([before, before], [before])
    with pytest.raises(ValueError, match="one format, found a, b"):
        judge([before], [before, scores_of("b", [1.0])])
    with pytest.raises(ValueError, match="no scores"):
        judge([], [before])


def test_scores_go_to_json_and_back():
    scores = dataclasses.replace(bits("fp8", 0.0, documents=3, answer="é"), notes=("a note",))
    assert TaskScores.from_json(scores.to_json()) == scores


@pytest.mark.parametrize(
    ("find", "put", "said"),
    [
        ('"format": "fp8"', '"format": 8', "TaskScores.format must be of type str"),
        ('"doc_id": 0', '"doc_id": 0.5', "DocumentScore.doc_id must be of type int"),
        ('"higher_is_better": false', '"higher_is_better": 0', "higher_is_better must be of type bool"),
        ('"weight": ', '"weight": Infinity, "x": ', "no field 'x'"),
        ('"score": 2.0', '"score": 1e308', "Aggregate.score must be of type float, found 1e+308"),
        ('"notes": []', '"notes": "none"', "notes must be a list"),
        ('"recipe": {', '"recipe": [], "r": {', "no field 'r'"),
        ("{", "[", "not the scores of a task"),
    ],
)
def test_json_that_is_no_score_is_refused_in_one_sentence(find, put, said):
    text = bits("fp8", 0.0, documents=2).to_json()
    assert find in text
    with pytest.raises(ValueError, match="not the scores of a task") as error:
        TaskScores.from_json(text.replace(find, put, 1))
    assert said in str(error.value)


def test_words_that_are_none_are_refused():
    with pytest.raises(ValueError, match="is none of"):
        JudgedRow("t", "f", "m", "a", "b", "improved", True, "mean", True, True)
    with pytest.raises(ValueError, match="is none of"):
        Aggregate("f", "m", 1.0, None, 1, "median", True, True)
