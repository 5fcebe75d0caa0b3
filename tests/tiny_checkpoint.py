"""A tiny checkpoint on disk, model and tokenizer, and the folder of tasks that it can be asked."""

from pathlib import Path

from tiny_models import VOCABULARY, tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TASKS = Path(__file__).parent / "tiny_tasks"
SPECIAL = ["<pad>", "<s>", "</s>"]


def write_checkpoint(folder, model_type="deepseek_v3", **changes):
    """Write a random model of a family and a tokenizer of one word per token into ``folder``, and return it."""
    words = [*SPECIAL, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    tiny(model_type, **changes).save_pretrained(folder)
    return folder
