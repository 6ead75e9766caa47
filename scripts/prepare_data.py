#!/usr/bin/env python3
"""Makes a token file (tessera.tokens, HDF5) from text, JSONL or parquet with the model's own tokenizer.

    prepare_data.py --model DIR --out FILE.h5 INPUT ...

Inputs, told apart by their names:
  .txt                 a document a file (--documents line: a document a line)
  .jsonl, .json, .parquet, with in each record one of
      {"text": ...}                            every token is a target (--text-key names another key)
      {"prompt": ..., "completion": ...}       text, or lists of messages: the completion alone is a target
      {"messages": [{"role", "content"} ...]}  the model's chat template is applied: what the assistant says is a target
A file compressed with gzip (.gz) is read as what its name says without that.

A chat is only taken where the assistant's part can be told apart: by {% generation %} marks in the template, or because
the template of the messages before an answer begins the template of the messages with it, in text and in tokens.
Anything else is refused with the reason, so that a whole chat is never trained by accident.

Reads and writes piece by piece: memory does not grow with the data. The file is written under a temporary name and
renamed when complete. Exit codes are those of train: 64 usage, 65 bad data, 66 missing input, 73 cannot write.
Needs from PyPI: tokenizers, h5py, numpy; for parquet pyarrow; for chats jinja2.
"""

import argparse
import codecs
import collections
import gzip
import hashlib
import json
import multiprocessing
import os
import re
import sys
import time
import zlib

USAGE, BAD_DATA, MISSING, CANNOT_WRITE = 64, 65, 66, 73
PIECE = 1 << 20  # characters of a text that are tokenized at once
LONGEST_PIECE = 1 << 24  # a text in which no place to cut is found for so long is refused
BATCH_ITEMS, BATCH_CHARACTERS = 64, 1 << 18  # what a worker gets at once
FLUSH = 1 << 20  # tokens that are written at once


class Refused(Exception):
    """What is wrong with the call or the data, with the exit code."""

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code, self.message = code, message

    def __str__(self):
        return self.message


def require(module, why):
    try:
        return __import__(module, fromlist=["_"])
    except ImportError:
        raise Refused(USAGE, f"{why} needs the Python package {module.split('.')[0]}: pip install {module.split('.')[0]}")


# ----------------------------------------------------------------------------------------- the model


def read_json(path, required=False):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        if required:
            raise Refused(MISSING, f"{path} is not there: --model must be a model directory with it")
        return {}
    except ValueError as error:
        raise Refused(BAD_DATA, f"{path} is no JSON: {error}")


def token_text(value):
    """A special token of tokenizer_config.json: a string, or an object with its content."""
    return value.get("content") if isinstance(value, dict) else value


class Model:
    """Tokenizer, special tokens and chat template of a model directory."""

    def __init__(self, directory):
        tokenizers = require("tokenizers", "prepare_data.py")
        path = os.path.join(directory, "tokenizer.json")
        if not os.path.exists(path):
            raise Refused(MISSING, f"{path} is not there: --model must be a model directory with it")
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the package raises nothing more special
            raise Refused(BAD_DATA, f"{path}: {error}")
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        self.description = f"{os.path.basename(os.path.abspath(directory))} sha256:{digest[:16]}"
        config = read_json(os.path.join(directory, "config.json"), required=True)
        self.vocab_size = config.get("vocab_size")
        if not isinstance(self.vocab_size, int) or not 0 < self.vocab_size <= 2**32:
            raise Refused(BAD_DATA, f"{directory}/config.json: vocab_size is {self.vocab_size!r}, not a number of tokens")
        self.settings = read_json(os.path.join(directory, "tokenizer_config.json"))
        self.bos = self.special_id("bos", config)
        self.eos = self.special_id("eos", config)
        self.template = self.find_template(directory)

    def special_id(self, name, config):
        text = token_text(self.settings.get(f"{name}_token"))
        if text is not None:
            return self.tokenizer.token_to_id(text)
        value = config.get(f"{name}_token_id")
        return value[0] if isinstance(value, list) and value else value

    def find_template(self, directory):
        """The text of the chat template, or None."""
        path = os.path.join(directory, "chat_template.jinja")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
        template = self.settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        return template

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids


