// Typed, checked access to the members of a JSON object that somebody else wrote.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

namespace tessera {

/// Reads members of one object and remembers which were asked for. null counts as absent, as it does in Hugging Face
/// configurations; where it does not, ask has() and present(). The object must outlive the reader.
class JsonObject {
  public:
    /// `path` names the file and `prefix` ("" or "rope_scaling.") the place of the object in it, both for messages.
    JsonObject(const nlohmann::json& object, std::string path, std::string prefix = "");

    /// The key is there, be it null.
    [[nodiscard]] bool present(const char* key) const;
    /// The key is there and not null.
    [[nodiscard]] bool has(const char* key) const;
    /// The value; null where it is absent. Counts as asked for.
    [[nodiscard]] const nlohmann::json& value(const char* key) const;

    // Each gives `absent` where the key is absent or null and throws bad_data, naming key, value and what is accepted,
    // where the value has another type or is out of range (bounds included).
    [[nodiscard]] std::int64_t integer(const char* key, std::int64_t absent, std::int64_t least,
                                       std::int64_t most) const;
    [[nodiscard]] double number(const char* key, double absent, double least, double most) const;
    [[nodiscard]] bool boolean(const char* key, bool absent) const;
    [[nodiscard]] std::string text(const char* key, const std::string& absent) const;

    /// Throws bad_data: "<path>: <key> = <value>: <reason>".
    [[noreturn]] void refuse(const std::string& key, const std::string& reason) const;
    /// Throws bad_data where `key` is absent or null.
    void require(const char* key) const;

    /// Keys of the object that nobody asked for.
    [[nodiscard]] std::vector<std::string> unread() const;
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    const nlohmann::json& object_;
    std::string path_;
    std::string prefix_;
    mutable std::set<std::string, std::less<>> read_;
};

}  // namespace tessera
