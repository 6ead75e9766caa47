#include "io/json_object.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "io/json.h"

namespace tessera {

using nlohmann::json;

JsonObject::JsonObject(const json& object, std::string path, std::string prefix)
    : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {
    if (!object.is_object()) {
        const std::string name = prefix_.empty() ? "the file" : prefix_.substr(0, prefix_.size() - 1);
        fail(ExitCode::bad_data, "{}: {} holds {}, not an object", path_, name, shown(object));
    }
}

bool JsonObject::present(const char* key) const {
    read_.insert(key);
    return object_.contains(key);
}

bool JsonObject::has(const char* key) const {
    return !value(key).is_null();
}

const json& JsonObject::value(const char* key) const {
    static const json kNull;
    read_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() ? kNull : *found;
}

std::int64_t JsonObject::integer(const char* key, std::int64_t absent, std::int64_t least, std::int64_t most) const {
    const json& number = value(key);
    if (number.is_null()) {
        return absent;
    }
    const bool whole = number.is_number_integer() &&
                       (!number.is_number_unsigned() || std::in_range<std::int64_t>(number.get<std::uint64_t>()));
    if (!whole || number.get<std::int64_t>() < least || number.get<std::int64_t>() > most) {
        refuse(key, fmt::format("must be a whole number from {} to {}", least, most));
    }
    return number.get<std::int64_t>();
}

double JsonObject::number(const char* key, double absent, double least, double most) const {
    const json& number = value(key);
    if (number.is_null()) {
        return absent;
    }
    if (!number.is_number() || !(number.get<double>() >= least && number.get<double>() <= most)) {
        refuse(key, fmt::format("must be a number from {} to {}", least, most));
    }
    return number.get<double>();
}

bool JsonObject::boolean(const char* key, bool absent) const {
    const json& flag = value(key);
    if (flag.is_null()) {
        return absent;
    }
    if (!flag.is_boolean()) {
        refuse(key, "must be true or false");
    }
    return flag.get<bool>();
}

std::string JsonObject::text(const char* key, const std::string& absent) const {
    const json& text = value(key);
    if (text.is_null()) {
        return absent;
    }
    if (!text.is_string()) {
        refuse(key, "must be a string");
    }
    return text.get<std::string>();
}

void JsonObject::refuse(const std::string& key, const std::string& reason) const {
    fail(ExitCode::bad_data, "{}: {}{} = {}: {}", path_, prefix_, key, shown(value(key.c_str())), reason);
}

void JsonObject::require(const char* key) const {
    if (!has(key)) {
        fail(ExitCode::bad_data, "{}: {}{} is missing", path_, prefix_, key);
    }
}

std::vector<std::string> JsonObject::unread() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) {
        if (!read_.contains(key)) {
            keys.push_back(key);
        }
    }
    return keys;
}

}  // namespace tessera
