"""What goes along with samples in messages, and several samples in one."""
