#include "core/job.h"

#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/job_keys.h"
#include "core/job_literal.h"

namespace tessera {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;  // of a job file; real ones have some thousand
constexpr int kMostParts = 16;                            // of a dotted name; the table has three

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

/// The end of the string or comment that starts at `at`, or at + 1 if neither does. An unfinished one ends with the
/// text.
std::size_t skip_quoted(const std::string& text, std::size_t at) {
    const char c = text[at];
    if (c == '#') {
        return std::min(text.find('\n', at), text.size());
    }
    if (c != '"' && c != '\'') {
        return at + 1;
    }
    const std::string three(3, c);
    const bool multiline = text.compare(at, 3, three) == 0;
    std::size_t i = at + (multiline ? 3 : 1);
    while (i < text.size()) {
        if (c == '"' && text[i] == '\\') {
            i += 2;
        } else if (multiline ? text.compare(i, 3, three) == 0 : text[i] == c || text[i] == '\n') {
            return std::min(i + (multiline ? 3 : 1), text.size());
        } else {
            ++i;
        }
    }
    return text.size();
}

/// The parser turns a.b.c into nested tables, whose destructors recurse: a name of very many parts would end the stack.
bool has_endless_name(const std::string& text) {
    int parts = 1;
    for (std::size_t i = 0; i < text.size(); i = skip_quoted(text, i)) {
        if (text[i] == '.' && ++parts > kMostParts) {
            return true;
        }
        if (std::string_view("\n=,[]{}").find(text[i]) != std::string_view::npos) {
            parts = 1;
        }
    }
    return false;
}

toml::table parse_file(const std::string& text, const std::string& path) {
    if (text.size() > kMostBytes) {
        fail_at(path, fmt::format("{} bytes are too many for a job file (at most {})", text.size(), kMostBytes));
    }
    if (has_endless_name(text)) {
        fail_at(path, fmt::format("a name has more than {} parts, which no key has", kMostParts));
    }
    try {
        return toml::parse(text, std::string_view(path));
    } catch (const toml::parse_error& error) {
        const auto& begin = error.source().begin;
        fail_at(fmt::format("{}:{}:{}", path, begin.line, begin.column),
                fmt::format("this is not TOML: {}", error.description()));
    }
}

/// { v = <value> }: the value as TOML, or, where it is none, as the string that it is.
toml::table parse_override(const std::string& value, const std::string& place) {
    const std::string text = "v = " + value;
    if (!has_endless_name(text)) {
        try {
            toml::table table = toml::parse(text);
            if (table.size() == 1) {  // more: the value went on with lines of its own
                return table;
            }
        } catch (const toml::parse_error&) {
            // Then it is a bare word.
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

bool read(const Key& key, const toml::node& node, double& to) {
    // value<double> takes whole numbers too where they convert exactly; booleans it must not.
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    to = value.value_or(0);
    return value && in_range(*value, key.range);
}

bool read(const Key& key, const toml::node& node, std::int64_t& to) {
    if (const auto* number = node.as_floating_point()) {
        constexpr double kLimit = 9223372036854775808.0;  // 2^63
        const double value = number->get();
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
        const auto* whole = setting.node->as_integer();
        const bool large = whole != nullptr && whole->get() > kLargestCount;
        fail_at(setting.place, fmt::format("{} = {} must be {}{}", key.name, shown(*setting.node), accepted_values(key),
                                           large ? fmt::format(", and at most {}", kLargestCount) : ""));
    }
    if (key.available.empty()) {
        return;
    }
    const std::string value = literal(field);
    if (std::find(key.available.begin(), key.available.end(), value) == key.available.end()) {
        const std::vector<std::string> available(key.available.begin(), key.available.end());
        fail_at(setting.place,
                fmt::format("{} = {} is not available in this version{}; it takes {}", key.name, value,
                            key.missing.empty() ? "" : fmt::format(" ({})", key.missing), either(available)));
    }
}

/// "; did you mean X?": the nearest name as a whole, else one that ends alike, as where a key is in the wrong section.
std::string suggestion(const std::string& name, const std::vector<std::string_view>& names) {
    std::string near = did_you_mean(name, names);
    const auto last = [](std::string_view dotted) { return dotted.substr(dotted.rfind('.') + 1); };
    if (!near.empty() || name.size() > 200) {
        return near;
    }
    std::vector<std::string_view> alike;
    std::copy_if(names.begin(), names.end(), std::back_inserter(alike),
                 [&](std::string_view other) { return !nearest(last(name), std::vector{last(other)}).empty(); });
    const auto best = std::min_element(alike.begin(), alike.end(), [&](std::string_view a, std::string_view b) {
        return std::tuple(edit_distance(last(name), last(a)), edit_distance(name, a)) <
               std::tuple(edit_distance(last(name), last(b)), edit_distance(name, b));
    });
    return best == alike.end() ? std::string() : fmt::format("; did you mean {}?", *best);
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
