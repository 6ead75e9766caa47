#include "core/job.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/job_keys.h"
#include "core/job_literal.h"
#include "core/job_scan.h"
#include "core/toml.h"

namespace tessera {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;  // of a job file; real ones have some thousand

[[noreturn]] void fail_at(const std::string& place, const std::string& message) {
    fail(ExitCode::usage, "{}: {}", place, message);
}

/// At most some 60 bytes of something that a user wrote, cut between UTF-8 characters.
std::string shortened(const std::string& text) {
    std::size_t end = 60;
    if (text.size() <= end) {
        return text;
    }
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
        --end;
    }
    return text.substr(0, end) + "...";
}

/// The line, from 1, at which the parser meets an assertion: the last of the shortest part of the text that makes it.
std::int64_t line_of_assertion(const std::string& text) {
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < text.size(); i = ends.back()) {
        ends.push_back(std::min(text.find('\n', i), text.size() - 1) + 1);
    }
    const auto asserts = [&](std::size_t end) {
        try {
            (void)toml::parse(std::string_view(text).substr(0, end));
        } catch (const toml::parse_error&) {
            return false;
        } catch (const TomlAssertion&) {
            return true;
        }
        return false;
    };
    const auto last = std::partition_point(ends.begin(), ends.end(), [&](std::size_t end) { return !asserts(end); });
    return last - ends.begin() + 1;
}

toml::table parse_file(const std::string& text, const std::string& path) {
    if (text.size() > kMostBytes) {
        fail_at(path, fmt::format("{} bytes are too many for a job file (at most {})", text.size(), kMostBytes));
    }
    if (const auto found = find_endless_name(text)) {
        fail_at(fmt::format("{}:{}:{}", path, found->line, found->column),
                fmt::format("a name has more than {} parts, which no key has", kMostParts));
    }
    try {
        return toml::parse(text, std::string_view(path));
    } catch (const toml::parse_error& error) {
        const auto& begin = error.source().begin;
        fail_at(fmt::format("{}:{}:{}", path, begin.line, begin.column),
                fmt::format("this is not TOML: {}", error.description()));
    } catch (const TomlAssertion&) {
        fail_at(fmt::format("{}:{}", path, line_of_assertion(text)),
                "this is not TOML: a bracket or sign where none may be");
    }
}

/// { v = <value> }: the value as TOML, or, where it is none, as the string that it is.
toml::table parse_override(const std::string& value, const std::string& place) {
    const std::string text = "v = " + value;
    if (!find_endless_name(text)) {
        try {
            toml::table table = toml::parse(text);
            if (table.size() == 1) {  // more: the value went on with lines of its own
                return table;
            }
        } catch (const toml::parse_error&) {
            // Then it is a bare word.
        } catch (const TomlAssertion&) {
            // Likewise.
        }
    }
    try {
        return toml::parse("v = " + quoted(value));
    } catch (const toml::parse_error&) {
        fail_at(place, "the value is not UTF-8");
    }
}

/// A node as it may be shown in a message.
std::string shown(const toml::node& node) {
    if (const auto* value = node.as_boolean()) {
        return value->get() ? "true" : "false";
    }
    if (const auto* value = node.as_integer()) {
        return fmt::format("{}", value->get());
    }
    if (const auto* value = node.as_floating_point()) {
        return literal(value->get());
    }
    if (const auto* value = node.as_string()) {
        return quoted(shortened(value->get()));
    }
    if (const auto* array = node.as_array()) {
        std::string text = "[";
        for (const toml::node& item : *array) {
            text += (text.size() > 1 ? ", " : "") + (item.is_array() ? std::string("[...]") : shown(item));
            if (text.size() > 60) {
                return shortened(text) + "]";
            }
        }
        return text + "]";
    }
    return node.is_table() ? "{...}" : "a date or time";
}

// Reading a value: each overload sets `to` and says whether the node has the right type and range.

