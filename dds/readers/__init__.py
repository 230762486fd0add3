"""What readers and subscribers are made of."""
