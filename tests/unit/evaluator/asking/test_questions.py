"""Which questions a task asks, with which candidates and distractors, drawn by the
seed and the item alone."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.asking.questions import NO_DISTRACTOR, NO_UNRELATED
from evaluator.asking.templates import PromptTemplate
from evaluator.core.errors import InputError
from evaluator.core.graders import GRADERS
from evaluator.core.grading import alike, grade
from evaluator.core.text import code_of, normalise
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import exemplar_for, questions_of
from evaluator.tasks import TaskData, distractors
from evaluator.tasks.answer_types import WORDS, answer_type
from evaluator.tasks.distractors import (
    ambiguous,
    by_kind,
    choose_options,
    hard_distractors,
    number_form,
    similar_length,
    unrelated_candidates,
)
from evaluator.tasks.loading import select
from tests.support.stamps import make_item
from tests.support.sweeps import lines, refused


def data(**pools):
    made = {language: tuple(items) for language, items in pools.items()}
    return TaskData(name="t", digest="d", pools=made, every_pool=made)


def config(**changes):
    return EvalConfig(task="t", **changes)


def pool(count, language="english", answer="answer {}"):
    return [
        make_item(number, language=language, answers=[answer.format(number)])
        for number in range(count)
    ]


def test_subset_depth_and_exemplar():
    english = pool(230)
    questions = questions_of(
        data(english=english), config(items=200, formats=("one_shot",))
    )
    order = list(range(230))
    random.Random(42).shuffle(order)
    subset = select(english, 200)
    assert subset == [english[number] for number in order[:200]]
    assert [len(select(english, count)) for count in (0, 7, 300)] == [230, 7, 230]
    assert [question.item for question in questions] == subset
    assert [question.deep for question in questions] == [True] * 100 + [False] * 100
    left = next(item for item in english if item not in subset)
    assert {question.exemplar for question in questions} == {left}
    other = questions_of(data(english=english), config(items=200, seed=1))
    # the run's seed moves the distractors alone
    assert [question.item for question in other] == subset
    assert [question.options for question in other] != [
        question.options for question in questions
    ]


@pytest.mark.parametrize(
    ("question", "context", "shared"),
    [
        ("own", "own", False),
        ("Who  is item's?", "", True),
        ("own", "THE context.", True),
        ("own", "", False),
    ],
)
def test_example_shares_nothing_with_item(question, context, shared):
    """Neither question nor context, whatever their case, spaces and punctuation; the
    next item takes its place."""
    item = make_item(0, question="who is items", context="the context")
    like = make_item(1, question=question, context=context)
    assert exemplar_for(item, [like]) == (None if shared else like)
    other = make_item(2, question="other", context="another")
    assert exemplar_for(item, [like, other]) == (other if shared else like)
    bare = make_item(0, question="bare", context="")
    assert exemplar_for(bare, [make_item(3, question="other", context="")]) is not None


def test_candidates_of_each_format():
    pools = data(english=pool(9), finnish=pool(9, "finnish", "vastaus {}"))
    question = questions_of(
        pools,
        config(formats=("shown", "distractors_only", "unrelated"), probes=("greedy",)),
    )[0]
    english = pools.pools["english"]
    assert question.options == choose_options(
        question.item, english, 0, by_kind(english)
    )
    assert question.candidates["shown"] == question.options.texts
    wrong = [
        text
        for number, text in enumerate(question.options.texts)
        if number != question.options.gold
    ]
    assert list(question.candidates["distractors_only"]) == wrong
    assert len(wrong) == 3
    assert len(question.candidates["unrelated"]) == 4
    assert all(text.startswith("vastaus") for text in question.candidates["unrelated"])


def test_options_come_from_whole_pool():
    """Whatever part of the pool is asked: here four items."""
    english = [
        *pool(12),
        *(make_item(number, answers=[str(1900 + number)]) for number in range(12, 24)),
    ]
    rules = ("any", "alike", None)
    drawn = {
        rule: questions_of(data(english=english), config(options=rule, items=4))
        for rule in rules
    }
    assert [q.options for q in drawn["any"]] == [
        choose_options(q.item, english, 0) for q in drawn["any"]
    ]
    kinds = by_kind(english)
    assert [q.options for q in drawn["alike"]] == [
        choose_options(q.item, english, 0, kinds) for q in drawn["alike"]
    ]
    assert drawn["alike"] == drawn[None] != drawn["any"]


def few(pool, count=2, items=4, **more):
    settings = config(probes=("greedy",), items=items, few_shot=count)
    return questions_of(replace(data(english=pool), **more), settings)


def test_examples_are_never_what_is_asked():
    """Neither an item of the run, nor one with the question or context of the item
    that they stand before; the same for every item otherwise, and as a run grows."""
    english = pool(12)
    english[5] = replace(english[5], question=english[2].question)
    english[7] = replace(english[7], context=english[3].context)
    shown = {q.item.item_id: q.examples for q in few(english, 3)}
    for question in few(english, 3):
        for example in question.examples:
            assert example.item_id not in shown
            assert normalise(example.question) != normalise(question.item.question)
            assert example.context != question.item.context
    usual = Counter(shown.values()).most_common(1)[0][0]
    for question in few(english, 3, items=6):
        if question.item.item_id in shown:
            assert shown[question.item.item_id] == question.examples
    told = refused(few, english, 9)
    assert told.endswith(
        ": few_shot: 9: needs 9 english questions that are not evaluated, and there are"
        " 8: use fewer items"
    )
    told = refused(few, [replace(each, question="Why?") for each in english], 3)
    assert ": few_shot: 3: 0 examples are left: all others share" in told
    train = pool(4, answer="trained {}")
    train = tuple(
        replace(each, question=f"t? {each.item_id}", context="") for each in train
    )
    train += (replace(english[0], answers=("leak",)), english[1])
    trained = few(english, 4, items=0, examples={"english": train})
    assert {e.answers[0][:7] for q in trained for e in q.examples} == {"trained"}
    assert usual != trained[0].examples


def test_a_run_that_grows_keeps_its_examples():
    """But for an item that shares its question with one of the last, whose next example
    is then asked."""
    english = tuple(pool(12))
    order = select(english, 0)
    small = {q.item.item_id: q.examples for q in few(list(english), 3, items=4)}
    for question in few(list(english), 3, items=8):
        assert small.get(question.item.item_id, question.examples) == question.examples
    twin = replace(order[-1], question=order[0].question)
    english = tuple(twin if each is order[-1] else each for each in english)
    last = [each.item_id for each in reversed(order)][1:4]
    (shown,) = {
        tuple(e.item_id for e in question.examples)
        for question in few(list(english), 3, items=8)
        if question.item is order[0]
    }
    assert list(shown) == last


def test_examples_stand_before_the_prompt():
    """With the options that the template lists, and the answer as the grader reads
    it."""
    own = [replace(each, options=("x", "y")) for each in pool(6, answer="right {}")]
    listed = PromptTemplate(
        name="listed",
        text="{{ question }}{% for o in options %} ({{ o }}){% endfor %}\nA:",
    )
    settings = config(
        probes=("greedy",), items=2, few_shot=1, grader="letter", template=listed
    )
    question = questions_of(data(english=own), settings)[0]
    (example,) = question.examples
    place = example.options.index(f"right {example.item_id[1:]}")
    assert example.answers == ("ABC"[place],)
    bare = [replace(each, options=()) for each in own]
    told = refused(questions_of, data(english=bare), settings)
    assert "few_shot: 1: the prompt lists options, and example 'i" in told
    settings = settings.model_copy(update={"template": None})
    (example,) = questions_of(data(english=own), settings)[0].examples
    assert example.answers == (f"right {example.item_id[1:]}",)
    settings = settings.model_copy(update={"formats": ("open", "shown")})
    told = refused(questions_of, data(english=own), settings)
    assert "few_shot: 1: the format shown lists options and its examples do" in told


NEAR = {
    ("72", "english"): {"-72", "720", "15", "3", "71", "73"},
    ("$1,200", "english"): {"-$1,200", "$12,000", "$120", "$15", "$3", "$1,199", "$1,201"},
    ("-4", "english"): {"4", "-40", "15", "3", "-3", "-5"},
    ("1.234,5 km", "german"): {"-1.234,5 km", "12.345,0 km", "123,45 km", "15,0 km",
                               "3,0 km", "1.233,5 km", "1.235,5 km"},
}  # fmt: skip


@pytest.mark.parametrize(("gold", "language"), NEAR)
def test_near_numbers_are_a_mistake_away(gold, language):
    """In the gold answer's form: the sign, a power of ten, another number of the
    question, off by one, or one digit that differs."""
    seen = set()
    for number in range(60):
        item = make_item(
            number, answers=[gold], language=language,
            context="Tom has 15 apples.", question="He eats 3. How many?",
        )  # fmt: skip
        options = choose_options(item, [item], 0, near=True)
        assert options == choose_options(item, [item], 0, near=True)
        assert options.texts[options.gold] == gold
        seen |= {*options.texts} - {gold}
        assert len(options.texts) == 4
    digits = {text for text in seen - NEAR[gold, language] if len(text) == len(gold)}
    assert seen - digits == NEAR[gold, language]
    assert digits
    for text in digits:
        assert sum(a != b for a, b in zip(text, gold, strict=True)) == 1


def test_near_numbers_are_wrong_and_differ():
    """As numbers, for any gold answer."""
    judge, rng = GRADERS["number"], random.Random(3)
    for number in range(2000):
        gold = rng.choice(
            ["{:d}", "{:,d}", "-{:d}", "{:d}.5", "${:d}", "{:d}%", "{:d}/7", "0.{:03d}"]
        ).format(rng.randrange(10 ** rng.randrange(1, 7)))
        said = f"Of {rng.randrange(100)} and {gold}, or {rng.randrange(9)}.5?"
        item = make_item(number, answers=[gold, "12"], question=said)
        if judge.problem(item):
            continue
        options = choose_options(item, [item], number, near=True).texts
        assert len(options) == 4
        others = [replace(item, answers=(each,)) for each in options]
        for text, own in product(options, others):
            same = text == own.answers[0]
            assert judge.is_right(text, own) == same, (gold, options)
        assert sum(judge.is_right(text, item) for text in options) == 1


def test_near_needs_the_number_that_the_grader_reads():
    item = make_item(1, answers=["3+4=7 #### 7"])
    told = refused(choose_options, item, [item], 0, near=True)
    assert "'3+4=7 #### 7' has another number behind '3', which the grader re" in told


def test_near_needs_numbers():
    with pytest.raises(
        ValueError, match="options: near: makes numbers, and the grader"
    ):
        config(options="near")
    with pytest.raises(
        InputError, match=r"item 'i1': options: near: .* 'two' is no num"
    ):
        choose_options(make_item(1, answers=["two"]), [], 0, near=True)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"probes": ("choice",)}, NO_DISTRACTOR),
        ({"probes": ("hard_choice",)}, NO_DISTRACTOR),
        ({"probes": ("greedy",), "formats": ("shown",)}, NO_DISTRACTOR),
        ({"probes": ("greedy",), "formats": ("unrelated",)}, NO_UNRELATED),
    ],
)
def test_unaskable_task_is_refused(settings, reason):
    """A task of which nothing can be asked is refused; one item is enough."""
    items = [make_item(0, answers=["Nile", "Ob"]), make_item(1, answers=["?"])]
    problem = refused(questions_of, data(english=items), config(**settings))
    assert problem == f"task 't', item 'i0': {reason}"
    more = data(english=[*items, make_item(2, answers=["Ob"])], finnish=pool(1, "fi"))
    assert questions_of(more, config(**settings))


def pool_of(answers):
    return [make_item(number, answers=texts) for number, texts in enumerate(answers)]


answers = st.lists(
    st.sampled_from(
        ["Nile", "nile.", "The Nile", "Po", "Ob", "...", "", "1", "1.", "Ob!"]
    ),
    max_size=2,
)
pools = st.lists(answers, min_size=1, max_size=12).map(pool_of)


@given(pools, st.integers(0, 3))
def test_options_are_gold_and_distinct(pool, seed):
    item = make_item(99, answers=["Nile"])
    pool = [item, *pool]
    gold = {"", "nile", "the nile"}
    wrong = {normalise(a) for other in pool[1:] for a in other.answers[:]} - gold
    firsts = {
        normalise(next(filter(normalise, other.answers), "")) for other in pool[1:]
    } - gold
    if not firsts:
        assert choose_options(item, pool, seed) is None
        return
    options = choose_options(item, pool, seed)
    texts = [normalise(text) for text in options.texts]
    assert options.texts[options.gold] == "Nile"
    assert len(set(texts)) == len(texts) == 1 + min(3, len(firsts))
    assert set(texts) - {"nile"} <= wrong
    assert choose_options(item, pool, seed) == options


def wrong_options(item, pool, seed, kinds):
    options = choose_options(item, pool, seed, kinds)
    return [text for number, text in enumerate(options.texts) if number != options.gold]


MIXED = [
    "1990",
    "1812",
    "12 people",
    "7 kilometres",
    "Nile",
    "Po",
    "Mississippi",
    "water",
    "of clay",
    "nile!",
]
mixed = st.lists(
    st.sampled_from(MIXED).map(lambda text: [text]), min_size=1, max_size=14
).map(pool_of)


@given(mixed, st.sampled_from(["Nile", "1990", "3 men", "sand"]), st.integers(0, 3))
def test_alike_distractors_use_best_group(pool, gold, seed):
    """By counting: of each group in the documented order as many as it has, until
    there are three."""
    item = make_item(99, answers=[gold])
    pool = [*pool, item]

    def group(text):
        kind = answer_type(text, "english") == answer_type(gold, "english")
        length = similar_length(text, gold)
        return 0 if kind and length else 1 if kind else 2 if length else 3

    # Two spellings of one answer are one distractor, in the group of whichever comes
    # first.
    firsts = {}
    for text in sorted((other.answers[0] for other in pool), key=group):
        if normalise(text) != normalise(gold):
            firsts.setdefault(normalise(text), group(text))
    if not firsts:
        assert choose_options(item, pool, seed, by_kind(pool)) is None
        return
    wrong = wrong_options(item, pool, seed, by_kind(pool))
    assert sorted(map(group, wrong)) == sorted(firsts.values())[:3]
    assert len({normalise(text) for text in wrong} - {normalise(gold)}) == len(wrong)
    assert wrong_options(item, pool, seed, by_kind(pool)) == wrong


FORMS = """
24 | 17, 55, 308
90 % | 12 %, 7 %, 45 %
£30m | £5m, £700m, £12m
20 metres | 3 metres, 8 metres, 66 metres
20 miles | 3 metres, 8 metres, 66 metres
"""


@pytest.mark.parametrize(("gold", "chosen"), lines(FORMS))
def test_numbers_are_drawn_in_one_form(gold, chosen):
    """A unit beside three plain numbers would give the answer away."""
    listed = ", ".join(texts for _, texts in lines(FORMS)[:4])
    texts = [*listed.split(", "), gold]
    pool = [make_item(n, answers=[text]) for n, text in enumerate(texts)]
    for seed in range(5):
        options = choose_options(pool[-1], pool, seed, by_kind(pool))
        assert {*options.texts} - {gold} == {*chosen.split(", ")}


def test_numbers_of_a_form_are_parts_of_one_pool():
    """In its order, without what an earlier group has."""
    texts = [text for _, listed in lines(FORMS) for text in listed.split(", ")]
    items = [make_item(n, answers=[text]) for n, text in enumerate([*texts, *texts])]
    kinds = by_kind(items)
    for gold in texts:
        form, groups = number_form(gold), ([], [], [])
        for number in kinds.kinds["number"]:
            signs, words = number_form(number.answers[0])
            groups[((signs, words) != form) + (signs != form[0])].append(number)
        found = distractors._by_form(gold, kinds)
        assert tuple([group[n] for n in range(len(group))] for group in found) == groups


def test_each_text_is_graded_once(monkeypatch):
    """Of a thousand answers yes or no, each item would look at all."""
    graded = []
    own = distractors.alike
    monkeypatch.setattr(
        distractors, "alike", lambda *texts: graded.append(texts) or own(*texts)
    )
    pool = [make_item(n, answers=[("yes", "no")[n % 2]]) for n in range(1000)]
    options = choose_options(pool[0], pool, 0, by_kind(pool))
    assert sorted(options.texts) == ["no", "yes"]
    assert len(graded) == 2


@pytest.mark.parametrize(
    ("one", "other", "similar"),
    [
        ("1990", "350", True), ("1990", "7", False), ("Po", "Nile", True), ("Po", "Volga", False),
        ("Mississippi", "Kalamazoo", True), ("Mississippi", "Mississippi River", False), ("U.S.", "us", True),
    ],
)  # fmt: skip
def test_similar_lengths(one, other, similar):
    assert similar_length(one, other) == similar_length(other, one) == similar


def test_draws_are_even_per_item():
    """3 of 9 wrong answers, gold at any of 4 places: counts over 1000 seeds stay
    within 5 standard deviations."""
    pool = [make_item(number, answers=[str(1900 + number)]) for number in range(10)]
    drawn, gold = Counter(), Counter()
    for seed in range(1000):
        options = choose_options(pool[0], pool, seed)
        drawn.update(options.texts)
        gold[options.gold] += 1
    assert drawn.pop("1900") == 1000
    assert len(drawn) == 9
    for count in drawn.values():
        assert abs(count - 1000 / 3) < 5 * (1000 * 2 / 9) ** 0.5
    for place in range(4):
        assert abs(gold[place] - 250) < 5 * (1000 * 3 / 16) ** 0.5


def test_options_keep_out_own_references():
    """Every reference of the item is kept out and only first references of others
    come in."""
    item = make_item(0, answers=["Nile", "Abay"])
    pool = [
        item,
        make_item(1, answers=["abay!"]),
        make_item(2, answers=["Po", "Eridanus"]),
        make_item(3, answers=[]),
    ]
    assert sorted(choose_options(item, pool, 0).texts) == ["Nile", "Po"]


def test_own_options_are_used():
    item = make_item(
        0, answers=["5"], options=["-5", "5.", "10", "10", " 5 ", "15", "20"]
    )
    options = choose_options(item, [item], 0)
    assert (
        choose_options(item, [item], 0, by_kind([item, make_item(1, answers=["7"])]))
        == options
    )
    assert sorted(options.texts) == sorted(["5", "-5", "5.", "10", "15", "20"])
    assert options.texts[options.gold] == "5"
    item = make_item(0, answers=["5", "five"], options=["5", "five"])
    assert choose_options(item, [item], 0) is None


def test_unrelated_candidates_are_foreign():
    """Unrelated candidates are wrong distinct and come from other languages."""
    pools = {
        language: pool(30, language, language + " {}")
        for language in ("english", "finnish", "korean")
    }
    item = pools["english"][0]
    drawn = Counter()
    for seed in range(300):
        found = unrelated_candidates(item, pools, seed)
        assert len(set(found)) == 4
        drawn.update(text.split()[0] for text in found)
    assert set(drawn) == {"finnish", "korean"}
    assert min(drawn.values()) > 450  # of 1200, 600 expected, standard deviation 17
    item = make_item(0, answers=["1999"])
    pools = {
        "english": [item, make_item(1)],
        "finnish": [
            make_item(n, language="finnish", answers=[a])
            for n, a in enumerate(["1999", "Oulu", "oulu!", ""])
        ],
    }
    assert [
        text.lower().strip("!") for text in unrelated_candidates(item, pools, 0)
    ] == ["oulu"]
    assert unrelated_candidates(item, {"english": pools["english"]}, 0) == ()


@given(
    st.lists(st.text(alphabet="abc ", max_size=6), max_size=12),
    st.text(alphabet="abc", min_size=1, max_size=6),
)
def test_hard_distractors_against_a_plain_computation(texts, gold):
    item = make_item(0, answers=[gold])
    pool = [
        item,
        *(
            make_item(number, answers=[text])
            for number, text in enumerate(texts, start=1)
        ),
    ]
    random.Random(0).shuffle(pool)

    def likeness(text):
        one, other = (
            {t[i : i + 3] for i in range(len(t) - 2)}
            for t in (normalise(gold), normalise(text))
        )
        return len(one & other) / len(one | other) if one | other else 0.0

    ranked = sorted(
        (o for o in pool if o is not item), key=lambda o: -likeness(o.answers[0])
    )
    expected = []
    for other in ranked:
        (text,) = other.answers
        if normalise(text) and not any(
            alike(text, known, "english") for known in (gold, *expected)
        ):
            expected.append(text)
    assert hard_distractors(item, pool) == tuple(expected[:3])


# language | answer | kind; German nouns have capitals, hu has no list of words
KINDS = """
english | 1990 | date
en | in the 1990s | date
en | March 5 | date
en | 3/4/2020 | date
en | May | date
en | 1066 AD | date
en | 1,500 people | number
en | 1.500.000 | number
en | about 30 | number
en | $5 million | number
en | 24-10 | number
en | Seven | number
en | twenty-one years | number
en | two Americans | number
en | Three Gorges Dam | name
en | Apollo 11 | name
en | University of Warsaw | name
en | B-52 | name
en | the river Kalo | other
en | oxygen | other
en | marching 5 miles | number
russian | 12 января 1990 года | date
ru | в 1990 году | date
ru | 1500 солдат | number
ru | Иван Грозный | name
ru | вода | other
de | 3. Oktober | date
de | gelb | other
de | Wasser | name
tr | 5 Mayıs'ta | date
vi | tháng 5 | date
swahili | mwaka 1740 | date
sw | 1740 | date
sw | wakazi 1740 | number
arabic | ١٩٩٠ | date
ar | ٣٠ | number
ar | الماء | other
hi | पानी | other
bengali | ১৫ আগস্ট | date
bn | ৮৯৬০ জন | number
korean | 2021년 5월 | date
ko | 1740명 | number
ko | 칼로 강 | other
ko | 두 명 | number
ja | 2021年 | date
zh | 1500人 | number
zh | 三个 | number
zh | 万里长城 | other
zh | 马丁·路德 | name
ja | 千葉県 | other
th | พ.ศ. 2533 | date
th | 1500 คน | number
th | 1500คน | number
hu | 1848 | date
hu | 12 alma | number
hu | Duna | name
hu | március | other
"""


@pytest.mark.parametrize("row", KINDS.strip().split("\n"))
def test_answer_types(row):
    language, answer, kind = row.split(" | ")
    assert answer_type(answer, language) == kind


@pytest.mark.parametrize("code", WORDS)
def test_listed_words_decide_types(code):
    """Every listed month makes a date and every number word a number."""
    assert code_of(code) == code
    months, _, numbers = (words.split() for words in WORDS[code].values())
    if code != "vi":
        assert len(months) >= 12 or not months
        assert {answer_type(f"5 {month.rstrip('*')}", code) for month in months} <= {
            "date"
        }
    assert {answer_type(word.rstrip("*"), code) for word in numbers} <= {"number"}


WRONG = [
    "in 1701 AD",
    "1701.",
    "paris",
    "Paris.",
    "The Paris",
    "1702",
    "17",
    "Lyon",
    "lyon",
    "LYON!",
    "१७०१",
]


@pytest.mark.parametrize("gold", ["1701", "Paris"])
def test_drawn_options_grade_as_themselves(gold):
    """No wrong option is right to the grader, and no two options are one."""
    item = make_item(99, answers=[gold])
    pool = [item, *pool_of([[text] for text in WRONG])]
    for texts in (
        *(choose_options(item, pool, seed).texts for seed in range(9)),
        (gold, *hard_distractors(item, pool)),
    ):
        for one in texts:
            right = [
                other for other in texts if grade(one, [other], "english")["contains"]
            ]
            assert right == [one]


def test_own_wrong_option_equals_gold():
    """The item's choice is excluded, with the option's name; what is only longer
    than the answer stays."""
    item = make_item(1, answers=["Paris"], options=["Paris", "paris.", "Lyon"])
    assert (
        ambiguous(item) == "its wrong option 'paris.' is the gold answer to the grader"
    )
    assert (
        ambiguous(make_item(1, answers=["water"], options=["salt water", "sand"])) == ""
    )
    told = refused(questions_of, data(english=[item]), config(probes=("choice",)))
    assert "item 'i1': its wrong option 'paris.'" in told


def test_gold_answer_that_the_grader_cannot_read():
    """Refused with task and item, but not where the item is excluded anyway."""
    settings = EvalConfig(task="jsonl:sums.jsonl", probes=("greedy",), grader="number")
    for gold in (
        "many apples",
        "Apollo 11",
        "5 to 6",
        "3, 4",
        "",
        "She makes 9 * 2 = 18",
    ):
        items = [make_item(1, answers=["72"]), make_item(2, answers=[gold])]
        if gold:
            told = refused(questions_of, data(english=items), settings)
            assert told == (
                f"task 'jsonl:sums.jsonl', item 'i2': answers: {gold!r} is no number"
                " (grader number)"
            )
        else:
            assert len(questions_of(data(english=items), settings)) == 2
    settings = config(probes=("greedy",), grader="letter")
    lost = (("E", ["Rome", "Paris"]), ("Rome", []))
    for gold, options in lost:
        items = [make_item(1, answers=[gold], options=options)]
        told = refused(questions_of, data(english=items), settings)
        assert f"{gold!r} is neither an option nor its letter (grader letter)" in told
    read = (
        ("B", []),
        ("Rome", ["Rome", "Paris"]),
        ("Rome", ["Paris"]),
        ("B", ["A", "C"]),
    )
    for gold, options in read:
        items = [make_item(1, answers=[gold], options=options)]
        assert questions_of(data(english=items), settings)