# ---------------------------------------------------------------------------------------------- chats

# What {% generation %} puts around its body while a template is rendered; private-use characters, removed afterwards.
BEGIN, END = "\ue0f0", "\ue0f1"


def make_environment():
    """Jinja as transformers sets it up for chat templates."""
    jinja2 = require("jinja2", "a chat")
    require("jinja2.sandbox", "a chat")
    require("jinja2.ext", "a chat")

    class Generation(jinja2.ext.Extension):
        """{% generation %} ... {% endgeneration %}: marks what the assistant says."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller):
            return BEGIN + caller() + END

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


class ChatTemplate:
    """Renders chats and finds the assistant's part in them. What cannot be told apart raises ValueError."""

    def __init__(self, model):
        if not model.template:
            raise Refused(MISSING, "the model has no chat template (chat_template.jinja, or in tokenizer_config.json)")
        self.jinja2 = require("jinja2", "a chat")
        try:
            self.template = make_environment().from_string(model.template)
        except self.jinja2.exceptions.TemplateError as error:
            raise Refused(BAD_DATA, f"the model's chat template: {error}")
        self.marked = re.search(r"\{%-?\s*generation\b", model.template) is not None
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        tokens = {name: token_text(model.settings.get(name)) for name in names}
        self.tokens = {name: text for name, text in tokens.items() if text is not None}

    def render(self, messages, add_generation_prompt=False):
        try:
            return self.template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **self.tokens
            )
        except self.jinja2.exceptions.TemplateError as error:
            raise ValueError(f"the chat template refuses it: {error}")

    def render_parts(self, messages, answers):
        """The rendered chat and the (begin, end) of the answers in it; `answers` are the indices of their messages."""
        if any(mark in str(message) for message in messages for mark in (BEGIN, END)):
            raise ValueError("it holds characters that mark the answers here (U+E0F0, U+E0F1)")
        return self.marked_parts(messages, answers) if self.marked else self.prefix_parts(messages, answers)

    def marked_parts(self, messages, answers):
        text, bounds = "", []
        pieces = re.split(f"([{BEGIN}{END}])", self.render(messages))
        for piece in pieces:
            if piece == BEGIN:
                bounds.append([len(text), None])
            elif piece == END:
                bounds[-1][1] = len(text)
            else:
                text += piece
        assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if len(bounds) != len(assistants):
            raise ValueError(f"the chat template marks {len(bounds)} answers of {len(assistants)}")
        return text, [tuple(bound) for bound, index in zip(bounds, assistants) if index in answers]

    def prefix_parts(self, messages, answers):
        text, bounds = self.render(messages), []
        for index in answers:
            before = self.render(messages[:index], add_generation_prompt=True)
            after = self.render(messages[: index + 1])
            if not (after.startswith(before) and text.startswith(after)):
                raise ValueError(
                    f"the chat template changes what stands before when message {index} is added, so that the answer "
                    "cannot be told apart; give the template {% generation %} marks, or the data as prompt and completion"
                )
            content = messages[index]["content"]
            if not after[len(before) :].lstrip().startswith(content.strip()):
                raise ValueError(
                    f"what the chat template adds for message {index} does not begin with its content, so that the "
                    "answer cannot be told apart; the template must honour add_generation_prompt, or have "
                    "{% generation %} marks"
                )
            bounds.append((len(before), len(after)))
        return text, bounds


def check_messages(messages):
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages is no list of messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ValueError(f'message {number} is not {{"role": text, "content": text}}')
    return messages


# ------------------------------------------------------------------------------------------ documents


