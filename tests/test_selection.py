"""Which format an engine stores for what it was asked, and the one sentence of a refusal.

Expected outcomes are vLLM 0.33's lists (see ``selection_rules``), written down here once more cell by cell.
"""

import itertools
import json
import random
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.kernels.arch import KNOWN, Architecture
from dsmla_bench.kernels.formats import all_formats, get_format
from dsmla_bench.kernels.selection import PHRASES, Question, Refusal, Selection, select, why_not
from dsmla_bench.kernels.selection_rules import BACKENDS, CONDITIONS, DTYPES, OTHER_BACKENDS, OTHER_DTYPES, RULES

SM80, SM90, SM100, SM103, SM120, SM121 = map(
    Architecture.from_capability, [(8, 0), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]
)
COLUMNS = (SM80, SM90, SM100, SM103, SM120)

STORED = {
    "bf16": ("bf16:raw", 1152, "bf16"),
    "fp8": ("fp8:per_tensor", 576, "bf16"),
    "FP8": ("fp8:per_tensor", 576, "fp8"),
    "ds": ("fp8_ds_mla:pow2", 656, "bf16"),
    "nv": ("nvfp4_ds_mla:rn", 352, "bf16"),
}
"""A word of TABLE → format, bytes per token, queries (FP8: with fp8 queries)."""

TABLE = """
backend                      dtype         sm80  sm90  sm100 sm103 sm120
FLASHMLA_SPARSE              auto          arch  bf16  bf16  bf16  arch
FLASHMLA_SPARSE              bfloat16      arch  bf16  bf16  bf16  arch
FLASHMLA_SPARSE              fp8           arch  ds    ds    ds    arch
FLASHMLA_SPARSE              fp8_e4m3      arch  dtype dtype dtype arch
FLASHMLA_SPARSE              fp8_ds_mla    arch  ds    ds    ds    arch
FLASHMLA_SPARSE              nvfp4_ds_mla  arch  dtype nv    nv    arch
FLASHINFER_MLA_SPARSE        auto          arch  arch  bf16  bf16  arch
FLASHINFER_MLA_SPARSE        bfloat16      arch  arch  bf16  bf16  arch
FLASHINFER_MLA_SPARSE        fp8           arch  arch  FP8   FP8   arch
FLASHINFER_MLA_SPARSE        fp8_e4m3      arch  arch  FP8   FP8   arch
FLASHINFER_MLA_SPARSE        fp8_ds_mla    arch  arch  dtype dtype arch
FLASHINFER_MLA_SPARSE        nvfp4_ds_mla  arch  arch  dtype dtype arch
FLASHINFER_MLA_SPARSE_SM90   auto          arch  bf16  arch  arch  arch
FLASHINFER_MLA_SPARSE_SM90   bfloat16      arch  bf16  arch  arch  arch
FLASHINFER_MLA_SPARSE_SM90   fp8           arch  fp8   arch  arch  arch
FLASHINFER_MLA_SPARSE_SM90   fp8_e4m3      arch  fp8   arch  arch  arch
FLASHINFER_MLA_SPARSE_SM90   fp8_ds_mla    arch  dtype arch  arch  arch
FLASHINFER_MLA_SPARSE_SM90   nvfp4_ds_mla  arch  dtype arch  arch  arch
FLASHINFER_MLA_SPARSE_SM120  auto          arch  arch  arch  arch  ds
FLASHINFER_MLA_SPARSE_SM120  bfloat16      arch  arch  arch  arch  dtype
FLASHINFER_MLA_SPARSE_SM120  fp8           arch  arch  arch  arch  ds
FLASHINFER_MLA_SPARSE_SM120  fp8_e4m3      arch  arch  arch  arch  ds
FLASHINFER_MLA_SPARSE_SM120  fp8_ds_mla    arch  arch  arch  arch  ds
FLASHINFER_MLA_SPARSE_SM120  nvfp4_ds_mla  arch  arch  arch  arch  dtype
FLASH_ATTN_MLA_SPARSE        auto          arch  bf16  arch  arch  arch
FLASH_ATTN_MLA_SPARSE        bfloat16      arch  bf16  arch  arch  arch
FLASH_ATTN_MLA_SPARSE        fp8           arch  dtype arch  arch  arch
FLASH_ATTN_MLA_SPARSE        fp8_e4m3      arch  dtype arch  arch  arch
FLASH_ATTN_MLA_SPARSE        fp8_ds_mla    arch  dtype arch  arch  arch
FLASH_ATTN_MLA_SPARSE        nvfp4_ds_mla  arch  dtype arch  arch  arch
FLASH_ATTN_MLA_SPARSE_FA4    auto          arch  arch  bf16  bf16  arch
FLASH_ATTN_MLA_SPARSE_FA4    bfloat16      arch  arch  bf16  bf16  arch
FLASH_ATTN_MLA_SPARSE_FA4    fp8           arch  arch  dtype dtype arch
FLASH_ATTN_MLA_SPARSE_FA4    fp8_e4m3      arch  arch  dtype dtype arch
FLASH_ATTN_MLA_SPARSE_FA4    fp8_ds_mla    arch  arch  dtype dtype arch
FLASH_ATTN_MLA_SPARSE_FA4    nvfp4_ds_mla  arch  arch  dtype dtype arch
"""
FOUND = {"arch": "{backend} does not run there", "dtype": "{backend} does not accept it there"}

