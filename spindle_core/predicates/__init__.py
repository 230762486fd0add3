"""The predicates of a subgroup, one file each; spindle_core.step evaluates them in one fixed order."""
