"""Plugin of pytest for tools/mutants.py: hypothesis ends with the first example that fails.

It looks for no smaller one: a mutant is killed by then; what would be shown of it is looked at by nobody.
"""

from hypothesis import Phase, settings

settings.register_profile("first_failure", phases=(Phase.explicit, Phase.generate))
settings.load_profile("first_failure")
