#!/usr/bin/env python3
"""train inspect and train compare against what numpy says of the same files.

    inspect_compare_test.py --train BINARY

Needs h5py and numpy; what asks for text from a tokenizer needs the package tokenizers and is skipped without it. The
last line is `N passed, N failed, N skipped`.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

import h5py
import numpy as np

from launch import environment
from make_case import make_case, write_json, write_model, write_tokens

USAGE, BAD_DATA, MISSING = 64, 65, 66
TESTS = []


class Skip(Exception):
    pass


def test(function):
    TESTS.append(function)
    return function


class Place:
    """A directory of its own with model/, tokens.h5 and job.toml."""

    def __init__(self, train, directory):
        self.train, self.directory = train, directory
        self.config, self.weights = make_case(directory, "llama", np.random.default_rng(5), tie_word_embeddings=False)
        with h5py.File(self.path("tokens.h5")) as file:
            self.tokens, self.offsets = file["tokens"][:].astype(int), file["offsets"][:]

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def run(self, *arguments, code=0):
        # python3 of the tests, which has tokenizers, is found first
        changed = {"PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
        result = subprocess.run([self.train, *arguments], cwd=self.directory, env=environment() | changed,
                                capture_output=True, text=True, timeout=240, errors="replace")
        assert result.returncode == code, f"{arguments}: {result.returncode}\n{result.stdout}{result.stderr}"
        return result.stderr if code else result.stdout

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json"))

    def refused(self, *arguments, code, says):
        said = self.run(*arguments, code=code)
        assert said.count("error:") == 1 and says in said, said


def near(value, expected, relative=1e-12):
    """Sums in double of up to a few million terms, taken in another order than numpy's: far within 1e-12."""
    assert abs(value - expected) <= relative * abs(expected), (value, expected)


def norm(weights):
    return float(np.sqrt(sum(np.sum(w.astype(np.float64) ** 2) for w in weights.values())))


def check_weights(said, weights):
    largest = max(weights, key=lambda name: np.abs(weights[name]).max())
    index = np.unravel_index(np.abs(weights[largest]).argmax(), weights[largest].shape)
    assert said["parameters"] == sum(w.size for w in weights.values())
    near(said["weight_norm"], norm(weights))
    value = said["largest_value"]
    assert value["absolute"] == float(np.abs(weights[largest][index]))
    assert (value["name"], value["index"]) == (largest, [int(i) for i in index])
    assert said["largest_parameter"]["elements"] == max(w.size for w in weights.values())
    assert weights[said["largest_parameter"]["name"]].size == said["largest_parameter"]["elements"]
    assert said["not_finite"] == 0


# ------------------------------------------------------------------------------------------------ models


@test
def model(p):
    said = p.json("inspect", "model")
    check_weights(said, p.weights)
    for key, name in {"family": "model_type", "layers": "num_hidden_layers", "hidden_size": "hidden_size",
                      "vocabulary": "vocab_size", "heads": "num_attention_heads", "tied": "tie_word_embeddings"}.items():
        assert said[key] == p.config[name], key
    assert said["kind"] == "model" and said["dtype"] == "f32"
    assert {f["name"]: f["bytes"] for f in said["files"]} == {
        name: os.path.getsize(p.path("model", name)) for name in os.listdir(p.path("model"))}
    assert f"{said['parameters']:,}" in p.run("inspect", "model")


@test
def model_that_is_not_finite(p):
    name = "model.layers.0.mlp.down_proj.weight"
    p.weights[name][2, 3] = np.nan
    p.weights[name][2, 5] = -np.inf
    write_model(p.path("model"), p.config, p.weights)
    said = p.json("inspect", "model")
    assert said["not_finite"] == 2 and said["first_not_finite"] == {"name": name, "index": [2, 3]}
    finite = {n: np.where(np.isfinite(w), w, 0) for n, w in p.weights.items()}
    near(said["weight_norm"], norm(finite))


@test
def model_without_weights(p):
    os.remove(p.path("model", "model.safetensors"))
    said = p.json("inspect", "model")
    assert said["dtype"] is None and said["parameters"] == sum(w.size for w in p.weights.values())


