"""The local cloud: ModelArts (V1 and V2), IAM, OBS, Apulis and a small Tester on 127.0.0.1, with the vendors'
signatures and error codes. It runs training jobs as local processes.

Begin with `server`, which starts everything, then `http`, which serves it. `obs/`, `modelarts/` and `apulis/` are the
services; `engine/` runs the jobs of both platforms; `faults` makes requests and jobs fail on demand; `container_site/`
is what jobs find in their containers (MoXing, the vendors' start scripts).

Only the commands `aisbench cloud` and `aisbench doctor`, and tests, import it; the platform `local` starts it as a
child process. It imports nothing of the client but `errors` and `config.toml_document`: an emulator that shares code
with its client would agree with its mistakes.
"""
