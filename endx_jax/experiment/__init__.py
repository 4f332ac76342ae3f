"""From a config to objects: the door at which config stops."""
