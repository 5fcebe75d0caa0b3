"""How many tokens a cache holds: layers, indexers, padding and whole pages, by hand and against published figures."""

import json
import re

import pytest
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.cli.formats_capacity import byte_count
from dsmla_bench.kernels.capacity import PRESETS, CachedModel, capacity, find_cached_model
from dsmla_bench.kernels.formats import Geometry, get_format

H200_LEFT = 141 * 10**9 - 85 * 10**9
GLM_5_2 = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
}


def held(name, model, cache_bytes=H200_LEFT, block_size=64):
    return capacity(get_format(name), model, cache_bytes, block_size)


# Bytes


@pytest.mark.parametrize(
    ("name", "row_bytes"), [("bf16", 1152), ("fp8", 576), ("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352)]
)
def test_a_token_is_a_row_per_layer_and_132_bytes_per_indexer(name, row_bytes):
    found = held(name, PRESETS["deepseek-v3.2"])
    assert found.bytes_per_token == 61 * (row_bytes + 132)
    assert found.page_bytes == 64 * 61 * (row_bytes + 132)
    assert found.tokens == 64 * (H200_LEFT // found.page_bytes)
    assert held(name, PRESETS["deepseek-v2-lite"]).bytes_per_token == 27 * row_bytes


@pytest.mark.parametrize(("name", "published"), [("fp8_ds_mla", 54_728), ("b12x_nvfp4_432", 37_032)])
def test_glm_5_2_with_its_mtp_layer_takes_what_was_published(name, published):
    """local-inference-lab/vllm pull request 82 gives bytes per token over all layers: 79 rows and 22 indexers."""
    assert held(name, PRESETS["glm-5.2"].with_mtp(1)).bytes_per_token == published


def test_mtp_layers_have_an_indexer_only_where_the_model_has():
    assert PRESETS["glm-5"].with_mtp(2) == CachedModel("GLM-5", 80, 80)
    assert PRESETS["deepseek-v2-lite"].with_mtp(1) == CachedModel("DeepSeek-V2-Lite", 28, 0)


def test_only_whole_pages_count():
    model = PRESETS["glm-5"]
    page = held("nvfp4_ds_mla", model).page_bytes
    assert [held("nvfp4_ds_mla", model, size).tokens for size in (page - 1, page, 2 * page - 1, 2 * page)] == [
        0, 64, 64, 128,
    ]  # fmt: skip
    assert held("nvfp4_ds_mla", model, page, block_size=32).tokens == 64


def test_page_padding_counts():
    """dsv4_584: 64 rows of 584 bytes are 37 376, padded to 37 440, a multiple of 576."""
    model = CachedModel("two layers", 2, 0, Geometry(448, 64))
    found = held("dsv4_584", model, 2 * 37_440 * 10)
    assert (found.page_bytes, found.pages) == (2 * 37_440, 10)
    assert found.bytes_per_token == 2 * 585


@pytest.mark.parametrize("block_size", [0, -64])
def test_a_page_without_tokens_is_refused(block_size):
    with pytest.raises(ValueError, match=f"^a page holds 1 token or more, found a block_size of {block_size}$"):
        held("fp8", PRESETS["glm-5"], block_size=block_size)


def test_a_format_of_another_width_is_refused():
    with pytest.raises(ValueError, match=re.escape("nvfp4_ds_mla needs 512+64, got 256+32")):
        held("nvfp4_ds_mla", CachedModel("narrow", 62, 0, Geometry(256, 32)))


# Models


@pytest.mark.parametrize(
    ("schedule", "indexers"),
    [
        ({}, 78),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 21),
        ({"index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS"}, 21),
        ({"indexer_types": ["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3}, 21),
        ({"index_topk": None}, 0),
        ({"index_topk_freq": None, "index_skip_topk_offset": None}, 78),
    ],
)
def test_indexers_are_counted_however_the_configuration_says_it(schedule, indexers):
    assert CachedModel.from_config("GLM-5.2", {**GLM_5_2, **schedule}) == CachedModel("GLM-5.2", 78, indexers)


@pytest.mark.parametrize(
    ("preset", "module", "name"),
    [
        ("deepseek-v3.2", "transformers.models.deepseek_v32.configuration_deepseek_v32", "DeepseekV32Config"),
        ("glm-5", "transformers.models.glm_moe_dsa.configuration_glm_moe_dsa", "GlmMoeDsaConfig"),
    ],
)
def test_presets_are_the_defaults_of_transformers(preset, module, name):
    config = getattr(pytest.importorskip(module), name)().to_dict()
    assert CachedModel.from_config(PRESETS[preset].name, config) == PRESETS[preset]


def test_a_model_is_a_preset_a_file_or_a_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GLM_5_2))
    assert find_cached_model("GLM-5") == PRESETS["glm-5"]
    for path in (tmp_path, tmp_path / "config.json"):
        found = find_cached_model(str(path))
        assert (found.layers, found.indexers, found.geometry) == (78, 78, Geometry(512, 64))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"is no JSON \(.*\); give the config.json of a model"),
        ("[]", "holds no JSON object; give the config.json of a model"),
        ('{"model_type": "llama"}', "has the model_type 'llama'; counted are axk1, deepseek_v2, .*youtu"),
        (
            json.dumps({**GLM_5_2, "kv_lora_rank": None, "num_hidden_layers": "78"}),
            "has no whole number for num_hidden_layers, kv_lora_rank; give the config.json of a model",
        ),
        (json.dumps({**GLM_5_2, "index_head_dim": 64}), "has an index_head_dim of 64; counted is 128"),
        (
            json.dumps({**GLM_5_2, "index_topk_freq": "4"}),
            "has the index_topk_freq '4'; a whole number or none is counted",
        ),
        (
            json.dumps({**GLM_5_2, "num_hidden_layers": 0}),
            "must have 1 layer or more and 0 indexers or more, found 0 and 0",
        ),
    ],
)
def test_a_file_that_does_not_say_what_is_cached_is_refused(text, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} {message}$"):
        find_cached_model(str(path))