CHOSEN = """
dtype         sm80  sm90                              sm100                         sm103                         sm120
auto          arch  bf16 FLASH_ATTN_MLA_SPARSE        bf16 FLASHMLA_SPARSE          bf16 FLASHMLA_SPARSE          ds FLASHINFER_MLA_SPARSE_SM120
bfloat16      arch  bf16 FLASH_ATTN_MLA_SPARSE        bf16 FLASHMLA_SPARSE          bf16 FLASHMLA_SPARSE          dtype
fp8           arch  ds FLASHMLA_SPARSE                FP8 FLASHINFER_MLA_SPARSE     FP8 FLASHINFER_MLA_SPARSE     ds FLASHINFER_MLA_SPARSE_SM120
fp8_e4m3      arch  fp8 FLASHINFER_MLA_SPARSE_SM90    FP8 FLASHINFER_MLA_SPARSE     FP8 FLASHINFER_MLA_SPARSE     ds FLASHINFER_MLA_SPARSE_SM120
fp8_ds_mla    arch  ds FLASHMLA_SPARSE                ds FLASHMLA_SPARSE            ds FLASHMLA_SPARSE            ds FLASHINFER_MLA_SPARSE_SM120
nvfp4_ds_mla  arch  dtype                             nv FLASHMLA_SPARSE            nv FLASHMLA_SPARSE            dtype
"""  # noqa: E501
NONE_FOUND = {
    "arch": "no sparse MLA backend of vLLM 0.33 runs there",
    "dtype": "no sparse MLA backend of vLLM 0.33 accepts it there",
}


def named_cells():
    """(backend, dtype, architecture, word) of TABLE."""
    for line in TABLE.split("\n")[2:-1]:
        backend, dtype, *words = line.split()
        yield from ((backend, dtype, arch, word) for arch, word in zip(COLUMNS, words, strict=True))


def chosen_cells():
    """(dtype, architecture, words) of CHOSEN."""
    for line in CHOSEN.split("\n")[2:-1]:
        dtype, *cells = (cell.strip() for cell in line.split("  ") if cell.strip())
        yield from ((dtype, arch, cell.split()) for arch, cell in zip(COLUMNS, cells, strict=True))