bool in_range(double value, const Range& range) {
    const bool low = range.above ? value > range.low : value >= range.low;
    const bool high = range.below ? value < range.high : value <= range.high;
    return std::isfinite(value) && ((low && high) || (range.or_zero && value == 0));
}

bool read(const Key&, const toml::node& node, bool& to) {
    const auto value = node.value_exact<bool>();
    to = value.value_or(false);
    return value.has_value();
}

/// A whole number or a float.
std::optional<double> number(const toml::node& node) {
    if (const auto* whole = node.as_integer()) {
        return static_cast<double>(whole->get());
    }
    return node.value_exact<double>();
}

bool read(const Key& key, const toml::node& node, double& to) {
    to = number(node).value_or(std::numeric_limits<double>::quiet_NaN());
    return in_range(to, key.range);
}

bool read(const Key& key, const toml::node& node, std::int64_t& to) {
    if (const auto* floating = node.as_floating_point()) {
        constexpr double kLimit = 9223372036854775808.0;  // 2^63
        const double value = floating->get();
        if (!(value >= -kLimit && value < kLimit) || value != std::floor(value)) {
            return false;
        }
        to = static_cast<std::int64_t>(value);
    } else if (const auto* whole = node.as_integer()) {
        to = whole->get();
    } else {
        return false;
    }
    return in_range(static_cast<double>(to), key.range) && (to <= kLargestCount || key.name == "seed");
}

bool usable(const std::string& text) {
    return text.find('\0') == std::string::npos;  // it would end a path early
}

bool read(const Key& key, const toml::node& node, std::string& to) {
    const auto value = node.value_exact<std::string>();
    if (!value || !usable(*value)) {
        return false;
    }
    to = *value;
    for (const Choice& choice : key.choices) {
        if (*value == choice.value || (!choice.alias.empty() && *value == choice.alias)) {
            to = choice.value;
            return true;
        }
    }
    return key.text.fits != nullptr ? key.text.fits(*value) : key.choices.empty();
}

bool read(const Key&, const toml::node& node, std::vector<std::string>& to) {
    to.clear();
    if (!node.is_array()) {
        return false;
    }
    for (const toml::node& item : *node.as_array()) {
        to.push_back(item.value_exact<std::string>().value_or(""));
        if (to.back().empty() || !usable(to.back())) {
            return false;
        }
    }
    return true;
}

bool read(const Key& key, const toml::node& node, std::array<double, 2>& to) {
    const toml::array* array = node.as_array();
    return array != nullptr && array->size() == 2 && read(key, (*array)[0], to[0]) && read(key, (*array)[1], to[1]);
}

template <typename T>
bool read(const Key& key, const toml::node& node, Auto<T>& to) {
    if (const auto* text = node.as_string(); text != nullptr && text->get() == "auto") {
        to = std::nullopt;
        return true;
    }
    return read(key, node, to.emplace());
}

/// A value that the file or an override gives.
struct Setting {
    const toml::node* node = nullptr;
    std::string place;  // "job.toml:3:1" or "--set key=value"
};

void read_setting(const Key& key, const Setting& setting, Job& job) {
    const Field field = key.field(job);
    const auto give = [&](auto* to) { return read(key, *setting.node, *to); };
    if (!std::visit(give, field)) {
        const bool whole =
            std::holds_alternative<std::int64_t*>(field) || std::holds_alternative<Auto<std::int64_t>*>(field);
        const bool large = whole && key.name != "seed" && !std::isfinite(key.range.high) &&
                           number(*setting.node).value_or(0) > static_cast<double>(kLargestCount);
        fail_at(setting.place, fmt::format("{} = {} must be {}{}", key.name, shown(*setting.node), accepted_values(key),
                                           large ? fmt::format(", and at most {}", kLargestCount) : ""));
    }
    if (key.available.empty()) {
        return;
    }
    const std::string value = literal(field);
    if (std::find(key.available.begin(), key.available.end(), value) == key.available.end()) {
        const std::vector<std::string> available(key.available.begin(), key.available.end());
        fail_at(setting.place, fmt::format("{} = {} is not available in this version; it takes {}", key.name, value,
                                           either(available)));
    }
}

