"""Filters: which samples a reader or a condition is about, as the SQL of DDS 1.4, annex B, or as a Python function.

`syntax` parses an expression, `fields` finds the members that it names in a topic's type, `expression` checks both
against each other and writes the function that decides, `content` is what readers need of any filter, and
`filtered_topic` has the ContentFilteredTopic.
"""