def some_questions(rules):
    """One in ten of the combinations of what can be asked, names that no rule knows included."""
    every = itertools.product(
        KNOWN,
        (*DTYPES, *OTHER_DTYPES, "fp8_e5m2"),
        (None, *BACKENDS, "TRITON_MLA_SPARSE", "MISSPELT"),
        (None, "bf16", "fp8"),
        (576, 512, 320),
        (64, 48),
        (128, 4),
    )
    return [Question(*asked, rules) for asked in random.Random(0).sample(list(every), 2000)]


# The table


def test_the_table_covers_every_backend_and_spelling():
    assert {(backend, dtype) for backend, dtype, _, _ in named_cells()} == set(itertools.product(BACKENDS, DTYPES))
    assert {dtype for dtype, _, _ in chosen_cells()} == set(DTYPES)


@pytest.mark.parametrize(("backend", "dtype", "arch", "word"), list(named_cells()))
def test_a_named_backend_stores_or_refuses(backend, dtype, arch, word):
    answer = select(Question(arch, dtype, backend))
    asked = f"--kv-cache-dtype {dtype} with {backend} on {arch.label}"
    if word in STORED:
        format, row_bytes, query = STORED[word]
        assert str(answer) == f"{asked} stores {format}, {row_bytes} bytes a token, and takes {query} queries"
        assert (answer.backend, answer.format, answer.row_bytes, answer.query) == (backend, format, row_bytes, query)
    else:
        assert str(answer).startswith(f"{asked} is refused: {FOUND[word].format(backend=backend)}; it works ")


@pytest.mark.parametrize(("dtype", "arch", "words"), list(chosen_cells()))
def test_without_a_backend_vllm_chooses(dtype, arch, words):
    answer = select(Question(arch, dtype))
    asked = f"--kv-cache-dtype {dtype} on {arch.label}"
    if len(words) == 2:
        format, row_bytes, query = STORED[words[0]]
        what = f"goes to {words[1]}, which stores {format}, {row_bytes} bytes a token, and takes {query} queries"
        assert str(answer) == f"{asked} {what}"
    else:
        assert str(answer).startswith(f"{asked} is refused: {NONE_FOUND[words[0]]}; it works ")


# Refusals


def test_every_refusal_names_only_what_works_and_something_does():
    seen = set()
    for question in some_questions("0.33"):
        answer = select(question)
        seen.add(type(answer))
        if isinstance(answer, Refusal):
            assert answer.alternatives
            assert not [other for other in answer.alternatives if isinstance(select(other), Refusal)]
            assert str(answer).count(": ") == 1
            assert "\n" not in str(answer)
    assert seen == {Selection, Refusal}


