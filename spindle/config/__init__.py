"""Settings: one table that documents and checks them."""
