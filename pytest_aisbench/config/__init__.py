"""What the user sets: options, environment, ini, `aisbench.toml`, credentials, and the predecessor's files.

Begin with `settings.py`: the fields of `Settings` are the table of options. `loading.py` merges the sources into one
value; `platform_kind.py` is what a platform says of itself before it is connected. Every layer above may import this
package; it imports `errors`, `secret`, `i18n` and `logs`.
"""
