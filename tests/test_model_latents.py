"""``dsmla-bench error --from-model``: the latents of every layer of a local model, and files of such latents."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the extra accuracy is not installed")

from safetensors.torch import save_file
from tiny_models import VOCABULARY, tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dsmla_bench.evals.data import BLOCK_TOKENS
from dsmla_bench.evals.data_files import open_file
from dsmla_bench.evals.error_plan import ErrorPlan
from dsmla_bench.evals.latents import captured_latents
from dsmla_bench.evals.model_latents import ModelText
from dsmla_bench.kernels.formats import Geometry
from dsmla_bench.reports.report import write_report
from dsmla_bench.results import Run

WORDS = [f"w{number}" for number in range(VOCABULARY)]


def save(model, folder):
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny DeepSeek-V3.2 of 512 positions with a tokenizer of words."""
    return save(tiny("deepseek_v32"), tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS[3 + number % (VOCABULARY - 3)] for number in range(1100)), encoding="utf-8")
    return path


def test_layers_are_what_the_model_caches_of_the_text(checkpoint, text):
    layers = ModelText(checkpoint, text).layers(600)
    ids = torch.tensor([3 + number % (VOCABULARY - 3) for number in range(1024)]).view(2, 512)
    expected = captured_latents(tiny("deepseek_v32"), ids, batch_size=1)
    assert [(layer.name, layer.tokens, layer.kind) for layer in layers] == [
        ("layer 0", 600, "model"),
        ("layer 1", 600, "model"),
    ]
    for layer in layers:
        assert torch.equal(layer.block(0), expected[layer.layer][:600].float())


def test_the_error_of_a_model_is_measured_and_reported_layer_by_layer(cli, checkpoint, text, tmp_path):
    code, out, err = cli(
        "error",
        "--from-model",
        checkpoint,
        "--text",
        text,
        "--tokens",
        200,
        "--formats",
        "fp8,nvfp4_ds_mla",
        "--device",
        "cpu",
    )
    assert code == 0, err
    assert "layer 0, 200 tokens" in out
    assert "layer 1, 200 tokens" in out
    (path,) = (tmp_path / "runs").iterdir()
    errors = Run.load(path).table("errors")
    assert set(errors["data"]) == {"layer 0", "layer 1"}
    assert set(errors["kind"]) == {"model"}
    assert (errors["status"] == "ok").all()
    write_report(Run.load(path), tmp_path / "report")
    report = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert all(f"### layer {layer}, 200 tokens" in report for layer in (0, 1))


def test_a_model_reads_prose_of_ours_by_default_and_stands_beside_other_data(checkpoint):
    plan = ErrorPlan(formats=("nvfp4_ds_mla",), data=("normal", str(checkpoint)), tokens=64)
    assert [source.name for source in plan.sources(str(checkpoint), Geometry())] == ["layer 0", "layer 1"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("nothing", "is no folder"),
        ("an empty folder", r"holds no \*.safetensors"),
        ("a pickled checkpoint", r"holds no \*.safetensors"),
        ("no latents", "llama has no latent cache"),
        ("other widths", "its latents are 256"),
        ("a short text", "has 3 tokens of this model, and 512 are needed"),
        ("no text", "cannot be read"),
        ("bytes", "is no text in UTF-8"),
    ],
)
def test_what_cannot_be_captured_is_refused_in_one_sentence(cli, capsys, checkpoint, tmp_path, made, message):
    folder, text = tmp_path / "model", tmp_path / "some.txt"
    text.write_text("w1 w2 w3", encoding="utf-8")
    if made in ("an empty folder", "a pickled checkpoint"):
        folder.mkdir()
    if made == "a pickled checkpoint":
        (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
        torch.save({}, folder / "pytorch_model.bin")
    if made == "no latents":
        save(
            LlamaForCausalLM(
                LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
            ),
            folder,
        )
    if made == "other widths":
        save(tiny("deepseek_v3", kv_lora_rank=256), folder)
    if made in ("a short text", "no text", "bytes"):
        folder = checkpoint
    if made == "no text":
        text.unlink()
    if made == "bytes":
        text.write_bytes(b"\xff\xfe\x00")
    capsys.readouterr()
    code, _, err = cli("error", "--from-model", folder, "--text", text, "--formats", "nvfp4_ds_mla", "--tokens", 64)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are read from /proc")
def test_a_safetensors_file_is_mapped_and_not_loaded(tmp_path):
    path, latents = tmp_path / "latents.safetensors", torch.randn(BLOCK_TOKENS + 8, 576).to(torch.bfloat16)
    save_file({"latents": latents}, path)
    source = open_file(path)
    assert str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert torch.equal(source.block(1), latents[BLOCK_TOKENS:].float())
