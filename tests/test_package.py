"""What is shipped: one version, type hints, and every text of others with its licence. ``./dev build`` installs it."""

import re
import tomllib
from pathlib import Path

import dsmla_bench

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dsmla_bench"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DATA = {".json", ".jsonl", ".safetensors", ".tsv", ".txt"}
LICENCE = "WORDNET_LICENSE.txt"
OUR_OWN = {LICENCE, "config.json", "tokenizer_config.json", "scores.jsonl", "training_log.jsonl"}
"""Data files that hold no text of others but its licence."""


def test_the_version_is_in_one_place():
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    source = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{dsmla_bench.__version__}"' in source.read_text(encoding="utf-8")


def test_the_changelog_begins_with_this_version_or_with_what_comes_after_it():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert headings[0] in ("Unreleased", dsmla_bench.__version__)
    assert not released or released[0] == dsmla_bench.__version__


def test_type_hints_are_shipped():
    assert (PACKAGE / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_the_notice_names_every_file_of_data_with_its_licence():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert PROJECT["project"]["license-files"] == ["LICENSE", "NOTICE"]
    shipped = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.suffix in DATA}
    embedded = Path("evals/embedded")
    assert all(path.is_relative_to(embedded) for path in shipped), "data elsewhere needs its line in NOTICE too"
    named = set(re.findall(r"^((?:text|model)/\S+)", notice, re.MULTILINE))
    assert named == {str(path.relative_to(embedded)) for path in shipped if path.name not in OUR_OWN}
    copyright = "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved."
    assert copyright in notice
    assert copyright in (PACKAGE / embedded / "text" / LICENCE).read_text(encoding="utf-8")
