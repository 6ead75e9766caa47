#include "io/json.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestShown = 120;

std::string escape_control_characters(std::string_view text) {
    std::string result;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            result += fmt::format("\\x{:02x}", byte);
        } else {
            result += c;
        }
    }
    return result;
}

std::string cut(std::string text) {
    if (text.size() <= kLongestShown) {
        return text;
    }
    std::size_t end = kLongestShown;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) {
        --end;  // never inside a character of several bytes
    }
    text.resize(end);
    return text + "...";
}

/// Reads characters and counts them, because the parser does not tell its callbacks where it is.
class CountingIterator {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    CountingIterator(const char* at, std::size_t* count) : at_(at), count_(count) {}
    const char& operator*() const { return *at_; }
    CountingIterator& operator++() {
        ++at_;
        ++*count_;
        return *this;
    }
    bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
    bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

  private:
    const char* at_;
    std::size_t* count_;
};

/// Builds the value from the parser's events.
class Builder : public nlohmann::json_sax<json> {
  public:
    Builder(const std::string& path, std::size_t offset, const std::size_t& count)
        : path_(path), offset_(offset), count_(count) {}

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t&) override { return add(value); }
    bool string(string_t& value) override { return add(std::move(value)); }
    bool binary(binary_t& value) override { return add(json::binary(std::move(value))); }
    bool start_object(std::size_t) override { return open(json::object()); }
    bool start_array(std::size_t) override { return open(json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool key(string_t& name) override {
        if (open_.back()->contains(name)) {
            fail(ExitCode::bad_data, "{}: the key {} before byte {} is there twice", path_, in_quotes(name),
                 offset_ + count_);
        }
        key_ = std::move(name);
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
        std::string reason = error.what();
        if (const std::size_t start = reason.find("] "); start != std::string::npos) {
            reason.erase(0, start + 2);
        }
        for (char& c : reason) {
            c = static_cast<unsigned char>(c) >= 0x7f ? '?' : c;  // what was read may not be UTF-8
        }
        fail(ExitCode::bad_data, "{}: not valid JSON at byte {}: {}", path_, offset_ + position,
             cut(escape_control_characters(reason)));
    }

    [[nodiscard]] json take() { return std::move(root_); }

  private:
    json* place(json value) {
        if (open_.empty()) {
            root_ = std::move(value);
            return &root_;
        }
        json& container = *open_.back();
        if (container.is_array()) {
            container.push_back(std::move(value));
            return &container.back();
        }
        return &(container[key_] = std::move(value));
    }
    bool add(json value) {
        place(std::move(value));
        return true;
    }
    bool open(json value) {
        if (open_.size() >= kMaxJsonDepth) {
            fail(ExitCode::bad_data, "{}: JSON nested deeper than {} at byte {}", path_, kMaxJsonDepth,
                 offset_ + count_);
        }
        open_.push_back(place(std::move(value)));
        return true;
    }
    bool close() {
        open_.pop_back();
        return true;
    }

    const std::string& path_;
    std::size_t offset_;
    const std::size_t& count_;
    json root_;
    std::string key_;
    std::vector<json*> open_;  // from the root down; only the last one grows, so the others stay where they are
};

}  // namespace

json parse_json(std::string_view text, const std::string& path, std::size_t offset) {
    std::size_t count = 0;
    Builder builder(path, offset, count);
    const CountingIterator first(text.data(), &count);
    const CountingIterator last(text.data() + text.size(), &count);
    if (!json::sax_parse(first, last, &builder)) {
        fail(ExitCode::internal, "{}: the JSON parser stopped without a reason", path);
    }
    return builder.take();
}

std::string in_quotes(std::string_view text) {
    return '"' + cut(escape_control_characters(text)) + '"';
}

std::string shown(const json& value) {
    return cut(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace tessera
