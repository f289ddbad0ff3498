"""Names the plugin, so that a checkout works before it is installed."""

pytest_plugins = ["pytest_aisbench.plugin"]
