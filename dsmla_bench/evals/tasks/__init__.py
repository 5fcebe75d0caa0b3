"""The tasks of the embedded model, and their lm-eval side: a module and a YAML file each.

    dsmla_recall             which value belongs to a key, of many pairs             multiple choice
    dsmla_variable_tracking  follow a chain of links in any order to its end         generated, exact match
    dsmla_copy               repeat a list word by word                              log-likelihood, greedy match
    dsmla_needle             a code hidden in running text, by length and depth      generated, exact match
    dsmla_definitions        which word of a glossary has this definition            multiple choice
    dsmla_prose              bits per byte of text that the model never saw          rolling log-likelihood

They test what a KV cache does, keeping what was said so that it can be found again, and ask for nothing that a model
would have to know. ``python -m lm_eval --include_path`` takes this folder too. A task's documents come from
``dataset_kwargs`` in its YAML alone: a seed, and strata of so many documents each. A further task is two further files.
"""
