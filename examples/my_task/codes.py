"""Documents of the task ``my_codes``: a list of names with a code each, and the name whose code is asked for.

Anna has 4. Ben has 7. … Ben has        → 7
"""

import random

import datasets

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Henry", "Ida", "Jonas", "Karin", "Leo")


def make(documents, seed, **_):
    """lm-eval calls this with the task's ``dataset_kwargs`` and gets its splits; the same seed, the same documents."""
    rng = random.Random(seed)
    return {"test": datasets.Dataset.from_list([document(rng) for _ in range(documents)])}


def document(rng):
    """One question. ``gold`` is the place of the right code among ``choices``."""
    codes = dict(zip(rng.sample(NAMES, 8), rng.sample(range(10), 8), strict=True))
    asked = rng.choice(list(codes))
    told = " ".join(f"{name} has {code}." for name, code in codes.items())
    return {"prompt": f"{told} {asked} has", "choices": [str(code) for code in range(10)], "gold": codes[asked]}
