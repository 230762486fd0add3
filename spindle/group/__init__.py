"""What a group agrees on: views, topics, levels, positions, the layout of memory."""
