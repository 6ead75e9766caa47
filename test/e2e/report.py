"""What a test program found, and how it ends."""

import sys

SKIPPED = 77  # what ctest takes for skipped


def skip_without(missing):
    """Ends a test that cannot be done here: `missing` says why not, or is None."""
    if missing:
        print(f"skipped: {missing}")
        sys.exit(SKIPPED)


class Report:
    """Counts what is reported: what is wrong, or None."""

    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, name, wrong):
        if wrong is None:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAIL {name}: {wrong}", flush=True)

    def check(self, name, holds, detail=""):
        self(name, None if holds else detail)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed or not self.passed else 0)