def test_a_change_of_every_field_has_a_name():
    assert set(PHRASES) == {field.name for field in fields(Question)} - {"rules"}


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        (
            Question(SM90, "nvfp4_ds_mla", "FLASHMLA_SPARSE"),
            "--kv-cache-dtype nvfp4_ds_mla with FLASHMLA_SPARSE on sm_90 is refused: FLASHMLA_SPARSE does not accept "
            "it there; it works on sm_100 or sm_103, or with --kv-cache-dtype auto, bfloat16, fp8 or fp8_ds_mla",
        ),
        (
            Question(SM80, "nvfp4_ds_mla"),
            "--kv-cache-dtype nvfp4_ds_mla on sm_80 is refused: no sparse MLA backend of vLLM 0.33 runs there; it "
            "works on sm_100 or sm_103",
        ),
        (
            Question(SM90, "nvfp4"),
            "--kv-cache-dtype nvfp4 on sm_90 is refused: vLLM 0.33 has no plain nvfp4 for MLA models; it works with "
            "--kv-cache-dtype auto, bfloat16, fp8, fp8_e4m3 or fp8_ds_mla",
        ),
        (
            Question(SM80, "fp8_e5m2"),
            "--kv-cache-dtype fp8_e5m2 on sm_80 is refused: no sparse MLA backend of vLLM 0.33 accepts fp8_e5m2; it "
            "works with --kv-cache-dtype auto on sm_90, sm_100, sm_103, sm_120 or sm_121",
        ),
        (
            Question(SM90, "fp8", "TRITON_MLA_SPARSE"),
            "--kv-cache-dtype fp8 with TRITON_MLA_SPARSE on sm_90 is refused: vLLM 0.33 has no backend of that name; "
            "it works with FLASHMLA_SPARSE or FLASHINFER_MLA_SPARSE_SM90",
        ),
        (
            Question(SM100, "fp8_ds_mla", block_size=128),
            "--kv-cache-dtype fp8_ds_mla on sm_100 is refused: found pages of 128 tokens, taken are 64; it works on "
            "sm_90, sm_120 or sm_121, or with --kv-cache-dtype auto, bfloat16, fp8 or fp8_e4m3, or with pages of 64 "
            "tokens",
        ),
        (
            Question(SM90, "fp8", "FLASHMLA_SPARSE", head_size=512),
            "--kv-cache-dtype fp8 with FLASHMLA_SPARSE on sm_90 is refused: found head size 512, taken are 576; it "
            "works with FLASHINFER_MLA_SPARSE_SM90, or with --kv-cache-dtype auto, bfloat16 or fp8_ds_mla, or with "
            "head size 576",
        ),
        (
            Question(SM100, "fp8", "FLASHINFER_MLA_SPARSE", query="bf16"),
            "--kv-cache-dtype fp8 with FLASHINFER_MLA_SPARSE on sm_100 is refused: found bf16 queries, taken are fp8; "
            "it works with FLASHMLA_SPARSE, or with --kv-cache-dtype auto or bfloat16, or with fp8 queries",
        ),
        (
            Question(SM100, "auto", "FLASH_ATTN_MLA_SPARSE_FA4", heads=4),
            "--kv-cache-dtype auto with FLASH_ATTN_MLA_SPARSE_FA4 on sm_100 is refused: found 4 heads, taken are 8 to "
            "128; it works with FLASHMLA_SPARSE or FLASHINFER_MLA_SPARSE",
        ),
    ],
)
def test_a_refusal_says_what_was_asked_what_was_found_and_what_works(question, sentence):
    assert str(select(question)) == sentence