class Encoder:
    """Turns items of the input into tokens and, where not every token is a target, a mask."""

    def __init__(self, model, options):
        self.model, self.options = model, options
        self.chat = None

    def encode(self, item):
        """(tokens, mask or None, whether the document ends here)."""
        kind, value, where = item
        try:
            if kind == "record":
                return *self.encode_record(value), True
            first, last = where[2:]
            ids = [self.model.bos] if first and self.options.add_bos else []
            ids += self.model.encode(value)
            if last and self.options.add_eos:
                ids.append(self.model.eos)
            return ids, None, last
        except ValueError as error:
            raise Refused(BAD_DATA, f"{where[0]}, {where[1]}: {error}")

    def encode_record(self, record):
        if not isinstance(record, dict):
            raise ValueError("the record is no object")
        if record.get("messages") is not None:
            messages = check_messages(record["messages"])
            return self.encode_chat(messages, range(len(messages)))
        if record.get("prompt") is not None and record.get("completion") is not None:
            prompt, completion = record["prompt"], record["completion"]
            if isinstance(prompt, list) and isinstance(completion, list):
                messages = check_messages(prompt + completion)
                return self.encode_chat(messages, range(len(prompt), len(messages)))
            if isinstance(prompt, str) and isinstance(completion, str):
                return self.encode_pair(prompt, completion)
            raise ValueError("prompt and completion must both be text, or both lists of messages")
        text = record.get(self.options.text_key)
        if not isinstance(text, str):
            key = self.options.text_key
            raise ValueError(f"the record has no {key!r} of text, nor messages, nor prompt and completion; it has {sorted(record)}")
        ids = self.model.encode(text)
        return self.finish(ids, None)

    def finish(self, ids, mask):
        if self.options.add_bos:
            ids, mask = [self.model.bos] + ids, None if mask is None else [0] + mask
        if self.options.add_eos:
            ids, mask = ids + [self.model.eos], None if mask is None else mask + [1]
        return ids, mask

    def encode_pair(self, prompt, completion):
        """As at inference: the prompt is tokenized without what follows. Tokens of the two together are taken where
        they begin with those of the prompt, so that a tokenizer that puts a space before a text does not put one here."""
        before, ids = self.model.encode(prompt), self.model.encode(prompt + completion)
        if ids[: len(before)] != before:
            ids = before + self.model.encode(completion)
        return self.finish(ids, [0] * len(before) + [1] * (len(ids) - len(before)))

    def encode_chat(self, messages, candidates):
        """The template decides about special tokens, so none are added."""
        self.chat = self.chat or ChatTemplate(self.model)
        answers = [index for index in candidates if messages[index]["role"] == "assistant"]
        if not answers:
            raise ValueError("no message is the assistant's: there is nothing to learn")
        text, bounds = self.chat.render_parts(messages, answers)
        ids = self.model.encode(text)
        mask = [0] * len(ids)
        for begin, end in bounds:
            first, last = self.tokens_before(text, begin, ids), self.tokens_before(text, end, ids)
            mask[first:last] = [1] * (last - first)
        return ids, mask

    def tokens_before(self, text, position, ids):
        """How many of a text's tokens stand before a position in it."""
        before = self.model.encode(text[:position])
        if ids[: len(before)] != before:
            raise ValueError(
                f"a token reaches over the bound of an answer (near {text[max(0, position - 12) : position + 12]!r}), "
                "so that it cannot be told apart"
            )
        return len(before)


# --------------------------------------------------------------------------------------------- inputs


