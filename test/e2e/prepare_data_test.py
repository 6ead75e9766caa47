"""scripts/prepare_data.py against tokenizers used directly, with a small tokenizer made here."""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "prepare_data.py")
TEXT = "The quick brown fox jumps over the lazy dog.\nWhat is two and two? It is four, said the user.\n"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\\n' }}{% endfor %}"
)
CHAT = [
    {"role": "user", "content": "What is two and two?"},
    {"role": "assistant", "content": "It is four."},
    {"role": "user", "content": "Said the fox?"},
    {"role": "assistant", "content": "The lazy dog."},
]


def make_tokenizer(path, metaspace=False):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if metaspace else pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Metaspace() if metaspace else decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=[] if metaspace else pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    tokenizer.save(path)
    return tokenizer


class PrepareDataTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.directory = holder.name
        self.out = self.path("out.h5")
        os.mkdir(self.path("model"))
        self.tokenizer = make_tokenizer(self.path("model", "tokenizer.json"))
        self.write_json("model/config.json", {"vocab_size": 500})
        self.use_template(CHATML)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def write(self, name, text):
        with open(self.path(*name.split("/")), "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return self.path(*name.split("/"))

    def write_json(self, name, value):
        return self.write(name, json.dumps(value))

    def write_lines(self, name, records):
        return self.write(name, "".join(json.dumps(record) + "\n" for record in records))

    def use_template(self, template):
        settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template}
        self.write_json("model/tokenizer_config.json", settings)

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def call(self, *arguments):
        command = [sys.executable, SCRIPT, "--model", self.path("model"), "--out", self.out, *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def prepare(self, *arguments):
        """(documents, masks or None)."""
        result = self.call(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        with h5py.File(self.out) as file:
            self.assertEqual(file.attrs["format"], "tessera.tokens")
            self.assertEqual(file.attrs["format_version"], 1)
            self.assertEqual(file.attrs["vocab_size"], 500)
            self.assertEqual(file.attrs["eos_token_id"], 1)
            self.assertEqual(file["tokens"].dtype, np.uint16)
            self.assertEqual(file["offsets"].dtype, np.int64)
            offsets = file["offsets"][:]
            self.assertEqual((offsets[0], offsets[-1]), (0, len(file["tokens"])))
            bounds = list(zip(offsets, offsets[1:]))
            documents = [file["tokens"][b:e].tolist() for b, e in bounds]
            if "loss_mask" not in file:
                return documents, None
            self.assertEqual((file["loss_mask"].dtype, len(file["loss_mask"])), (np.uint8, len(file["tokens"])))
            return documents, [file["loss_mask"][b:e].tolist() for b, e in bounds]

    def assert_refused(self, code, parts, *arguments):
        result = self.call(*arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        left = [name for name in os.listdir(self.directory) if name.startswith("out.h5")]
        self.assertEqual(left, [])

    # ------------------------------------------------------------------------------------------ text

    def test_text_files(self):
        one, two = self.write("a.txt", TEXT), self.write("b.txt", "Zürich 東京\r\n")
        documents, masks = self.prepare(one, two)
        self.assertEqual(documents, [self.ids(TEXT) + [1], self.ids("Zürich 東京\r\n") + [1]])
        self.assertIsNone(masks)

    def test_special_tokens(self):
        documents, _ = self.prepare(self.write("a.txt", "fox"), "--no-eos", "--add-bos")
        self.assertEqual(documents, [[0] + self.ids("fox")])

    def test_lines(self):
        documents, _ = self.prepare(self.write("a.txt", "fox\r\n\nlazy dog"), "--documents", "line")
        self.assertEqual(documents, [self.ids("fox") + [1], self.ids("lazy dog") + [1]])

    def test_a_long_text_is_cut_without_a_difference(self):
        text = "".join(f"{n} {TEXT}\n\n  {n}\n" for n in range(14000))  # more than one piece
        documents, _ = self.prepare(self.write("a.txt", text))
        self.assertEqual(documents, [self.ids(text) + [1]])

    def test_a_long_text_that_cannot_be_cut(self):
        make_tokenizer(self.path("model", "tokenizer.json"), metaspace=True)
        self.assert_refused(65, ["a.txt", "--documents line"], self.write("a.txt", TEXT * 12000))

    def test_compressed(self):
        with gzip.open(self.path("a.jsonl.gz"), "wt") as file:
            file.write('{"text": "fox"}\n')
        self.assertEqual(self.prepare(self.path("a.jsonl.gz"))[0], [self.ids("fox") + [1]])

    def test_records_of_text_and_workers(self):
        records = [{"text": f"{n} fox " * (n % 7)} for n in range(500)]
        path = self.write_lines("a.jsonl", records)
        want = [self.ids(record["text"]) + [1] for record in records]
        self.assertEqual(self.prepare(path)[0], want)
        self.assertEqual(self.prepare(path, "--workers", "2")[0], want)
        self.assertEqual(self.prepare(path, "--max-documents", "7")[0], want[:7])

    def test_text_key(self):
        path = self.write_lines("a.jsonl", [{"body": "fox"}])
        self.assertEqual(self.prepare(path, "--text-key", "body")[0], [self.ids("fox") + [1]])
        os.remove(self.out)
        self.assert_refused(65, ["a.jsonl, line 1", "'text'", "body"], path)

    # --------------------------------------------------------------------------------------- answers

    def test_prompt_and_completion(self):
        path = self.write_lines("a.jsonl", [{"prompt": "What is", "completion": " two?"}, {"text": "fox"}])
        documents, masks = self.prepare(path)
        prompt, answer = self.ids("What is"), self.ids(" two?")
        self.assertEqual(documents, [prompt + answer + [1], self.ids("fox") + [1]])
        self.assertEqual(masks, [[0] * len(prompt) + [1] * (len(answer) + 1), [1] * (len(self.ids("fox")) + 1)])

    def test_text_before_the_first_answer_is_all_targets(self):
        path = self.write_lines("a.jsonl", [{"text": "fox"}, {"prompt": "a", "completion": "b"}])
        _, masks = self.prepare(path)
        self.assertEqual(masks, [[1] * (len(self.ids("fox")) + 1), [0, 1, 1]])

    def test_a_prompt_whose_last_token_would_merge(self):
        path = self.write_lines("a.jsonl", [{"prompt": "The qui", "completion": "ck"}])
        documents, masks = self.prepare(path)
        self.assertNotEqual(self.ids("The quick")[: len(self.ids("The qui"))], self.ids("The qui"))
        self.assertEqual(documents, [self.ids("The qui") + self.ids("ck") + [1]])
        self.assertEqual(sum(masks[0]), len(self.ids("ck")) + 1)

    def check_chat(self, path, targets, text):
        """`targets`: the text that the tokens with mask 1 decode to."""
        documents, masks = self.prepare(path)
        self.assertEqual(documents, [self.ids(text)])
        kept = [token for token, keep in zip(documents[0], masks[0]) if keep]
        self.assertEqual(self.tokenizer.decode(kept, skip_special_tokens=False), targets)

    def chat_text(self):
        return "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in CHAT)

    def test_chat(self):
        path = self.write_lines("a.jsonl", [{"messages": CHAT}])
        self.check_chat(path, "It is four.<|im_end|>\nThe lazy dog.<|im_end|>\n", self.chat_text())

    def test_marked_chat(self):
        self.use_template(MARKED)
        path = self.write_lines("a.jsonl", [{"messages": CHAT}])
        self.check_chat(path, "It is four.<|im_end|>The lazy dog.<|im_end|>", self.chat_text())

    def test_template_in_a_file_of_its_own(self):
        self.use_template(None)
        self.write("model/chat_template.jinja", MARKED)
        path = self.write_lines("a.jsonl", [{"messages": CHAT}])
        self.check_chat(path, "It is four.<|im_end|>The lazy dog.<|im_end|>", self.chat_text())

    def test_conversational_prompt_and_completion(self):
        path = self.write_lines("a.jsonl", [{"prompt": CHAT[:3], "completion": CHAT[3:]}])
        self.check_chat(path, "The lazy dog.<|im_end|>\n", self.chat_text())

    def test_parquet(self):
        table = pyarrow.table({"messages": [CHAT], "other": [3]})
        pyarrow.parquet.write_table(table, self.path("a.parquet"))
        self.check_chat(self.path("a.parquet"), "It is four.<|im_end|>\nThe lazy dog.<|im_end|>\n", self.chat_text())
        pyarrow.parquet.write_table(pyarrow.table({"text": ["fox"] * 200}), self.path("b.parquet"))
        self.assertEqual(self.prepare(self.path("b.parquet"))[0], [self.ids("fox") + [1]] * 200)

    # ------------------------------------------------------------------------------- refused chats

    def refuse_chat(self, template, *parts, messages=None):
        self.use_template(template)
        path = self.write_lines("a.jsonl", [{"messages": messages or CHAT}])
        self.assert_refused(65, ["a.jsonl, line 1", *parts], path)

    def test_template_that_ignores_the_generation_prompt(self):
        self.refuse_chat(CHATML.split("{% if add_generation_prompt")[0], "add_generation_prompt")

    def test_template_that_changes_earlier_messages(self):
        template = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last else m.content[:5] }}")
        self.refuse_chat(template, "cannot be told apart")

    def test_template_that_puts_something_before_the_answer(self):
        self.refuse_chat(CHATML.replace("{{ m.content }}", "{{ 'note: ' + m.content }}"), "does not begin with its content")

    def test_template_that_marks_too_little(self):
        self.refuse_chat(MARKED.replace("m.role == 'assistant'", "loop.first"), "marks 1 answers of 2")

    def test_answer_that_merges_with_what_stands_before(self):
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        messages = [{"role": "user", "content": "The qui"}, {"role": "assistant", "content": "ck"}]
        self.refuse_chat(template, "a token reaches over", messages=messages)

    def test_template_that_raises(self):
        self.refuse_chat("{{ raise_exception('no system message') }}", "no system message")

    def test_chat_without_an_answer(self):
        self.refuse_chat(CHATML, "no message is the assistant's", messages=CHAT[:1])

    def test_no_template(self):
        self.use_template(None)
        self.assert_refused(66, ["no chat template"], self.write_lines("a.jsonl", [{"messages": CHAT}]))

    # --------------------------------------------------------------------------------- other mistakes

    def test_refusals(self):
        good = self.write("good.txt", "fox")
        self.assert_refused(66, ["absent.txt"], good, self.path("absent.txt"))
        self.assert_refused(64, ["a.csv", ".parquet"], self.write("a.csv", "fox"))
        self.assert_refused(65, ["bad.jsonl, line 2"], self.write("bad.jsonl", '{"text": "fox"}\n{"text": \n'))
        self.assert_refused(65, ["deep.jsonl, line 1"], self.write("deep.jsonl", "[" * 200000 + "\n"))
        self.assert_refused(65, ["no document"], self.write("empty.jsonl", "\n\n"))
        with open(self.path("latin.txt"), "wb") as file:
            file.write(b"Z\xfcrich")
        self.assert_refused(65, ["latin.txt", "UTF-8"], self.path("latin.txt"))
        self.write("no.parquet", "fox")
        self.assert_refused(65, ["no.parquet"], self.path("no.parquet"))
        self.write_json("model/config.json", {"vocab_size": 30})
        self.assert_refused(65, ["vocab_size 30"], good)
        self.write_json("model/tokenizer_config.json", {})
        self.assert_refused(64, ["eos", "--no-eos"], good)
        os.remove(self.path("model", "tokenizer.json"))
        self.assert_refused(66, ["tokenizer.json"], good)

    def test_an_output_that_cannot_be_written(self):
        self.out = self.path("absent", "out.h5")
        self.assert_refused(73, ["absent"], self.write("a.txt", "fox"))

    def test_a_wide_vocabulary(self):
        self.write_json("model/config.json", {"vocab_size": 70000, "eos_token_id": [1, 5]})
        self.write_json("model/tokenizer_config.json", {})
        self.assertEqual(self.call(self.write("a.txt", "fox")).returncode, 0)
        with h5py.File(self.out) as file:
            self.assertEqual(file["tokens"].dtype, np.uint32)
            self.assertEqual(file["tokens"][:].tolist(), self.ids("fox") + [1])


if __name__ == "__main__":
    unittest.main()
