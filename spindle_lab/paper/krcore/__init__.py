"""The evaluation of the KRCore paper with the production pool of links in virtual time: `spindle paper krcore`."""
