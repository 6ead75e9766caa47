"""scripts/check_includes.py finds each kind of fault, and nothing in a tree that has none."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import check_includes  # noqa: E402

GOOD = {
    "core/base/error.h": "#pragma once\n#include <string>\n",
    "kernels/ops.h": '#pragma once\n#include "core/base/error.h"\n',
    "kernels/cpu/ops.cpp": '#include "kernels/ops.h"\n',
    "core/model.h": '#pragma once\n#include "kernels/ops.h"\n#include "core/base/error.h"\n',
    "io/file.h": '#pragma once\n#include "core/model.h"\n',
    "zero/plan.h": '#pragma once\n#include "io/file.h"\n',
    "apps/train.cpp": '#include "zero/plan.h"\n',
    "test/io/file_test.cpp": '#include "io/file.h"\n#include "zero/plan.h"\n',
}

PASSAGE = "".join(f"    value += weight_{n} * input[{n}];\n" for n in range(check_includes.PASSAGE))


class CheckIncludesTest(unittest.TestCase):
    def problems(self, **changed):
        with tempfile.TemporaryDirectory() as root:
            for path, text in (GOOD | {path.replace("__", "."): text for path, text in changed.items()}).items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return check_includes.check(root)

    def assert_one(self, part, **changed):
        problems = self.problems(**changed)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(part, problems[0])

    def test_a_good_tree(self):
        self.assertEqual(self.problems(), [])

    def test_upward(self):
        problems = self.problems(**{"core/up.cpp": '\n#include "io/file.h"\n'})
        self.assertIn('core/up.cpp:2: includes "io/file.h", which is on a floor above', problems)
        self.assertIn("a circle of includes between folders: io -> core -> io", problems)

    def test_base_is_below_all(self):
        problems = self.problems(**{"core/base/up.cpp": '#include "core/model.h"\n'})
        self.assertTrue(any("core/base/up.cpp:1" in problem and "floor above" in problem for problem in problems))
        self.assertTrue(any("circle of includes between folders" in problem for problem in problems))

    def test_the_product_never_includes_tests(self):
        self.assert_one("apps/x.cpp:1", **{"apps/x.cpp": '#include "test/a.h"\n', "test/a.h": "#pragma once\n"})

    def test_circle_between_files(self):
        self.assert_one(
            "between files: io/a.h -> io/b.h -> io/c.h -> io/a.h",
            **{
                "io/a.h": '#pragma once\n#include "io/b.h"\n',
                "io/b.h": '#pragma once\n#include "io/c.h"\n',
                "io/c.h": '#pragma once\n#include "io/a.h"\n',
            },
        )

    def test_not_from_the_root(self):
        self.assert_one("io/a.cpp:1", **{"io/a.cpp": '#include "file.h"\n'})

    def test_angle_brackets(self):
        self.assert_one("write it in quotes", **{"io/a.cpp": "#include <io/file.h>\n"})

    def test_pragma_once(self):
        self.assert_one("io/a.h: has no #pragma once", **{"io/a.h": "int f();\n"})

    def test_length(self):
        self.assertEqual(self.problems(**{"scripts/a.py": "x\n" * 800}), [])
        self.assert_one("801 lines", **{"scripts/a.py": "x\n" * 801})

    def test_a_passage_written_twice(self):
        self.assert_one("the same", **{"io/a.cpp": "int a;\n" + PASSAGE, "zero/b.cpp": PASSAGE.replace("    ", "  ")})
        self.assertEqual(self.problems(**{"io/a.cpp": PASSAGE, "test/b.cpp": PASSAGE}), [])


if __name__ == "__main__":
    unittest.main()
