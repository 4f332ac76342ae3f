"""What a run will need before it begins: memory, time and traffic, from shapes alone."""
