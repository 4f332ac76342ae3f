"""HTTP server for a trained model and its index; all modules but `settings` need the extra `[serve]`."""
