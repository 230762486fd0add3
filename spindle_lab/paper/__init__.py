"""The paper's evaluation in virtual time: the production core on a model of the paper's cluster."""