std::string_view last_part(std::string_view dotted) {
    return dotted.substr(dotted.rfind('.') + 1);
}

/// How near a known name is to an unknown one, smallest first: a slip of the finger; the right key in the wrong
/// section; a misspelling; a longer or shorter name; a misspelling in the wrong section; anything else.
std::tuple<int, std::size_t> distance(std::string_view unknown, std::string_view known) {
    const std::string_view word = last_part(unknown);
    const std::string_view known_word = last_part(known);
    const std::size_t edits = edit_distance(unknown, known);
    const auto near = [](std::string_view a, std::string_view b) { return !nearest(a, std::array{b}).empty(); };
    const bool contained =
        known_word.find(word) != std::string_view::npos || word.find(known_word) != std::string_view::npos;
    const int kind = edits <= 1                                                   ? 0
                     : edit_distance(word, known_word) == 0                       ? 1
                     : near(unknown, known)                                       ? 2
                     : contained && std::min(word.size(), known_word.size()) >= 4 ? 3
                     : near(word, known_word)                                     ? 4
                                                                                  : 5;
    return {kind, edits};
}

/// What Hugging Face's Trainer, DeepSpeed and torchtitan call what a key here is for, where the names are not alike.
constexpr std::pair<std::string_view, std::string_view> kNamesElsewhere[] = {
    {"max_grad_norm", "gradient_clipping"},
    {"clip_grad", "gradient_clipping"},
    {"learning_rate", "training.optimizer.lr"},
    {"global_batch_size", "train_batch_size"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"local_batch_size", "train_micro_batch_size_per_gpu"},
    {"grad_accum", "gradient_accumulation_steps"},
    {"seq_len", "data.sequence_length"},
    {"seq_length", "data.sequence_length"},
    {"max_seq_len", "data.sequence_length"},
    {"max_seq_length", "data.sequence_length"},
    {"max_length", "data.sequence_length"},
    {"cutoff_len", "data.sequence_length"},
    {"train_iters", "training.max_steps"},
    {"num_train_epochs", "training.num_epochs"},
    {"save_steps", "checkpoint.save_interval"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"eval_steps", "training.eval_interval"},
    {"logging_steps", "logging.interval"},
    {"steps_per_print", "logging.interval"},
    {"activation_checkpointing", "model.enable_gradient_checkpointing"},
    {"gradient_checkpointing", "model.enable_gradient_checkpointing"},
    {"model_name_or_path", "model_name"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    {"adam_beta1", "training.optimizer.betas"},
    {"adam_beta2", "training.optimizer.betas"},
    {"adam_epsilon", "training.optimizer.eps"},
    {"dtype", "bf16.enabled"},
    {"torch_dtype", "bf16.enabled"},
    {"precision", "bf16.enabled"},
};

std::string suggestion(std::string_view name, const std::vector<std::string_view>& names) {
    for (const auto& [elsewhere, here] : kNamesElsewhere) {
        if (last_part(name) == elsewhere && std::ranges::find(names, here) != names.end()) {
            return fmt::format("; here it is {}", here);
        }
    }
    const std::string_view start = name.substr(0, 80);  // no key is longer
    const std::string_view best = *std::min_element(
        names.begin(), names.end(),
        [&](std::string_view a, std::string_view b) { return distance(start, a) < distance(start, b); });
    return std::get<0>(distance(start, best)) < 5 ? fmt::format("; did you mean {}?", best)
                                                  : fmt::format("; the nearest is {}", best);
}

bool is_section(const std::string& name) {
    const auto& sections = job_sections();
    return std::any_of(sections.begin(), sections.end(), [&](const Section& section) { return section.name == name; });
}

[[noreturn]] void fail_unknown(const std::string& place, const std::string& name, bool section) {
    std::vector<std::string_view> names;
    for (const Section& known : job_sections()) {
        if (section && !known.name.empty()) {
            names.push_back(known.name);
        }
    }
    for (const Key& known : job_keys()) {
        if (!section) {
            names.push_back(known.name);
        }
    }
    fail_at(place, fmt::format("{} is not a {} of the job file{}", shortened(name), section ? "section" : "key",
                               suggestion(name, names)));
}

class Parser {
  public:
    Parser(const std::string& text, const std::string& path, const std::vector<std::string>& overrides)
        : path_(path), file_(parse_file(text, path)) {
        collect(file_, "");
        for (const std::string& text_of_override : overrides) {
            add_override(text_of_override);
        }
    }

    JobFile result() {
        JobFile file;
        // In the order of the file, so that the first of several errors is the one that is named.
        std::sort(order_.begin(), order_.end(),
                  [](const Item& a, const Item& b) { return std::tie(a.line, a.column) < std::tie(b.line, b.column); });
        for (const Item& item : order_) {
            read_item(item, file.job);
        }
        for (const auto& [key, setting] : overrides_) {
            read_setting(*key, setting, file.job);
            settings_[key->name] = setting;
        }
        derive_batch(file.job);
        check(file.job);
        for (const Key& key : job_keys()) {
            if (given(key.name)) {
                file.given.emplace_back(key.name);
                if (!key.reader.reads(file.job)) {
                    file.unused.emplace_back(key.name);
                }
            }
        }
        return file;
    }

  private:
    struct Item {
        std::string name;
        const toml::node* node;
        std::uint32_t line;
        std::uint32_t column;
    };

    /// Lists everything in a table that is not a section of the job file, and the sections' contents.
    void collect(const toml::table& table, const std::string& section) {
        for (const auto& [name, node] : table) {
            const std::string_view word = name.str();
            const bool bare = !word.empty() && word.find_first_not_of(
                                                   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTU"
                                                   "VWXYZ0123456789_-") == std::string_view::npos;
            const std::string full = (section.empty() ? "" : section + ".") + (bare ? std::string(word) : quoted(word));
            if (node.is_table() && is_section(full)) {
                collect(*node.as_table(), full);
            } else {
                const auto& begin = name.source().begin;
                order_.push_back({full, &node, begin.line, begin.column});
            }
        }
    }

    void read_item(const Item& item, Job& job) {
        const Setting setting{item.node, fmt::format("{}:{}:{}", path_, item.line, item.column)};
        if (is_section(item.name)) {
            fail_at(setting.place, fmt::format("{} = {} must be a section: [{}], once, with keys below it", item.name,
                                               shown(*item.node), item.name));
        }
        const Key* key = find_key(item.name);
        if (key == nullptr) {
            fail_unknown(setting.place, item.name, item.node->is_table() || item.node->is_array_of_tables());
        }
        if (!overrides_.contains(key)) {
            read_setting(*key, setting, job);
            settings_[key->name] = setting;
        }
    }

    void add_override(const std::string& text) {
        const std::string place = "--set " + shortened(text);
        const std::size_t equals = text.find('=');
        if (equals == std::string::npos) {
            fail_at(place, "must be key=value");
        }
        const auto trimmed = [](const std::string& padded) {
            const std::size_t begin = std::min(padded.find_first_not_of(" \t"), padded.size());
            return padded.substr(begin, padded.find_last_not_of(" \t") + 1 - begin);
        };
        const std::string name = trimmed(text.substr(0, equals));
        const Key* key = find_key(name);
        if (key == nullptr && is_section(name) && !name.empty()) {
            fail_at(place, fmt::format("{} is a section; set a key of it", name));
        }
        if (key == nullptr) {
            fail_unknown(place, name, false);
        }
        Job scratch;
        const bool list = std::holds_alternative<std::vector<std::string>*>(key->field(scratch));
        auto table = std::make_unique<toml::table>(parse_override(trimmed(text.substr(equals + 1)), place));
        if (list && table->get("v")->is_string()) {
            table->insert_or_assign("v", toml::array{table->get("v")->ref<std::string>()});
        }
        overrides_[key] = {table->get("v"), place};
        override_tables_.push_back(std::move(table));
    }

    [[nodiscard]] bool given(std::string_view name) const { return settings_.contains(name); }

    /// Where a key is set, or the file where it is not.
    [[nodiscard]] std::string place_of(std::string_view name) const {
        const auto found = settings_.find(name);
        return found == settings_.end() ? path_ : found->second.place;
    }

    void derive_batch(Job& job) const {
        if (!job.train_batch_size) {
            return;
        }
        if (!given("train_micro_batch_size_per_gpu")) {
            job.train_micro_batch_size_per_gpu = std::nullopt;
        }
        if (!given("gradient_accumulation_steps")) {
            job.gradient_accumulation_steps = std::nullopt;
        }
    }

    void require(bool present, std::string_view name, const std::string& what) const {
        if (!present) {
            fail_at(place_of(name), fmt::format("{} must be given: {}", name, what));
        }
    }

    /// What concerns more than one key.
    void check(const Job& job) const {
        require(!job.model_name.empty(), "model_name", "a model directory or the name of a hub model");
        require(!job.output_dir.empty(), "output_dir", "the directory that the run writes to");
        if (job.job_type == "training") {
            require(!job.data.train.empty(), "data.train", "a list of files or patterns to train on");
            require(job.data.sequence_length >= 1, "data.sequence_length", "a whole number of at least 1");
            require(job.model.init != "random" || given("training.optimizer.lr"), "training.optimizer.lr",
                    "its default is for a pretrained model, and model.init is \"random\"");
        } else {
            require(!job.log_prob.data.empty(), "log_prob.data", "a list of files or patterns to score");
        }
        if (job.log_prob.window > 0 && job.log_prob.stride > job.log_prob.window) {
            fail_at(place_of("log_prob.stride"),
                    fmt::format("log_prob.stride = {} must be at most log_prob.window = {}", job.log_prob.stride,
                                job.log_prob.window));
        }
        check_scheduler(job.training.lr_scheduler);
    }

    void check_scheduler(const Job::Training::Scheduler& scheduler) const {
        if (scheduler.convention != "deepspeed") {
            return;
        }
        const std::string place = place_of("training.lr_scheduler.convention");
        if (scheduler.type == "cosine" && scheduler.warmup_steps == 0 && scheduler.warmup_ratio == 0) {
            fail_at(place,
                    "training.lr_scheduler.convention = \"deepspeed\" with type = \"cosine\" needs a warm-up: give "
                    "training.lr_scheduler.warmup_steps or warmup_ratio");
        }
        if (scheduler.type == "linear" && scheduler.min_lr_ratio != 0) {
            fail_at(place_of("training.lr_scheduler.min_lr_ratio"),
                    fmt::format("training.lr_scheduler.min_lr_ratio = {} must be 0 with convention = \"deepspeed\" and "
                                "type = \"linear\", which ends at 0",
                                literal(scheduler.min_lr_ratio)));
        }
    }

    std::string path_;
    toml::table file_;
    std::vector<Item> order_;
    std::map<const Key*, Setting> overrides_;  // sorted by place in the table
    std::vector<std::unique_ptr<toml::table>> override_tables_;
    std::map<std::string_view, Setting> settings_;
};

}  // namespace

JobFile parse_job(const std::string& text, const std::string& path, const std::vector<std::string>& overrides) {
    return Parser(text, path, overrides).result();
}

}  // namespace tessera