@pytest.mark.parametrize(
    ("capability", "label"),
    [
        ((8, 0), "sm_80"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100"),
        ((10, 3), "sm_103"),
        ((12, 0), "sm_120"),
        ((12, 1), "sm_121"),
    ],
)
@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"])
def test_why_not_names_the_format_the_gpu_and_the_gpus_that_can(name, capability, label):
    """Case A15, from faked capabilities."""
    places = {
        "bf16": "sm_90, sm_100 and sm_103",
        "fp8": "sm_90, sm_100 and sm_103",
        "fp8_ds_mla": "sm_90, sm_100, sm_103, sm_120 and sm_121",
        "nvfp4_ds_mla": "sm_100 and sm_103",
    }[name]
    reason = why_not(name, Architecture.from_capability(capability))
    if label in places.replace(",", "").split():
        assert reason is None
    else:
        assert reason.startswith(f"no sparse MLA backend of vLLM 0.33 stores {name} on {label}; on {places} ")


def test_why_not_of_a_revision_and_of_the_lab():
    stored = "they store bf16:raw, fp8:per_tensor, fp8_ds_mla:pow2 and nvfp4_ds_mla:rn"
    assert why_not("fp8_ds_mla:pow2", SM90) is None
    for name in ("fp8_ds_mla:amax448", "nvfp4_ds_mla:up", "dsv4_584"):
        assert why_not(name, SM100) == f"no sparse MLA backend of vLLM 0.33 stores {name}; {stored}"


# What surprises


def test_two_spellings_of_e4m3_are_two_formats_on_sm90():
    fp8, e4m3 = (select(Question(SM90, dtype)) for dtype in ("fp8", "fp8_e4m3"))
    assert (fp8.backend, fp8.format, fp8.row_bytes) == ("FLASHMLA_SPARSE", "fp8_ds_mla:pow2", 656)
    assert (e4m3.backend, e4m3.format, e4m3.row_bytes) == ("FLASHINFER_MLA_SPARSE_SM90", "fp8:per_tensor", 576)
    assert f"The spelling matters: {e4m3}." in fp8.notes
    assert f"The spelling matters: {fp8}." in e4m3.notes
    assert "Not judged: it needs FlashInfer 0.6.18 or later and a kv_lora_rank of 512." in e4m3.notes
    on_sm100 = select(Question(SM100, "fp8"))
    assert on_sm100.format == "fp8:per_tensor"
    assert not [note for note in on_sm100.notes if "spelling" in note]


def test_an_alias_is_said_to_be_one():
    assert "fp8 is an alias of fp8_ds_mla there." in select(Question(SM90, "fp8")).notes
    assert "auto is an alias of fp8_ds_mla there." in select(Question(SM120)).notes
    assert not [note for note in select(Question(SM100, "nvfp4_ds_mla")).notes if "alias" in note]


def test_without_rope_sm90_needs_the_literal_name_for_656_bytes():
    alias, literal = (select(Question(SM90, dtype, head_size=512)) for dtype in ("fp8", "fp8_ds_mla"))
    assert (alias.backend, alias.format, alias.row_bytes) == ("FLASHINFER_MLA_SPARSE_SM90", "fp8:per_tensor", 512)
    assert (literal.backend, literal.format, literal.row_bytes) == ("FLASHMLA_SPARSE", "fp8_ds_mla:pow2", 656)
    assert select(Question(SM90, head_size=512)).backend == "FLASHINFER_MLA_SPARSE_SM90"


def test_few_heads_change_the_choice_for_bf16_on_sm100():
    assert select(Question(SM100, heads=16)).backend == "FLASH_ATTN_MLA_SPARSE_FA4"
    assert select(Question(SM100, heads=17)).backend == "FLASHMLA_SPARSE"
    assert select(Question(SM100, heads=4)).backend == "FLASHINFER_MLA_SPARSE"


def test_bf16_queries_bring_the_packed_format_on_sm100():
    assert select(Question(SM100, "fp8", query="bf16")).format == "fp8_ds_mla:pow2"
    assert select(Question(SM100, "fp8", query="fp8")).format == "fp8:per_tensor"


def test_before_0_33_a_backend_without_quantized_queries_needs_fp8_ds_mla():
    answer = select(Question(SM90, "fp8_e4m3", rules="0.30"))
    assert answer.found == (
        "FLASHINFER_MLA_SPARSE_SM90 takes no quantized queries, without which vLLM 0.30 requires fp8_ds_mla"
    )
    assert select(Question(SM90, "fp8", rules="0.30")).format == "fp8_ds_mla:amax448"
    assert select(Question(SM100, "fp8", rules="0.30")).format == "fp8:per_tensor"
    assert select(Question(SM100, "nvfp4_ds_mla", rules="0.30")).format == "nvfp4_ds_mla:rn"
    differing = [
        (before, now)
        for before, now in zip(some_questions("0.30"), some_questions("0.33"), strict=True)
        if isinstance(select(before), Refusal) and isinstance(select(now), Selection)
    ]
    assert {select(now).format for _, now in differing} == {"fp8:per_tensor"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rules": "0.11"}, "no rules of vLLM '0.11'; available: 0.33, 0.30"),
        ({"query": "int8"}, "queries are bf16 or fp8, found 'int8'"),
        ({"head_size": 0}, "head size and heads must be 1 or more, found 0 and 128"),
        ({"heads": -1}, "head size and heads must be 1 or more, found 576 and -1"),
    ],
)
def test_what_no_rule_can_answer_is_no_question(change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Question(SM90, **change)


# The rules as data


def test_rules_name_known_formats_and_never_overlap():
    names = {fmt.name for fmt in all_formats()}
    for rule in RULES:
        assert rule.format in names
        assert set(rule.dtypes) <= set(DTYPES)
        assert rule.backend in CONDITIONS
    for one, other in itertools.combinations(RULES, 2):
        same = one.backend == other.backend and set(one.majors) & set(other.majors)
        assert not (same and set(one.dtypes) & set(other.dtypes))
    assert not set(BACKENDS) & set(OTHER_BACKENDS)
    assert (get_format("fp8_ds_mla").row_bytes(), get_format("nvfp4_ds_mla").row_bytes()) == (656, 352)


# The command and the documentation


def formats(*arguments):
    return CliRunner().invoke(app, ["formats", *arguments])


def test_the_command_explains_one_question():
    done = formats("--arch", "sm90", "--backend", "FLASHMLA_SPARSE", "--kv-cache-dtype", "fp8")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "--kv-cache-dtype fp8 with FLASHMLA_SPARSE on sm_90 stores fp8_ds_mla:pow2, 656 bytes a token, and takes bf16 "
        "queries.",
        "fp8 is an alias of fp8_ds_mla there.",
        "The spelling matters: fp8_e4m3 is refused.",
        "Not judged: with decode context parallelism it needs fp8_ds_mla.",
    ]