# ------------------------------------------------------------------------------- runs, checkpoints, metrics


def train(p, *more):
    p.run("--config", "job.toml", *more)
    with open(p.path("out", "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
            for name, entry in header.items()}


@test
def run_and_checkpoint(p):
    records = train(p, "--set", "checkpoint.save_interval=2")
    said = p.json("inspect", "out")
    assert said["kind"] == "run" and said["job_type"] == "training" and said["finished"] is True
    assert said["records"] == 4 and said["last_record"] == records[-1]
    assert (said["first_loss"], said["last_loss"]) == (records[0]["loss"], records[-1]["loss"])
    newest = said["newest_checkpoint"]
    assert newest.endswith("step-00000004")

    trained = read_safetensors(p.path("out", "hf", "model.safetensors"))
    checkpoint = p.json("inspect", newest)
    check_weights(checkpoint, trained)
    assert checkpoint["kind"] == "checkpoint" and checkpoint["step"] == 4 and checkpoint["layout"]["ranks"] == 1
    assert (checkpoint["rows"], checkpoint["tokens"]) == (16, records[-1]["tokens"])

    metrics = p.json("inspect", "out/metrics.jsonl")
    assert metrics["kind"] == "metrics" and metrics["last_record"] == records[-1]

    # The masters are what the export in fp32 has.
    same = p.json("compare", newest, "out/hf")
    assert same["equal_bits"] is True and same["largest_difference"]["absolute"] == 0
    moved = p.json("compare", "model", newest)
    differences = {n: trained[n].astype(np.float64) - p.weights[n] for n in trained}
    check_differences(moved, differences, p.weights)

    shutil.rmtree(p.path(newest))
    assert p.json("inspect", "out")["finished"] is False
    os.rename(p.path("out", "checkpoints", "step-00000002"), p.path("moved"))
    shard = next(name for name in os.listdir(p.path("moved")) if name.startswith("shard"))
    with open(p.path("moved", shard), "r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    p.refused("inspect", "moved", code=BAD_DATA, says=shard)


def check_differences(said, differences, first):
    every = np.concatenate([d.ravel() for d in differences.values()])
    largest = max(differences, key=lambda name: np.abs(differences[name]).max())
    index = np.unravel_index(np.abs(differences[largest]).argmax(), differences[largest].shape)
    assert said["largest_difference"] == {
        "absolute": float(np.abs(every).max()), "name": largest, "index": [int(i) for i in index]}
    near(said["mean_absolute_difference"], float(np.abs(every).mean()))
    near(said["rms_difference"], float(np.sqrt(np.mean(every**2))))
    near(said["relative_difference"], float(np.sqrt(np.sum(every**2))) / norm(first))
    for parameter in said["parameters"]:
        difference = differences[parameter["name"]]
        assert parameter["largest"] == float(np.abs(difference).max())
        near(parameter["rms"], float(np.sqrt(np.mean(difference**2))))


@test
def compare_models(p):
    other = {name: value.copy() for name, value in p.weights.items()}
    other["model.norm.weight"][3] += 0.25
    other["model.layers.0.mlp.up_proj.weight"][1, 2] -= 0.5
    write_model(p.path("other"), p.config, other)
    said = p.json("compare", "model", "other")
    check_differences(said, {n: other[n].astype(np.float64) - p.weights[n] for n in other}, p.weights)
    assert said["equal_bits"] is False and said["values_of_other_bits"] == 2
    assert [q["name"] for q in said["parameters"] if not q["equal_bits"]] == [
        "model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
    assert p.json("compare", "model", "model")["equal_bits"] is True
    assert "model.layers.0.mlp.up_proj.weight[1, 2]" in p.run("compare", "model", "other")

    # A head of its own on one side only, a block more on the other.
    tied = {name: value for name, value in p.weights.items() if name != "lm_head.weight"}
    write_model(p.path("tied"), p.config | {"tie_word_embeddings": True}, tied)
    said = p.json("compare", "model", "tied")
    assert said["only_in_the_first"] == ["lm_head.weight"] and said["only_in_the_second"] == []
    assert said["equal_bits"] is True


@test
def compare_refuses(p):
    p.refused("compare", "model", "tokens.h5", code=BAD_DATA, says="cannot be compared")
    p.refused("compare", "model", "absent", code=MISSING, says="absent")


# --------------------------------------------------------------------------------------------- token files


def check_tokens(said, tokens, offsets, form):
    lengths = np.diff(offsets)
    assert (said["kind"], said["format"]) == ("tokens", form)
    assert (said["tokens"], said["documents"]) == (len(tokens), len(lengths))
    assert (said["shortest_document"], said["longest_document"]) == (lengths.min(), lengths.max())
    near(said["mean_document"], lengths.mean())
    assert (said["smallest_id"], said["largest_id"]) == (tokens.min(), tokens.max())


@test
def token_files(p):
    said = p.json("inspect", "tokens.h5")
    check_tokens(said, p.tokens, p.offsets, "hdf5")
    assert said["vocab_size"] == p.config["vocab_size"] and said["tokenizer"] == "random" and not said["loss_mask"]

    documents = [p.tokens[a:b] for a, b in zip(p.offsets, p.offsets[1:])]
    masks = [(np.arange(len(d)) % 3 == 0).astype(np.uint8) for d in documents]
    write_tokens(p.path("masked.h5"), documents, 70000, masks)
    said = p.json("inspect", "masked.h5")
    near(said["mask_share"], np.concatenate(masks).mean())

    with open(p.path("llmc.bin"), "wb") as file:
        file.write(np.array([20240520, 1, len(p.tokens)] + [0] * 253, "<i4").tobytes() + p.tokens.astype("<u2").tobytes())
    check_tokens(p.json("inspect", "llmc.bin"), p.tokens, np.array([0, len(p.tokens)]), "llmc")

    lengths, count = np.diff(p.offsets), len(p.offsets) - 1
    with open(p.path("pair.bin"), "wb") as file:
        file.write(p.tokens.astype("<u2").tobytes())
    with open(p.path("pair.idx"), "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + lengths.astype("<i4").tobytes()
                   + (2 * p.offsets[:-1]).astype("<i8").tobytes() + np.arange(count + 1, dtype="<i8").tobytes())
    for name in ("pair.bin", "pair.idx"):
        check_tokens(p.json("inspect", name), p.tokens, p.offsets, "megatron")

    text = "caf\u00e9 \x1b[31mred\n" * 20
    with open(p.path("text.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    raw = np.frombuffer(text.encode(), np.uint8).astype(int)
    check_tokens(p.json("inspect", "text.txt"), raw, np.array([0, len(raw)]), "bytes")
    said = p.run("inspect", "text.txt", "--row", "0")
    # The first byte is no target; what follows is one span.
    assert "c<*af\u00e9 \\x1b[31mred\n" in said and "\x1b" not in said, said


@test
def rows(p):
    # Document 2 by hand: targets are what the mask keeps, but for the first token.
    write_tokens(p.path("few.h5"), [[5, 6], [], [7, 8, 9, 10, 11], [12, 13, 14]], 97, [[1, 1], [], [1, 0, 1, 1, 0], [0, 0, 1]])
    said = p.json("inspect", "few.h5", "--row", "2")
    assert said["segments"] == [{"ids": [7, 8, 9, 10, 11], "targets": [2, 3]}]
    assert "\n7 8 9* 10* 11\n" in p.run("inspect", "few.h5", "--row", "2")
    assert p.json("inspect", "few.h5", "--row", "1")["segments"] == [{"ids": [], "targets": []}]
    p.refused("inspect", "few.h5", "--row", "4", code=USAGE, says="4 documents")
    p.refused("inspect", "model", "--row", "0", code=USAGE, says="--row")
    p.refused("inspect", "few.h5", "--model", "model", code=USAGE, says="--row")

    def job(packing, length=4):
        with open(p.path("rows.toml"), "w", encoding="utf-8") as file:
            file.write(f'model_name = "model"\noutput_dir = "out"\n[data]\ntrain = ["few.h5"]\n'
                       f'sequence_length = {length}\npacking = "{packing}"\n')
        return "rows.toml"

    def packed(row, packing, length=4):
        said = p.json("inspect", "few.h5", "--row", str(row), "--config", job(packing, length))
        return [(s["ids"], s["targets"]) for s in said["segments"]]

    # The stream is 5 6 7 8 9 10 11 12 13 14 with the mask 1 1 1 0 1 1 0 0 0 1. A row takes four inputs and predicts
    # the fifth token; that of row 1, 13, is masked.
    assert packed(0, "concat") == [([5, 6, 7, 8, 9], [1, 2, 4])]
    assert packed(1, "concat") == [([9, 10, 11, 12], [1])]
    # Bounds of documents are kept: 6 does not predict 7.
    assert packed(0, "documents") == [([5, 6], [1]), ([7, 8, 9], [2])]
    # Longest first: the document of four inputs fills row 0; those of two and one share row 1.
    assert packed(0, "best_fit") == [([7, 8, 9, 10], [2, 3])]
    assert packed(1, "best_fit") == [([12, 13, 14], [2]), ([5, 6], [1])]
    p.refused("inspect", "few.h5", "--row", "2", "--config", job("best_fit"), code=USAGE, says="2 rows")
    p.refused("inspect", "few.h5", "--row", "0", "--config", job("concat", 0), code=USAGE, says="sequence_length")

    # Long rows are broken at spaces.
    write_tokens(p.path("long.h5"), [np.arange(500) % 97], 97)
    lines = p.run("inspect", "long.h5", "--row", "0").splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) > 15


@test
def rows_as_text(p):
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise Skip("no package tokenizers") from error
    words = ["the", "\u0120cat", "\u0120sat", "\u0120down", "."]  # as byte-level vocabularies write a space
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(p.path("model", "tokenizer.json"))
    write_tokens(p.path("words.h5"), [[0, 1, 2, 3, 4]], 5, [[0, 0, 1, 1, 0]])
    said = p.json("inspect", "words.h5", "--row", "0", "--model", "model")
    assert said["segments"][0]["text"] == "the cat<* sat down*>.", said
    with open(p.path("model", "tokenizer.json"), "w", encoding="utf-8") as file:
        file.write("{}")
    said = p.json("inspect", "words.h5", "--row", "0", "--model", "model")
    assert "text" not in said["segments"][0] and said["notes"][0].startswith("shown as ids"), said
    os.remove(p.path("model", "tokenizer.json"))
    p.refused("inspect", "words.h5", "--row", "0", "--model", "model", code=MISSING, says="tokenizer.json")


# ------------------------------------------------------------------------------------------------ log-probs


def write_log_probs(path, lengths, values, entropy=None, **attributes):
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    with h5py.File(path, "w") as file:
        file["offsets"] = offsets
        file["log_probs"] = values.astype(np.float32)
        file["sum_log_prob"] = np.array([values[a:b].astype(np.float32).sum(dtype=np.float64)
                                         for a, b in zip(offsets, offsets[1:])])
        if entropy is not None:
            file["entropy"] = entropy.astype(np.float32)
        written = {"format": "tessera.log_probs", "format_version": 1, "complete": 1, "model": "m", "model_hash": "h",
                   "data": "d", "temperature": 1.0, "compute_dtype": "f32", "job": "", "alignment": "value t scores token t+1"}
        for name, value in (written | attributes).items():
            file.attrs[name] = value


@test
def log_probs(p):
    rng = np.random.default_rng(1)
    lengths = [5, 0, 70000, 3]  # the long one is read in more than one piece
    values = -rng.exponential(2, sum(lengths)).astype(np.float32)
    values[5 + 69990] = -50
    entropy = rng.exponential(1, sum(lengths)).astype(np.float32)
    write_log_probs(p.path("a.h5"), lengths, values, entropy)
    said = p.json("inspect", "a.h5")
    mean = float(values.mean(dtype=np.float64))
    assert (said["sequences"], said["values"], said["complete"]) == (4, len(values), True)
    near(said["mean_log-prob".replace("-", "_")], mean)
    near(said["mean_nll_bits"], -mean / np.log(2))
    near(said["perplexity"], np.exp(-mean))
    near(said["mean_entropy"], float(entropy.mean(dtype=np.float64)))
    near(said["sum_over_scored_tokens"], float(values.sum(dtype=np.float64)))
    assert said["least_log_prob"] == {"value": -50.0, "sequence": 2, "position": 69990}
    assert said["model"] == "m" and said["temperature"] == 1.0

    other = values.copy()
    other[5 + 66000] += 0.5
    other[1] -= 0.25
    write_log_probs(p.path("b.h5"), lengths, other, model_hash="other", temperature=0.5)
    said = p.json("compare", "a.h5", "b.h5")
    difference = other.astype(np.float64) - values
    where = {"absolute": float(np.abs(difference).max()), "sequence": 2, "position": 66000}
    assert said["largest_difference"] == where and said["equal_bits"] is False
    near(said["mean_absolute_difference"], np.abs(difference).mean())
    near(said["difference_of_mean_nll"], -difference.mean())
    assert said["attributes_that_differ"] == ["model_hash", "temperature"]
    assert said["notes"] == ["only a.h5 has entropies"]
    assert p.json("compare", "a.h5", "a.h5")["equal_bits"] is True

    write_log_probs(p.path("c.h5"), [5, 1, 69999, 3], values)
    p.refused("compare", "a.h5", "c.h5", code=BAD_DATA, says="sequence 1")
    write_log_probs(p.path("d.h5"), [5, 0, 70000], values[:-3])
    p.refused("compare", "a.h5", "d.h5", code=BAD_DATA, says="4 sequences")


@test
def log_prob_run(p):
    p.run("--config", "job.toml", "--set", "job_type=log_prob", "--set", "log_prob.entropy=true")
    said = p.json("inspect", "out")
    assert said["job_type"] == "log_prob" and said["finished"] is True
    with h5py.File(p.path("out", "log_probs.h5")) as file:
        mean = float(file["log_probs"][:].mean(dtype=np.float64))
    near(p.json("inspect", "out/log_probs.h5")["mean_log_prob"], mean)


# ------------------------------------------------------------------------------------------- other things


@test
def unknown_things(p):
    p.refused("inspect", "absent", code=MISSING, says="absent")
    os.mkdir(p.path("empty"))
    p.refused("inspect", "empty", code=BAD_DATA, says="config.json")
    p.refused("inspect", "model/model.safetensors", code=BAD_DATA, says="directory")
    with open(p.path("junk"), "wb") as file:
        file.write(b"\0" * 64)
    p.refused("inspect", "junk", code=BAD_DATA, says="junk")
    write_json(p.path("junk.json"), {"a": 1})
    p.refused("inspect", "junk.json", code=BAD_DATA, says="metrics")
    write_tokens(p.path("rollouts.h5"), [[1]], 97, format="tessera.rollouts")
    p.refused("inspect", "rollouts.h5", code=BAD_DATA, says="not available in this version")
    write_tokens(p.path("other.h5"), [[1]], 97, format="else\x1b")
    p.refused("inspect", "other.h5", code=BAD_DATA, says="else\\")
    with open(p.path("cut.h5"), "wb") as file:
        file.write(b"\x89HDF\r\n\x1a\n")
    p.refused("inspect", "cut.h5", code=BAD_DATA, says="cut.h5")
    os.mkfifo(p.path("pipe"))
    p.refused("inspect", "pipe", code=BAD_DATA, says="pipe")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    binary = os.path.abspath(options.train)
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for function in TESTS:
        if options.names and function.__name__ not in options.names:
            continue
        with tempfile.TemporaryDirectory(prefix="inspect-") as directory:
            try:
                function(Place(binary, directory))
                counts["passed"] += 1
            except Skip as reason:
                counts["skipped"] += 1
                print(f"skipped {function.__name__}: {reason}")
            except (AssertionError, LookupError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                counts["failed"] += 1
                line = error.__traceback__.tb_next.tb_lineno
                print(f"FAIL {function.__name__}, line {line}: {type(error).__name__}: {error}")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    sys.exit(1 if counts["failed"] or not counts["passed"] else 0)


if __name__ == "__main__":
    main()
