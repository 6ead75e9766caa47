// What inspect and compare say: a table and lines for people, one JSON object for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

class Report {
  public:
    using Json = nlohmann::ordered_json;

    /// `kind` says in the JSON object what `path` is; `title` says it in words.
    Report(const std::string& kind, const std::string& path, std::string title);

    /// A row of the table and a member of the object; its key is `name` with underscores for spaces.
    void add(const std::string& name, Json value, const std::string& text);
    void add_count(const std::string& name, std::int64_t count);
    void add_bytes(const std::string& name, std::int64_t bytes);
    void add_real(const std::string& name, double value);
    void add_truth(const std::string& name, bool value);
    /// Text that a file holds: control characters are not shown as they are.
    void add_text(const std::string& name, const std::string& value);

    /// A member of the object that the table does not show.
    void add_member(const std::string& key, Json value) { object_[key] = std::move(value); }
    /// A line below the table that the object does not have.
    void add_line(std::string text) { lines_.push_back(std::move(text)); }
    /// Something that the user should notice; last in the words and in the object's "notes".
    void add_note(const std::string& text);

    /// To standard output. Numbers that are not finite are null in JSON.
    void print(bool json) const;

  private:
    std::string title_;
    std::vector<std::pair<std::string, std::string>> rows_;
    std::vector<std::string> lines_;
    std::vector<std::string> notes_;
    Json object_;
};

/// A number as the tables show it: nine significant digits, which tell any two floats apart.
[[nodiscard]] std::string in_digits(double value);

}  // namespace tessera
