"""Who is there, and who goes together with whom."""