class Input:
    """The files, read piece by piece; `done` of `total` bytes."""

    def __init__(self, paths, model, options):
        self.paths, self.model, self.options = paths, model, options
        self.done = 0
        for path in paths:
            if not os.path.isfile(path):
                raise Refused(MISSING, f"{path} is not there" if not os.path.exists(path) else f"{path} is no file")
        self.total = sum(os.path.getsize(path) for path in paths)

    def items(self):
        """("record", object, (file, place)) or ("text", piece, (file, place, first, last of the document))."""
        for path in self.paths:
            before = self.done
            kind = os.path.splitext(path.removesuffix(".gz"))[1]
            readers = {".txt": self.read_text, ".jsonl": self.read_lines, ".json": self.read_lines, ".parquet": self.read_parquet}
            if kind not in readers:
                raise Refused(USAGE, f"{path}: expected a name in .txt, .jsonl, .json or .parquet (.gz may follow)")
            yield from readers[kind](path)
            self.done = before + os.path.getsize(path)

    def read_bytes(self, path):
        """Blocks of a file, decompressed."""
        before = self.done
        with open(path, "rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
            try:
                while block := file.read(PIECE):
                    yield block
                    self.done = before + raw.tell()
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise Refused(BAD_DATA, f"{path}: {error}")
            except OSError as error:
                raise Refused(MISSING, f"{path} cannot be read: {error}")

    def read_lines_of_text(self, path):
        """(number, line without its end), for files of lines."""
        rest, number = b"", 0
        for block in self.read_bytes(path):
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > LONGEST_PIECE * 4:
                raise Refused(BAD_DATA, f"{path}, line {number + len(lines) + 1} is longer than {LONGEST_PIECE * 4} bytes")
            for line in lines:
                number += 1
                yield number, self.decode(line, path, number)
        if rest:
            yield number + 1, self.decode(rest, path, number + 1)

    @staticmethod
    def decode(line, path, number):
        try:
            return line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(BAD_DATA, f"{path}, line {number}: no UTF-8 ({error})")

    def read_lines(self, path):
        for number, line in self.read_lines_of_text(path):
            if line.strip():
                try:
                    yield "record", json.loads(line), (path, f"line {number}")
                except (ValueError, RecursionError) as error:
                    raise Refused(BAD_DATA, f"{path}, line {number} is no JSON: {error}")

    def read_parquet(self, path):
        parquet = require("pyarrow.parquet", "parquet")
        arrow = require("pyarrow", "parquet")
        number = 0
        before, size = self.done, os.path.getsize(path)
        try:
            file = parquet.ParquetFile(path)
            known = {"messages", "prompt", "completion", self.options.text_key}
            columns = [name for name in file.schema_arrow.names if name in known]
            if not columns:
                raise Refused(BAD_DATA, f"{path} has none of the columns {sorted(known)}; it has {file.schema_arrow.names}")
            for batch in file.iter_batches(batch_size=BATCH_ITEMS, columns=columns):
                for record in batch.to_pylist():
                    number += 1
                    yield "record", record, (path, f"row {number}")
                self.done = before + size * number // max(1, file.metadata.num_rows)
        except (arrow.ArrowException, OSError) as error:
            raise Refused(BAD_DATA, f"{path}, after row {number}: {error}")

    def read_text(self, path):
        if self.options.documents == "line":
            for number, line in self.read_lines_of_text(path):
                if line:
                    yield "text", line, (path, f"line {number}", True, True)
            return
        decoder, offset, text, first = codecs.getincrementaldecoder("utf-8")(), 0, "", True
        for block in self.read_bytes(path):
            try:
                text += decoder.decode(block)
            except UnicodeDecodeError as error:
                raise Refused(BAD_DATA, f"{path}: no UTF-8 after byte {offset} ({error.reason})")
            offset += len(block)
            while len(text) > PIECE:
                at = self.cut(text, path)
                if at is None:
                    break
                yield "text", text[:at], (path, "text", first, False)
                text, first = text[at:], False
        try:
            text += decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise Refused(BAD_DATA, f"{path}: the file ends within a character")
        yield "text", text, (path, "text", first, True)

    def cut(self, text, path):
        """Where a long text may be cut without a difference in its tokens: between two lines, after checking that the
        tokenizer sees the two lines together as it sees each alone."""
        places = [PIECE // 2 + match.end() for match in re.finditer(r"(?<=\S)\n(?=\S)", text[PIECE // 2 :])]
        for at in places[:20]:
            left = text[text.rfind("\n", max(0, at - 2000), at - 1) + 1 : at]
            right = text[at : at + 2000].split("\n")[0]
            if self.model.encode(left + right) == self.model.encode(left) + self.model.encode(right):
                return at
        if not places and len(text) < LONGEST_PIECE:
            return None  # more text may hold a place
        raise Refused(
            BAD_DATA,
            f"{path}: a document of more than {PIECE} characters that this tokenizer does not let be cut between lines; "
            "give --documents line, or the text in smaller files",
        )


def batches(items):
    """Items in lists of a bounded size."""
    batch, characters = [], 0
    for item in items:
        batch.append(item)
        characters += len(item[1]) if isinstance(item[1], str) else 1000
        if len(batch) >= BATCH_ITEMS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


# --------------------------------------------------------------------------------------------- output


class TokenWriter:
    """Appends documents to a tessera.tokens file."""

    def __init__(self, path, model, h5py, numpy):
        self.numpy, self.model = numpy, model
        self.file = h5py.File(path, "w")
        self.dtype = numpy.uint16 if model.vocab_size <= 65536 else numpy.uint32
        self.tokens = self.create("tokens", self.dtype)
        self.offsets = self.create("offsets", numpy.int64)
        self.mask = None  # made when the first document has one: all before it are targets
        self.pending = {"tokens": [], "mask": [], "offsets": [0]}
        self.token_count = self.document_count = self.target_count = 0

    def create(self, name, dtype, size=0, fill=0):
        shape = {"shape": (size,), "maxshape": (None,), "chunks": (1 << 16,)}
        return self.file.create_dataset(name, dtype=dtype, fillvalue=fill, **shape)

    def append(self, ids, mask, ends):
        if ids and max(ids) >= self.model.vocab_size:
            raise Refused(BAD_DATA, f"the tokenizer gives token {max(ids)}, but config.json says vocab_size {self.model.vocab_size}")
        if mask is not None and self.mask is None:
            written = len(self.tokens)
            self.mask = self.create("loss_mask", self.numpy.uint8, written, fill=1)
            self.pending["mask"] = [1] * (self.token_count - written)
        self.pending["tokens"] += ids
        if self.mask is not None:
            self.pending["mask"] += [1] * len(ids) if mask is None else mask
        self.token_count += len(ids)
        self.target_count += len(ids) if mask is None else sum(mask)
        if ends:
            self.document_count += 1
            self.pending["offsets"].append(self.token_count)
        if len(self.pending["tokens"]) >= FLUSH or len(self.pending["offsets"]) >= FLUSH:
            self.flush()

    def flush(self):
        for name, dataset in (("tokens", self.tokens), ("mask", self.mask), ("offsets", self.offsets)):
            values = self.pending[name]
            if dataset is not None and values:
                dataset.resize((len(dataset) + len(values),))
                dataset[-len(values) :] = self.numpy.asarray(values, dataset.dtype)
            self.pending[name] = []

    def finish(self):
        self.flush()
        attributes = {"format": "tessera.tokens", "format_version": 1, "vocab_size": self.model.vocab_size}
        attributes["tokenizer"] = self.model.description
        if self.model.eos is not None:
            attributes["eos_token_id"] = self.model.eos
        for name, value in attributes.items():
            self.file.attrs[name] = value
        self.file.close()


class Progress:
    """A bar on a terminal, else a line every ten seconds."""

    def __init__(self, total):
        self.total, self.start, self.shown = total, time.monotonic(), time.monotonic()
        self.live = sys.stderr.isatty()

    def show(self, done, writer):
        now = time.monotonic()
        if now - self.shown < (0.2 if self.live else 10):
            return
        self.shown = now
        share, seconds = done / max(1, self.total), now - self.start
        left = seconds / share - seconds if share > 0 else 0
        numbers = f"{writer.document_count:,} documents, {writer.token_count:,} tokens, {writer.token_count / seconds:,.0f} tokens/s"
        text = f"{100 * share:5.1f} %  {numbers}, {left:.0f} s left"
        if self.live:
            full = int(24 * share)
            print(f"\r[{'#' * full}{'.' * (24 - full)}] {text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def clear(self):
        if self.live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- main

encoder = None  # of a worker process


def start_worker(directory, options):
    global encoder
    encoder = Encoder(Model(directory), options)


def encode_batch(batch):
    return [encoder.encode(item) for item in batch]


def encode_all(source, options, model):
    """Encoded items in order. Workers are never more than a few batches ahead, so memory is bounded."""
    if options.workers <= 1:
        own = Encoder(model, options)
        yield from (own.encode(item) for item in source.items())
        return
    with multiprocessing.Pool(options.workers, start_worker, (options.model, options)) as pool:
        ahead = collections.deque()
        for batch in batches(source.items()):
            ahead.append(pool.apply_async(encode_batch, (batch,)))
            if len(ahead) >= 4 * options.workers:
                yield from ahead.popleft().get()
        while ahead:
            yield from ahead.popleft().get()


def prepare(options):
    numpy, h5py = require("numpy", "prepare_data.py"), require("h5py", "prepare_data.py")
    model = Model(options.model)
    specials = (
        ("bos", options.add_bos, model.bos, "leave out --add-bos"),
        ("eos", options.add_eos, model.eos, "say --no-eos, or give config.json an eos_token_id"),
    )
    for name, wanted, token, remedy in specials:
        if wanted and token is None:
            raise Refused(USAGE, f"the model names no {name} token: {remedy}")
    source = Input(options.inputs, model, options)
    temporary = f"{options.out}.tmp-{os.getpid()}"
    progress, writer = Progress(source.total), None
    try:
        writer = TokenWriter(temporary, model, h5py, numpy)
        for ids, mask, ends in encode_all(source, options, model):
            writer.append(ids, mask, ends)
            progress.show(source.done, writer)
            if options.max_documents and writer.document_count >= options.max_documents:
                break
        if not writer.document_count:
            raise Refused(BAD_DATA, f"no document in {', '.join(options.inputs)}")
        writer.finish()
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, options.out)
    except OSError as error:
        raise Refused(CANNOT_WRITE, f"{options.out}: {error}")
    finally:
        progress.clear()
        if writer is not None:
            writer.file.close()
        if os.path.exists(temporary):
            os.remove(temporary)
    share = 100 * writer.target_count / max(1, writer.token_count)
    print(
        f"{options.out}: {writer.document_count:,} documents, {writer.token_count:,} tokens, "
        f"{writer.target_count:,} of them targets ({share:.1f} %), {os.path.getsize(options.out):,} bytes"
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="INPUT")
    parser.add_argument("--model", required=True, help="the model directory: tokenizer.json, config.json, chat template")
    parser.add_argument("--out", required=True, help="the token file to write; replaced when it exists")
    parser.add_argument("--text-key", default="text", help="key or column of the text (default: text)")
    parser.add_argument("--documents", choices=("file", "line"), default="file", help="of .txt files (default: file)")
    parser.add_argument("--no-eos", dest="add_eos", action="store_false",
                        help="do not end documents with the eos token (chats: the template decides)")
    parser.add_argument("--add-bos", action="store_true",
                        help="begin documents with the bos token (chats: the template decides)")
    parser.add_argument("--max-documents", type=int, default=0, help="stop after so many; 0: all")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenize (default: 1)")
    options = parser.parse_args()
    if options.max_documents < 0 or options.workers < 1:
        parser.error("--max-documents must be at least 0, --workers at least 1")
    return options


def main():
    try:
        options = parse_arguments()
    except SystemExit as stop:
        sys.exit(USAGE if stop.code else 0)
    try:
        prepare(options)
    except Refused as refused:
        print(f"prepare_data.py: error: {refused}", file=sys.stderr)
        sys.exit(refused.code)


if __name__ == "__main__":
    main()
