"""A trained model and its index behind HTTP; what is in here needs the extra `[serve]`, but for `settings`."""
