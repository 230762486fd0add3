"""The topics of a node: their logs, readers, writers, histories and announcements."""
