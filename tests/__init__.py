"""Tests, in the shape of the tree: tests/<package>/.../test_<module>.py."""
