"""What writers and publishers are made of."""
