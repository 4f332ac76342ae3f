"""HTTP server for a model and its index. All modules except `settings` need the extra `[serve]`."""
