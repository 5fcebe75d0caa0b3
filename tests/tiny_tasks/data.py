"""Documents of random words; lm-eval calls ``make`` with a task's dataset_kwargs and whatever metadata there is."""

import random

import datasets

WORDS = [f"w{number}" for number in range(80)]


def make(documents=16, seed=0, **_):
    """``documents`` texts of 20 to 40 words, each with four choices, one of them right, and a word to generate."""
    generator = random.Random(seed)
    return {"test": datasets.Dataset.from_list([document(generator) for _ in range(documents)])}


def document(generator):
    context = " ".join(generator.choices(WORDS, k=generator.randrange(20, 40)))
    choices = generator.sample(WORDS, 4)
    return {"context": context, "choices": choices, "gold": generator.randrange(4), "answer": choices[0]}
