"""What policies are, and what Spindle makes of them."""
