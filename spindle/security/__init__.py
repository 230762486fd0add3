"""Who is who: trust, certificates, TLS, and what a user may do."""
