"""Stage 2: train the two tokenizers on the captions of the picture set.

T5 gets a Unigram vocabulary, CLIP a byte-pair vocabulary, both small enough that most names are
whole words. Writes ``tokenizer/`` (CLIP) and ``tokenizer_2/`` (T5) into the work folder.

Two runs give different vocabularies (tokenizers 0.23 breaks ties by hash order), so a vocabulary
belongs to the weights trained with it. Invariant: ids 0, 1, 2 are pad, end, unknown for T5 and
start, end of text for CLIP, as `shapes` says.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer, T5TokenizerFast

from models.emoji.training.pictures import load_index
from models.emoji.training.scenes import draw_captions, draw_scenes
from models.emoji.training.shapes import MAX_TOKENS, PRESETS
from models.emoji.training.workspace import add_work_argument

CLIP_SPECIALS = ["<|startoftext|>", "<|endoftext|>"]
T5_SPECIALS = ["<pad>", "</s>", "<unk>"]


def train_t5_tokenizer(captions: list[str], size: int) -> T5TokenizerFast:
    """A Unigram tokenizer of at most `size` pieces (no sentinel tokens)."""
    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=T5_SPECIALS, unk_token="<unk>", show_progress=False
    )
    raw.train_from_iterator(captions, trainer)
    pieces = [tuple(row) for row in json.loads(raw.to_str())["model"]["vocab"]]
    return T5TokenizerFast(vocab=pieces, extra_ids=0, model_max_length=MAX_TOKENS)


def train_clip_tokenizer(captions: list[str], size: int) -> CLIPTokenizer:
    """A byte-pair tokenizer of at most `size` entries, normalised as CLIP does."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    symbols = sorted(alphabet) + [f"{symbol}</w>" for symbol in sorted(alphabet)]
    base = {token: row for row, token in enumerate([*CLIP_SPECIALS, *symbols])}
    template = CLIPTokenizer(vocab=base, merges=[]).backend_tokenizer
    raw = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    raw.normalizer, raw.pre_tokenizer = template.normalizer, template.pre_tokenizer
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(base) + len(alphabet), end_of_word_suffix="</w>",
        initial_alphabet=sorted(alphabet), show_progress=False,
    )  # fmt: skip
    raw.train_from_iterator(captions, trainer)
    merges = [tuple(pair) for pair in json.loads(raw.to_str())["model"]["merges"]]
    vocabulary = dict(base)
    for left, right in merges:
        if len(vocabulary) < size:
            vocabulary.setdefault(left + right, len(vocabulary))
    kept = [pair for pair in merges if "".join(pair) in vocabulary]
    return CLIPTokenizer(vocab=vocabulary, merges=kept, model_max_length=MAX_TOKENS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    parser.add_argument("--shape", choices=PRESETS, default="emoji", help="size preset")
    options = parser.parse_args()
    pictures = load_index(options.work / "pictures.zip")
    captions = draw_captions(draw_scenes(pictures, 8, seed=7), pictures, 1, seed=7)
    size = PRESETS[options.shape].vocabulary
    save_tokenizers(options.work, captions, size)


def save_tokenizers(work: Path, captions: list[str], size: int) -> None:
    """Train both and write ``tokenizer`` and ``tokenizer_2`` in `work`."""
    t5, clip = train_t5_tokenizer(captions, size), train_clip_tokenizer(captions, size)
    clip.save_pretrained(work / "tokenizer")
    t5.save_pretrained(work / "tokenizer_2")
    longest = max(len(t5(text).input_ids) for text in captions[:20_000])
    longest_clip = max(len(clip(text).input_ids) for text in captions[:20_000])
    print(f"T5 {len(t5)} pieces, CLIP {len(clip)} entries; "
          f"longest caption {longest} and {longest_clip} of {MAX_TOKENS} tokens")  # fmt: skip


if __name__ == "__main__":
    main()
