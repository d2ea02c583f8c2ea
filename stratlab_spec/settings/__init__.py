"""Every setting with its bounds and rules, files of settings, and old names of settings."""
