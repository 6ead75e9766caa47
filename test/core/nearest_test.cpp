#include "core/base/nearest.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace tessera;

TEST_CASE("edit distance counts inserts, deletes, replacements and swaps of neighbours, not case", "[nearest]") {
    CHECK(edit_distance("", "") == 0);
    CHECK(edit_distance("", "abc") == 3);
    CHECK(edit_distance("abc", "") == 3);
    CHECK(edit_distance("kitten", "sitting") == 3);  // k>s, e>i, +g
    CHECK(edit_distance("saturday", "sunday") == 3);
    CHECK(edit_distance("ca", "ac") == 1);
    CHECK(edit_distance("AdamW", "adamw") == 0);
    CHECK(edit_distance("stgae", "stage") == 1);
    CHECK(edit_distance("abcdef", "badcfe") == 3);
}

TEST_CASE("the nearest name is found, and none where all are far", "[nearest]") {
    const std::vector<std::string_view> names = {"seed", "device", "model_name", "output_dir", "lr"};
    CHECK(nearest("sed", names) == "seed");
    CHECK(nearest("devcie", names) == "device");
    CHECK(nearest("modelname", names) == "model_name");
    CHECK(nearest("output_directory", names).empty());  // six edits
    CHECK(nearest("LR", names) == "lr");
    CHECK(nearest("lrr", names) == "lr");
    CHECK(nearest("epochs", names).empty());
    CHECK(nearest("", names).empty());
    CHECK(nearest("seed", {}).empty());
    CHECK(nearest(std::string(1 << 20, 'x'), names).empty());
    CHECK(did_you_mean("sed", names) == "; did you mean seed?");
    CHECK(did_you_mean("epochs", names).empty());
}

TEST_CASE("of equally near names the first is taken", "[nearest]") {
    const std::vector<std::string_view> names = {"bat", "cat", "rat"};
    CHECK(nearest("hat", names) == "bat");
    CHECK(nearest("cat", names) == "cat");
}