def test_an_unknown_model_is_refused_with_the_presets():
    known = "give one of deepseek-v3.2, glm-5, glm-5.2, deepseek-v2-lite, or the path of a config.json"
    with pytest.raises(ValueError, match=f"^no model 'deepseek-v9'; {known}$"):
        find_cached_model("deepseek-v9")


# The command


@pytest.mark.parametrize(
    ("text", "size"),
    [("141GB", 141 * 10**9), ("1.5 GiB", 3 * 2**29), ("80gb", 80 * 10**9), ("512MiB", 2**29), ("7B", 7)],
)
def test_sizes_are_read_with_their_unit(text, size):
    assert byte_count(text, "--memory") == size


@pytest.mark.parametrize("text", ["141", "GB", "141 GByte", "-1GB", "1e3GB"])
def test_a_size_without_a_unit_is_refused(text):
    message = f"--memory must be a size such as 141GB or 131.5GiB, found {text!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        byte_count(text, "--memory")


ROOM = ("--model", "deepseek-v3.2", "--memory", "141GB", "--weights", "85GB")


def formats(*arguments):
    return CliRunner().invoke(app, ["formats", *arguments])


def test_the_command_counts_every_format_outside_the_lab():
    done = formats(*ROOM)
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "DeepSeek-V3.2: 61 layers of 512+64 values, 61 with an indexer of 132 bytes a token; 56 GB of cache on one GPU "
        "in pages of 64 tokens",
        "",
        "format B/token and layer B/token tokens against bf16",
        "bf16:raw 1152 78,324 714,944 1.00",
        "fp8_ds_mla:pow2 656 48,068 1,164,992 1.63",
        "fp8:per_tensor 576 43,188 1,296,640 1.81",
        "nvfp4_ds_mla:rn 352 29,524 1,896,704 2.65",
    ]


def test_the_command_counts_the_lab_when_named_and_says_what_does_not_fit():
    named = formats(*ROOM, "--format", "b12x_nvfp4_432").stdout.splitlines()
    assert named[-1].split() == ["b12x_nvfp4_432:ieee", "432", "34,404", "1,627,712", "2.28"]
    unfit = formats(*ROOM, "--format", "dsv4_584").stdout.splitlines()
    assert unfit[1:] == ["", "dsv4_584 needs 448+64, got 512+64 (kv_lora_rank+rope_dim); use bf16 or fp8"]


def test_the_command_as_json_and_for_one_format():
    done = formats(
        "--model", "glm-5.2", "--memory", "141GB", "--mtp-layers", "1", "--format", "fp8_ds_mla:amax448", "--json"
    )
    record = json.loads(done.stdout)
    assert (record["layers"], record["indexers"], record["cache_bytes"]) == (79, 22, 141 * 10**9)
    (found,) = record["formats"]
    assert (found["format"], found["bytes_per_token"]) == ("fp8_ds_mla:amax448", 54_728)
    assert found["tokens"] == 64 * found["pages"] == 64 * (141 * 10**9 // (64 * 54_728))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "glm-5"], "--model glm-5 needs the memory of one GPU; give --memory, e.g. --memory 141GB"),
        (
            ["--model", "glm-5", "--memory", "80GB", "--weights", "80GB"],
            "--weights 80GB leave nothing of --memory 80GB for the cache",
        ),
        (["--memory", "80GB"], "--memory needs --model; see dsmla-bench formats --help"),
        (["--mtp-layers", "1"], "--mtp-layers needs --model; see dsmla-bench formats --help"),
    ],
)
def test_the_command_refuses_in_one_sentence(arguments, message):
    done = formats(*arguments)
    assert isinstance(done.exception, ValueError)
    assert str(done.exception) == message