def test_the_matrix_as_json_has_every_question():
    records = json.loads(formats("--arch", "all", "--json").stdout)
    assert len(records) == len(KNOWN) * (1 + len(BACKENDS)) * len(DTYPES)
    for record in records:
        assert (record["selected"] is None) == (record["refusal"] is not None) == (record["bytes_per_token"] is None)
    stored = {(r["arch"], r["backend"], r["kv_cache_dtype"]): r["bytes_per_token"] for r in records}
    assert stored["sm103", "FLASHMLA_SPARSE", "nvfp4_ds_mla"] == 352
    assert stored["sm121", None, "nvfp4_ds_mla"] is None


def test_the_matrix_marks_what_vllm_chooses():
    lines = [" ".join(line.split()) for line in formats("--arch", "all").stdout.splitlines()]
    assert "FLASHMLA_SPARSE fp8 – fp8_ds_mla 656 * fp8_ds_mla 656 –" in lines
    assert "FLASHINFER_MLA_SPARSE_SM90 fp8_e4m3 – fp8 576 * – –" in lines
    only = formats("--arch", "all", "--backend", "TRITON_MLA_SPARSE").stdout
    assert "vLLM 0.33 has no backend of that name; it works without --backend" in only


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "FLASHMLA_SPARSE"], "--backend needs --arch; see dsmla-bench formats --help"),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype needs --arch; see dsmla-bench formats --help"),
        (["--arch", "sm90", "--model", "glm-5"], "--arch and --model ask two questions; give one of them"),
        (["--arch", "hopper"], "architecture 'hopper' is not of the form sm90"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, message):
    done = formats(*arguments)
    assert isinstance(done.exception, ValueError)
    assert str(done.exception).startswith(message)


def documented_commands():
    """Commands of docs/selection.md and what the document says that they print."""
    text = (Path(__file__).parents[1] / "docs" / "selection.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n\$ dsmla-bench (.+?)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [pytest.param(command, printed, id=command) for command, printed in blocks]


@pytest.mark.parametrize(("command", "printed"), documented_commands())
def test_the_document_shows_what_is_printed(command, printed):
    assert CliRunner().invoke(app, shlex.split(command)).stdout == printed


def test_the_document_names_every_backend_and_spelling():
    text = (Path(__file__).parents[1] / "docs" / "selection.md").read_text(encoding="utf-8")
    assert not [name for name in (*BACKENDS, *DTYPES, *OTHER_BACKENDS) if name not in text]
    assert len(documented_commands()) == 5
