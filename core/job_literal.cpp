#include "core/job_literal.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera {
namespace {

std::string literal_of(bool value) {
    return value ? "true" : "false";
}

std::string literal_of(std::int64_t value) {
    return fmt::format("{}", value);
}

std::string literal_of(double value) {
    return literal(value);
}

std::string literal_of(const std::string& value) {
    return quoted(value);
}

template <typename T>
std::string literal_of(const Auto<T>& value) {
    return value ? literal_of(*value) : quoted("auto");
}

template <typename List>
std::string literal_of(const List& list) {
    std::string text = "[";
    for (const auto& item : list) {
        text += (text.size() > 1 ? ", " : "") + literal_of(item);
    }
    return text + "]";
}

std::string number_words(const std::string& noun, const Range& range) {
    std::string words = noun;
    if (std::isfinite(range.low) && std::isfinite(range.high) && !range.above && !range.below) {
        words += fmt::format(" from {} to {}", range.low, range.high);
    } else {
        if (std::isfinite(range.low)) {
            words += (range.above ? " above " : " of at least ") + fmt::format("{}", range.low);
        }
        if (std::isfinite(range.high)) {
            words += (range.below ? " and below " : " and at most ") + fmt::format("{}", range.high);
        }
    }
    return range.or_zero ? "0 or " + words : words;
}

std::vector<std::string> choice_words(const Key& key) {
    std::vector<std::string> words;
    for (const Choice& choice : key.choices) {
        words.push_back(quoted(choice.value) +
                        (choice.alias.empty() ? std::string() : " (alias " + quoted(choice.alias) + ")"));
    }
    if (!key.text.words.empty()) {
        words.emplace_back(key.text.words);
    }
    return words;
}

struct TypeWords {
    const Key& key;

    std::string operator()(const bool*) const { return "true or false"; }
    std::string operator()(const std::int64_t*) const { return number_words("a whole number", key.range); }
    std::string operator()(const double*) const { return number_words("a number", key.range); }
    std::string operator()(const std::string*) const {
        const auto words = choice_words(key);
        return words.empty() ? "a string" : either(words);
    }
    std::string operator()(const std::vector<std::string>*) const { return "a list of strings, none of them empty"; }
    std::string operator()(const std::array<double, 2>*) const {
        return "a list of two, each " + number_words("a number", key.range);
    }
    std::string operator()(const Auto<bool>*) const { return "true, false or \"auto\""; }
    std::string operator()(const Auto<std::int64_t>*) const {
        return number_words("a whole number", key.range) + " or \"auto\"";
    }
};

}  // namespace

std::string quoted(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        switch (c) {
            case '"':
                result += "\\\"";
                break;
            case '\\':
                result += "\\\\";
                break;
            case '\n':
                result += "\\n";
                break;
            case '\r':
                result += "\\r";
                break;
            case '\t':
                result += "\\t";
                break;
            default:
                if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
                    result += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
                } else {
                    result += c;
                }
        }
    }
    return result + "\"";
}

std::string literal(double value) {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".en") == std::string::npos) {
        text += ".0";
    }
    return text;
}

std::string literal(const Field& field) {
    return std::visit([](const auto* value) { return literal_of(*value); }, field);
}

std::string accepted_values(const Key& key) {
    Job job;
    return std::visit(TypeWords{key}, key.field(job));
}

std::string either(const std::vector<std::string>& words) {
    std::string text;
    for (std::size_t i = 0; i < words.size(); ++i) {
        text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
    }
    return text;
}

}  // namespace tessera
