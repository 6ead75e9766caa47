#!/usr/bin/env python3
"""Token ids as text: what `train inspect --row` runs.

    decode_tokens.py TOKENIZER.json < IDS > TEXTS

IDS is a JSON list of sequences, each a list of spans, each a list of ids; TEXTS is the same with a string for each
span. On failure the only line of output says why and the exit code is not 0. Needs from PyPI: tokenizers.
"""

import json
import sys

CONTEXT = 8  # tokens before a span that may change how its text begins (a space that only the first word loses)


def decode_spans(tokenizer, spans):
    ids, texts = [], []
    for span in spans:
        before = ids[-CONTEXT:]
        ids += span
        prefix = tokenizer.decode(before, skip_special_tokens=False)
        whole = tokenizer.decode(before + span, skip_special_tokens=False)
        # Not so where a character's bytes lie on both sides of the bound.
        fits = whole.startswith(prefix)
        texts.append(whole[len(prefix) :] if fits else tokenizer.decode(span, skip_special_tokens=False))
    return texts


def main():
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("python3 has no package tokenizers")
        return 1
    try:
        tokenizer = Tokenizer.from_file(sys.argv[1])
        texts = [decode_spans(tokenizer, spans) for spans in json.load(sys.stdin)]
    except Exception as error:  # the package raises plain Exception
        print(" ".join(str(error).split()))
        return 1
    json.dump(texts, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
